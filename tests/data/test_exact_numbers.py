"""One rule for all conversions of numbers, compared with exact fractions."""

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from sparkdl.data.exact_numbers import cast_tensor, first_inexact

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = ["float16", "float32", "float64"]
# Around each power of two, where ranges and exact whole numbers end.
NUMBERS = [
    sign * (2**power + offset)
    for power in (0, 4, 7, 8, 11, 15, 16, 24, 31, 32, 53, 63, 64, 127, 128, 1023)
    for offset in (-1, 0, 1)
    for sign in (1, -1)
]
OTHERS = [0.5, -0.0, 1.5, math.nan, math.inf, -math.inf, 65504.0, 65519.0, 65520.0, 1e300]


def values_of(dtype: str) -> "np.ndarray[Any, Any]":
    if dtype in FLOATS:
        with np.errstate(over="ignore"):
            return np.array([*map(float, NUMBERS), *OTHERS]).astype(dtype)
    bounds = np.iinfo(dtype)
    return np.array([n for n in NUMBERS if bounds.min <= n <= bounds.max], dtype)


def is_kept(value: Any, dtype: str) -> bool:
    """The rule, by numbers of Python, which have no range."""
    if dtype in INTEGERS:
        bounds = np.iinfo(dtype)
        return math.isfinite(value) and value == int(value) and bounds.min <= value <= bounds.max
    if not math.isfinite(value):
        return True
    with np.errstate(over="ignore"):
        # Via a text: rounded once, from the exact value.
        cast = np.dtype(dtype).type(str(value)) if isinstance(value, int) else None
    if cast is not None:
        return bool(np.isfinite(cast)) and Fraction(float(cast)) == value
    largest = Fraction(float(np.finfo(dtype).max))
    half_a_step = Fraction(2) ** (math.floor(math.log2(largest)) - np.finfo(dtype).nmant - 1)
    return abs(Fraction(value)) < largest + half_a_step


@pytest.mark.parametrize(("own", "other"), list(itertools.product([*INTEGERS, *FLOATS], repeat=2)))
def test_the_first_number_that_is_lost_is_found(own: str, other: str) -> None:
    values = values_of(own)
    expected = [own == other or is_kept(value.item(), other) for value in values]
    found = [first_inexact(values[i : i + 1], other) is None for i in range(len(values))]
    assert found == expected, [v for v, a, b in zip(values, found, expected, strict=True) if a != b]
    lost = [value.item() for value, kept in zip(values, expected, strict=True) if not kept]
    first = first_inexact(values, other)
    assert str(first) == str(lost[0] if lost else None)
    assert first_inexact(values[:0], other) is None


def test_booleans_and_other_values() -> None:
    assert first_inexact(np.array([True, False]), np.float32) is None
    assert first_inexact(np.array(["a"]), np.float32) is None
    assert first_inexact(np.array([0, 1]), bool) is None
    assert first_inexact(np.array([0, 2]), bool) == 2
    assert first_inexact(np.array([0.0, 0.5]), bool) == 0.5


def test_bfloat16() -> None:
    tf = pytest.importorskip("tensorflow")
    bfloat16 = tf.bfloat16.as_numpy_dtype
    assert first_inexact(np.array([127, -128], np.int8), bfloat16) is None
    assert first_inexact(np.array([256, 257]), bfloat16) == 257
    assert first_inexact(np.array([1e38, 1e39]), bfloat16) == 1e39


@pytest.mark.slow
def test_tensors_are_cast_by_the_same_rule() -> None:
    import tensorflow as tf

    def message(value: Any) -> str:
        return f"not {value}!"

    @tf.function
    def cast(values: Any) -> Any:
        return cast_tensor(values, tf.float32, message)

    exact = cast(tf.constant([[1, 2**24]]))
    assert exact.dtype == tf.float32 and exact.shape == (1, 2)
    assert exact.numpy().tolist() == [[1, 2**24]]
    for values, other, lost in (
        ([1, 2**24 + 1], "float32", "16777217"),
        ([3, 2**32 + 3], "int32", "4294967299"),
        ([0.5, 1e300], "float32", "1e+300"),
        ([1.0, 1.5], "int64", "1.5"),
    ):
        rows = tf.data.Dataset.from_tensors(tf.constant(values, dtype_of(values)))
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"not {lost}!".replace("+", ".")):
            list(rows.map(lambda x, other=other: cast_tensor(x, other, message)))
    texts = tf.constant(["a"])
    assert cast_tensor(texts, tf.string, message) is texts


def dtype_of(values: list[Any]) -> str:
    return "int64" if isinstance(values[0], int) else "float64"
