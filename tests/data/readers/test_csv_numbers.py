"""Whole numbers in CSV text that float64 does not have, compared with exact numbers."""

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.data.readers.csv_numbers import are_whole, has_rounded, may_be_rounded

WHOLE = st.integers(-(2**70), 2**70) | st.integers(-3, 3).map(lambda n: 2**53 + n)


@given(st.lists(WHOLE | st.sampled_from(["0.5", "1e300", "", "nan"]), max_size=4))
def test_a_whole_number_that_is_rounded_is_found(numbers: list[int | str]) -> None:
    texts = pa.array([str(number) for number in numbers], pa.string())
    rounded = [n for n in numbers if isinstance(n, int) and int(float(n)) != n]
    assert has_rounded(texts) is bool(rounded)
    assert are_whole(texts) is (bool(numbers) and all(isinstance(n, int) for n in numbers))
    values = pa.array([float(n) for n in numbers if n], pa.float64())
    assert may_be_rounded(values) or not rounded


@pytest.mark.parametrize("sign", [1, -1])
def test_smaller_numbers_need_no_look_at_their_text(sign: int) -> None:
    for values in ([], [None], [2.0**53 - 1, 0.0, None], [math.inf], [0.5]):
        signed = [None if value is None else sign * value for value in values]
        assert not may_be_rounded(pa.array(signed, pa.float64()))
    assert may_be_rounded(pa.array([sign * 2.0**53, 0.0]))
