"""Runs in the training process. The gradients of the part of a variable that a rank updates."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparkdl.distribute.graph_order import call_in_order


def part_of_gradient(gradient: Any, size: int, part: slice) -> Any:
    """Return the part of a gradient that belongs to a part of its variable.

    Args:
        gradient: the gradient, or the flat part itself; a tensor, `tf.IndexedSlices` or None.
        size: number of elements of the variable.
        part: the part of the flat variable.
    """
    import tensorflow as tf

    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return _part_of_slices(gradient, part)
    flat = tf.reshape(gradient, [-1])
    is_part = flat.shape[0] not in (None, size)
    return flat if is_part else flat[part.start : part.stop]


def _part_of_slices(gradient: Any, part: slice) -> Any:
    """Return the part of a sparse gradient, whose rows become single values."""
    import tensorflow as tf

    width = int(np.prod(gradient.values.shape[1:], dtype=int))
    first = tf.cast(gradient.indices, tf.int64)[:, None] * width
    indices = tf.reshape(first + tf.range(width, dtype=tf.int64), [-1]) - part.start
    length = part.stop - part.start
    is_own = (indices >= 0) & (indices < length)
    values = tf.boolean_mask(tf.reshape(gradient.values, [-1]), is_own)
    shape = tf.constant([length], tf.int64)
    return tf.IndexedSlices(values, tf.boolean_mask(indices, is_own), shape)


def clipped(
    gradients: Sequence[Any], limit: float, by_all: bool, add: Callable[[Any], Any]
) -> list[Any]:
    """Return gradients that are clipped as Keras clips them, by the norms of whole gradients.

    Args:
        gradients: parts of gradients: tensors or `tf.IndexedSlices`.
        limit: the largest norm.
        by_all: clip by the norm of all gradients together; otherwise each by its own.
        add: returns the sum of an array over all ranks.
    """
    import tensorflow as tf

    wide = tf.float64 if any(each.dtype == tf.float64 for each in gradients) else tf.float32
    squares = [tf.cast(tf.reduce_sum(tf.square(_values(each))), wide) for each in gradients]
    sums = call_in_order(add, [tf.stack(squares)], wide)
    sums = tf.ensure_shape(sums, [len(gradients)])
    if by_all:
        norm = tf.sqrt(tf.reduce_sum(sums))
        # As in Keras, a gradient that is not finite makes all others NaN, and all become dense.
        scale = limit * tf.minimum(1.0 / norm, 1.0 / limit) + (norm - norm)
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return [gradient * tf.cast(scale, gradient.dtype) for gradient in dense]
    scales = tf.unstack(limit / tf.maximum(tf.sqrt(sums), limit))
    return [_scaled(*pair) for pair in zip(gradients, scales, strict=True)]


def _values(gradient: Any) -> Any:
    import tensorflow as tf

    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _scaled(gradient: Any, scale: Any) -> Any:
    import tensorflow as tf

    values = _values(gradient)
    values = values * tf.cast(scale, values.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return values
