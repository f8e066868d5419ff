"""Programs whose gradients travel through TensorFlow's collective; most are in `ring`.

On CPUs the same code runs with the hint `ring`. The variable DEVICES selects the type of the
devices.
"""

import functools
import os
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.programs import ring

KIND = os.environ.get("DEVICES", "CPU")


def through_tensorflow() -> Any:
    """Make `distribute.optimizer` and `gradient_tape` choose a group of these devices.

    Returns how many tensors have gone into the group's collectives, when they were traced.
    """
    from sparkdl.distribute import nccl, optimizers

    seen: dict[str, Any] = {"tensors": 0}
    choose, reduce = nccl.choose_group, nccl.Group.reduce

    def counted(self: Any, flat: Any, op: str) -> Any:
        seen["tensors"] += 1
        return reduce(self, flat, op)

    nccl.Group.reduce = counted  # type: ignore[method-assign]
    optimizers.choose_group = functools.partial(choose, kind=KIND)
    return seen


def everything(folder: Path) -> Any:
    """Repeat programs of `ring`: fit, a loop, compiled variants, an embedding, wire dtypes."""
    parts = [ring.adam, ring.loop, ring.variants, ring.embeds, ring.halves, ring.statistics]
    return _each([*parts, largest], folder)


def largest(folder: Path) -> Any:
    """Return means of the largest values of 16 bits, whose sums are infinite."""
    import tensorflow as tf

    from sparkdl.distribute import nccl, world

    group, means = nccl.choose_group(world.ring(), KIND), {}
    for dtype in (tf.float16, tf.bfloat16) if group else ():
        given = tf.constant([float(dtype.max), float(dtype.min), 1.0], dtype)
        means[dtype.name] = (group.reduce(given, "mean") == given).numpy().tolist()
    return {"means": means}


def adam_and_loop(folder: Path) -> Any:
    return _each([ring.adam, ring.loop], folder)


def _each(parts: list[Any], folder: Path) -> dict[str, Any]:
    from sparkdl import distribute

    seen = through_tensorflow()
    distribute.strategy()
    answers = {}
    for part in parts:
        before = seen["tensors"]
        answers[part.__name__] = part(folder)
        answers[part.__name__]["tensors"] = seen["tensors"] - before
    return answers


def by_name(folder: Path) -> Any:
    """Run `ring.adam`, but first create an optimizer from its name."""
    seen = through_tensorflow()
    return {**_of_a_name(), "tensors": seen["tensors"]}


def _of_a_name() -> dict[str, Any]:
    from sparkdl import context, distribute

    optimizer = distribute.optimizer("adam")
    import keras

    optimizer.learning_rate = 0.01
    keras.utils.set_random_seed(context.rank)
    layers = [keras.layers.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(optimizer, "mse")
    return ring.trained(model)


def late(folder: Path) -> Any:
    """Create a variable on one rank before the optimizer."""
    import tensorflow as tf

    from sparkdl import context

    seen = through_tensorflow()
    if context.rank == 1:
        tf.Variable(0.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = _of_a_name()
    said = [str(w.message) for w in caught if "NCCL" in str(w.message)]
    return {**answer, "said": said, "tensors": seen["tensors"]}


def dies_in_collective(folder: Path) -> Any:
    """Kill one rank when it should begin a collective, for which the others wait by then."""
    import tensorflow as tf

    from sparkdl import context, distribute
    from sparkdl.distribute import nccl

    through_tensorflow()
    distribute.strategy()
    reduce, calls = nccl.Group.reduce, []

    def die(flat: Any) -> Any:
        calls.append(flat.shape)
        if len(calls) == 7:
            ring.die(folder)
        return flat

    def reduce_or_die(self: Any, flat: Any, op: str) -> Any:
        if context.rank == context.world_size - 1:
            shape = flat.shape
            flat = tf.numpy_function(die, [flat], flat.dtype)
            flat.set_shape(shape)
        return reduce(self, flat, op)

    nccl.Group.reduce = reduce_or_die  # type: ignore[method-assign]
    return ring.lost_peer(folder)


def xla(folder: Path) -> Any:
    """Pretend a machine with a GPU, on which Keras selects XLA by itself."""
    import keras
    import tensorflow as tf

    devices = [SimpleNamespace(device_type=kind) for kind in ("CPU", "GPU")]
    plain = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
    with mock.patch.object(tf.config, "list_physical_devices", lambda kind=None: devices):
        model, asked = ring.build("adam"), ring.build("adam", jit_compile=True)
        plain.compile("adam", "mse")
    answers = {"plain": plain.jit_compile, "ours": model.jit_compile, "asked for": "nothing"}
    ring.fit(model)
    try:
        ring.fit(asked)
    except ValueError as exc:
        answers["asked for"] = str(exc)
    return answers
