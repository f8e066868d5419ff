"""Runs in the training process. Reduce gradients between GPUs with TensorFlow's NCCL collective.

The ring of this package reduces arrays in host memory. On a gang whose ranks have one GPU each,
TensorFlow sums gradients in GPU memory (tf.raw_ops.CollectiveReduceV2); all other collectives
still use the ring.
"""

import functools
import os
import warnings
import zlib
from typing import Any

from sparkdl import context
from sparkdl.devices import gpus
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.strategies import strategy
from sparkdl.host.os_processes import this_node

# Strategies number their groups from 1; this key is far from theirs.
GROUP_KEY = 1 << 20
DTYPES = ("bfloat16", "float16", "float32", "float64")
HINTS = {"GPU": "nccl", "CPU": "ring"}


class Group:
    """A group of one device per rank, for TensorFlow's collectives.

    Args:
        size: number of ranks.
        kind: type of the devices: `GPU`, or `CPU`, for which TensorFlow has a ring of its own.
    """

    def __init__(self, size: int, kind: str = "GPU") -> None:
        import tensorflow as tf

        self._size = size
        self._device = f"{kind}:0"
        self._hint = HINTS[kind]
        with tf.init_scope(), tf.device(self._device):
            # Operations of a graph that use the same resource run in program order.
            self._token = tf.Variable(0.0, trainable=False)

    def can_reduce(self, flat: Any) -> bool:
        """Return True if the group can reduce a tensor; all ranks get the same answer."""
        return flat.dtype.name in DTYPES and bool(flat.shape.is_fully_defined())

    def reduce(self, flat: Any, op: str) -> Any:
        """Return the mean or sum over all ranks, element by element.

        Args:
            flat: a tensor of one dimension, in a graph or eager; the same shape on all ranks.
            op: `mean` or `sum`.
        """
        import tensorflow as tf

        dtype = flat.dtype
        # The sum of 16-bit values may overflow where their mean does not. Division by a power of
        # two is exact, but for the smallest values.
        divisor = 1 << (self._size - 1).bit_length() if op == "mean" and dtype.size == 2 else 1
        flat = flat / divisor if divisor > 1 else flat
        if self._hint == "nccl" and dtype == tf.bfloat16:
            flat = tf.cast(flat, tf.float32)  # TensorFlow's NCCL has no bfloat16 (nccl_manager.cc).
        with tf.device(self._device):
            total = tf.raw_ops.CollectiveReduceV2(
                input=flat,
                group_size=self._size,
                group_key=GROUP_KEY,
                instance_key=_instance_key(flat),
                ordering_token=[self._token.handle],
                merge_op="Add",
                final_op="Id",
                communication_hint=self._hint,
            )
        if op == "mean":
            wide = tf.cast(total, tf.float32) if dtype.size == 2 else total
            total = wide * (divisor / self._size) if divisor > 1 else wide / self._size
        return tf.cast(total, dtype)


def choose_group(world: Ring, kind: str = "GPU") -> Group | None:
    """Return the group that reduces the gradients of this process, or None to use the ring.

    The first call is a collective, and all ranks choose the same. An elastic ring never has a
    group, because a group cannot replace lost ranks.

    Args:
        world: the ring of all ranks.
        kind: type of the devices, see `Group`; always `GPU` except in tests.
    """
    me = context.current()
    # A process that was given its port may run a TensorFlow server of its own on it.
    is_worker = me.strategy == "multi_worker" and me.port is None and "TF_CONFIG" in os.environ
    is_fixed = world.size > 1 and type(world) is Ring
    return _group(os.getpid(), world, kind) if is_worker and is_fixed else None


# Process-wide state: one group per process. The process id is an argument so that a forked process
# does not use the group of its parent.
@functools.lru_cache(maxsize=1)
def _group(pid: int, world: Ring, kind: str) -> Group | None:
    import tensorflow as tf

    with tf.init_scope():
        reports = world.allgather_object([_device_name(kind), _is_late()])
        devices = {device for device, _ in reports if device}
        if len(devices) < world.size:
            return None
        late = [rank for rank, (_, is_late) in enumerate(reports) if is_late]
        if late:
            warnings.warn(
                "gradients travel through host memory, not from GPU to GPU by NCCL: TensorFlow "
                f"started to compute on ranks {late} before it could join the others. Call "
                "distribute.strategy() first in the training function, before an optimizer or a "
                "layer is created: creating them already computes.",
                stacklevel=4,
            )
            return None
        strategy()  # Creating the strategy starts TensorFlow's collectives; it is not used here.
        return Group(world.size, kind)


def _device_name(kind: str) -> str | None:
    """Return a name of this rank's device that is unique among ranks; None without a device."""
    import tensorflow as tf

    visible = tf.config.get_visible_devices(kind)
    if not visible or not tf.executing_eagerly():
        return None
    if kind == "CPU":
        return str(context.current().rank)
    number = int(visible[0].name.rpartition(":")[2])
    gpu_ids = gpus()
    return f"{this_node()} {gpu_ids[number]}" if number < len(gpu_ids) else None


def _is_late() -> bool:
    """Return True if TensorFlow uses its devices, but not together with those of other ranks."""
    import tensorflow as tf

    threads = tf.config.threading
    num_threads = threads.get_inter_op_parallelism_threads()
    try:  # The setting can be changed only before TensorFlow has initialised its devices.
        threads.set_inter_op_parallelism_threads(num_threads + 1)
        threads.set_inter_op_parallelism_threads(num_threads)
    except RuntimeError:
        return "/job:" not in tf.config.list_logical_devices("CPU")[0].name
    return False


def _instance_key(flat: Any) -> int:
    """Return the key of a collective, which must always stand for the same dtype and size.

    The key is the same on all ranks, in whichever order they trace their functions. Tensors of
    equal dtype and size share a key, because only one tensor is reduced at a time.
    """
    description = f"{flat.dtype.name} {flat.shape.num_elements()}"
    return zlib.crc32(description.encode()) & 0x7FFFFFFF
