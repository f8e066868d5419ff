"""Runs anywhere. Call a compiled function of TensorFlow whose arguments are known to fit."""

from collections.abc import Callable, Sequence
from typing import Any


def short_call(compiled: Any, names: Sequence[str] | None = None) -> Callable[..., Any]:
    """Return a function that does what a concrete function does, without its preparations.

    To check the arguments, and to begin a step that may use several devices, takes TensorFlow some
    80 microseconds, several times as long as a small model computes. Where there is a GPU, the
    arguments need that: a text has no place in its memory.

    Args:
        compiled: a `tf.types.experimental.ConcreteFunction`; its outputs are tensors.
        names: the names of the inputs of a signature of a SavedModel, which takes them by name, in
            alphabetical order; None for a function that takes them by position.

    Returns:
        A function of the inputs in their order.

    Example:
        >>> import tensorflow as tf
        >>> double = tf.function(lambda x: {"y": 2 * x})
        >>> call = short_call(double.get_concrete_function(tf.TensorSpec([None], tf.float32)))
        >>> call(tf.constant([1.0, 2.0]))["y"].numpy().tolist()
        [2.0, 4.0]
    """
    import tensorflow as tf

    if tf.config.list_logical_devices("GPU"):
        if names is None:
            return compiled  # type: ignore[no-any-return]
        return lambda *inputs: compiled(**dict(zip(names, inputs, strict=True)))
    captured, dtypes = compiled.captured_inputs, [tensor.dtype for tensor in compiled.outputs]

    def call(*inputs: Any) -> Any:
        flat = tf.nest.flatten(inputs, expand_composites=True)
        results = tf.raw_ops.StatefulPartitionedCall(
            args=[*flat, *captured], Tout=dtypes, f=compiled
        )
        return tf.nest.pack_sequence_as(
            compiled.structured_outputs, results, expand_composites=True
        )

    return call
