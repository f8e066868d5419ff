"""Runs anywhere (pure). Convert numbers to another dtype, or find the first one that is lost.

Training, predictions and files have one rule. A whole number stays the same number, and a finite
number stays finite; floats may be rounded to narrower floats.
"""

from collections.abc import Callable
from typing import Any

import numpy as np


def first_inexact(values: "np.ndarray[Any, Any]", dtype: Any) -> Any:
    """Return the first number that a dtype cannot represent; None without one.

    Args:
        values: the numbers; other values are not examined.
        dtype: the dtype of integers, floats or booleans that the numbers are cast to.

    Example:
        >>> first_inexact(np.array([1, 16_777_217]), np.float32)
        16777217
        >>> first_inexact(np.array([0.1, 1e39, np.inf]), np.float32)
        1e+39
    """
    dtype = np.dtype(dtype)
    if values.dtype == dtype or values.dtype.kind not in "iuf" or not values.size:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        if dtype.kind in "biu":
            is_lost = _lost_as_integers(values, dtype)
        elif values.dtype.kind == "f":
            is_lost = _lost_as_floats(values, dtype)
        else:
            is_lost = _integers_lost_as_floats(values, dtype)
    return None if is_lost is None or not is_lost.any() else values[is_lost][0].item()


def _lost_as_integers(values: Any, dtype: "np.dtype[Any]") -> Any:
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if values.dtype.kind in "iu":
        if int(values.min()) >= low and int(values.max()) <= high:
            return None
        return (values < low) | (values > high)
    # `high` itself may not be a float, the number behind it is one.
    is_within = np.isfinite(values) & (values >= float(low)) & (values < float(int(high) + 1))
    return ~is_within | (np.trunc(values) != values)


def _lost_as_floats(values: Any, dtype: "np.dtype[Any]") -> Any:
    if np.can_cast(values.dtype, dtype, "safe"):
        return None
    is_infinite = np.isinf(values.astype(dtype))
    return is_infinite & np.isfinite(values) if is_infinite.any() else None


def _integers_lost_as_floats(values: Any, dtype: "np.dtype[Any]") -> Any:
    if dtype.kind == "f":
        limit = 1 << (np.finfo(dtype).nmant + 1)
        if -limit <= int(values.min()) and int(values.max()) <= limit:
            return None
    cast = values.astype(dtype)
    # The cast back of a float outside of the range of the integers depends on the processor.
    is_outside = ~np.isfinite(cast) | (cast >= float(int(np.iinfo(values.dtype).max) + 1))
    return is_outside | (cast.astype(values.dtype) != values)


def cast_tensor(values: Any, dtype: Any, message: Callable[[Any], str]) -> Any:
    """Return a tensor of TensorFlow with another dtype.

    Args:
        values: the tensor, also one of a graph.
        dtype: the dtype.
        message: returns the message of the error for a number that the dtype cannot represent.

    Raises:
        tf.errors.InvalidArgumentError: if there is such a number.

    Example:
        >>> import tensorflow as tf
        >>> cast_tensor(tf.constant([1, 2]), tf.float32, str).numpy()
        array([1., 2.], dtype=float32)
    """
    import tensorflow as tf

    dtype = tf.as_dtype(dtype)
    if dtype in (values.dtype, tf.string):
        return values

    def problem(array: Any) -> bytes:
        value = first_inexact(array, dtype.as_numpy_dtype)
        return b"" if value is None else message(value).encode()

    found = tf.numpy_function(problem, [values], tf.string)
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(found, ""), [found])]):
        return tf.cast(values, dtype)
