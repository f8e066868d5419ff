"""Versions and row splits of requests: only those are taken that a model can have."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.serving.request_checks import check_splits, version_number
from sparkdl.serving.request_error import RequestError
from sparkdl.serving.signatures import Signature, TensorInfo

SPLITS = st.lists(st.integers(-1, 4), max_size=5)


def signature(num_splits: int) -> Signature:
    splits = [TensorInfo(f"x_{n}", "int64", (None,)) for n in range(1, num_splits + 1)]
    infos = [TensorInfo("x", "float32", (None,)), *splits]
    return Signature(name="serving_default", inputs={info.name: info for info in infos}, outputs={})


def is_accepted(arrays: dict[str, Any]) -> bool:
    try:
        check_splits(signature(len(arrays) - 1), arrays)
    except RequestError as exc:
        assert exc.status == 400
        return False
    return True


def fits(splits: list[int], num_parts: int) -> bool:
    """The rule of TensorFlow's guide to ragged tensors."""
    return bool(splits) and splits == sorted(splits) and (splits[0], splits[-1]) == (0, num_parts)


@given(SPLITS, st.integers(0, 4))
def test_splits_ascend_from_0_to_the_number_of_values(splits: list[int], size: int) -> None:
    arrays = {"x": np.zeros(size), "x_1": np.array(splits, np.int64)}
    assert is_accepted(arrays) is fits(splits, size)


@given(SPLITS, SPLITS, st.integers(0, 4))
def test_outer_splits_end_with_the_number_of_inner_parts(
    outer: list[int], inner: list[int], size: int
) -> None:
    arrays = {"x_1": np.array(outer, np.int64), "x_2": np.array(inner, np.int64)}
    expected = fits(inner, size) and fits(outer, len(inner) - 1)
    assert is_accepted({"x": np.zeros(size), **arrays}) is expected


@pytest.mark.parametrize("splits", [np.array(0), np.array([[0, 0]])])
def test_splits_that_are_no_list_and_values_without_rows_are_refused(splits: Any) -> None:
    assert not is_accepted({"x": np.zeros(0), "x_1": splits})
    assert not is_accepted({"x": np.array(1.0), "x_1": np.array([0, 1])})


@pytest.mark.parametrize("text", ["0", "7", str(2**63 - 1)])
def test_the_number_of_a_version_is_one_of_64_bits(text: str) -> None:
    assert version_number(text) == int(text)
    assert version_number(None) is None


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "1.0", "1_0", "x", "\u00b2", str(2**63), "9" * 5000]
)
def test_a_text_that_is_no_number_of_a_version_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="Failed to convert version") as caught:
        version_number(text)
    assert caught.value.status == 400
