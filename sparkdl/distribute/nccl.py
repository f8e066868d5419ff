"""Runs in the training process.

Gradients that go from GPU to GPU: TensorFlow's own collective, by NCCL.

Our ring takes what lies in host memory. On a gang whose ranks have a GPU each, TensorFlow sums the
gradients where they are (tf.raw_ops.CollectiveReduceV2); all else still goes over the ring.
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
from sparkdl.os_processes import this_node

__all__ = ["Group", "chosen"]

# Far from those that strategies count up from 1.
GROUP_KEY = 1 << 20
DTYPES = ("bfloat16", "float16", "float32", "float64")
HINTS = {"GPU": "nccl", "CPU": "ring"}


class Group:
    """One device of every rank, as TensorFlow's collectives know them.

    Args:
        size: how many ranks.
        kind: of the devices: `GPU`; or `CPU`, for which TensorFlow has a ring of its own.
    """

    def __init__(self, size: int, kind: str = "GPU") -> None:
        import tensorflow as tf

        self._size, self._device, self._hint = size, f"{kind}:0", HINTS[kind]
        with tf.init_scope(), tf.device(self._device):
            # Within a graph, what takes the same resource runs in the order of the program.
            self._token = tf.Variable(0.0, trainable=False)

    def takes(self, flat: Any) -> bool:
        """Whether it can reduce such a tensor, which all ranks know alike."""
        return flat.dtype.name in DTYPES and bool(flat.shape.is_fully_defined())

    def reduce(self, flat: Any, op: str) -> Any:
        """The mean or sum over all ranks, element by element.

        Args:
            flat: a tensor of one dimension, in a graph or eager; the same shape on all ranks.
            op: `mean` or `sum`.
        """
        import tensorflow as tf

        dtype = flat.dtype
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
        return tf.cast(total / self._size if op == "mean" else total, dtype)


def chosen(world: Ring, kind: str = "GPU") -> Group | None:
    """The group through which the gradients of this process go; None if they go over the ring.

    All ranks choose alike, and once: the first call is a collective. A ring of a class of its own
    replaces ranks that are lost, which a group cannot do.

    Args:
        world: the ring of all ranks.
        kind: see `Group`; tests take another than `GPU`.
    """
    me = context.current()
    # A process that was given its port may run a TensorFlow server of its own on it.
    is_worker = me.strategy == "multi_worker" and me.port is None and "TF_CONFIG" in os.environ
    is_fixed = world.size > 1 and type(world) is Ring
    return _chosen(os.getpid(), world, kind) if is_worker and is_fixed else None


@functools.lru_cache(maxsize=1)
def _chosen(pid: int, world: Ring, kind: str) -> Group | None:
    import tensorflow as tf

    with tf.init_scope():
        told = world.allgather_object([_device(kind), _is_late()])
        devices = {device for device, _ in told if device}
        if len(devices) < world.size:
            return None
        late = [rank for rank, (_, is_late) in enumerate(told) if is_late]
        if late:
            warnings.warn(
                "gradients go through host memory, not by NCCL from GPU to GPU: TensorFlow has "
                f"begun to compute on ranks {late} before it could join the others. Call "
                "distribute.strategy() first of all in the training function: an optimizer or a "
                "layer that is made computes already.",
                stacklevel=4,
            )
            return None
        strategy()  # It is not used: to make it starts TensorFlow's collectives.
        return Group(world.size, kind)


def _device(kind: str) -> str | None:
    """This rank's device, by a name that no other rank's has; None if it has none to offer."""
    import tensorflow as tf

    visible = tf.config.get_visible_devices(kind)
    if not visible or not tf.executing_eagerly():
        return None
    if kind == "CPU":
        return str(context.current().rank)
    number, own = int(visible[0].name.rpartition(":")[2]), gpus()
    return f"{this_node()} {own[number]}" if number < len(own) else None


def _is_late() -> bool:
    """Whether TensorFlow's devices are in use, and not with those of the other ranks."""
    import tensorflow as tf

    threads = tf.config.threading
    number = threads.get_inter_op_parallelism_threads()
    try:  # It may be changed as long as there are no devices.
        threads.set_inter_op_parallelism_threads(number + 1)
        threads.set_inter_op_parallelism_threads(number)
    except RuntimeError:
        return "/job:" not in tf.config.list_logical_devices("CPU")[0].name
    return False


def _instance_key(flat: Any) -> int:
    """A number for tensors of this dtype and size: one number must always mean the same ones.

    It is the same on all ranks, in whichever order they trace their functions. As only one tensor
    is under way at a time, those of equal size may share it.
    """
    what = f"{flat.dtype.name} {flat.shape.num_elements()}"
    return zlib.crc32(what.encode()) & 0x7FFFFFFF
