"""Requests with ragged inputs, which TensorFlow stores as values and row splits."""

from typing import Any

import numpy as np
import pytest

from sparkdl.serving.predict_format import read, rows_of
from sparkdl.serving.request_error import RequestError
from sparkdl.serving.signatures import Signature, TensorInfo

# The export of a function of a ragged tensor `x`.
RAGGED = Signature(
    name="serving_default",
    inputs={
        "x": TensorInfo("x", "float32", (None,)),
        "x_1": TensorInfo("x_1", "int64", (None,)),
    },
    outputs={},
)


@pytest.mark.parametrize("key", ["instances", "inputs"])
def test_rows_of_different_lengths_become_values_and_row_splits(key: str) -> None:
    request = read({key: [[1.0, 2.0], [], [3.0]]}, RAGGED)
    assert request.is_rows is (key == "instances")
    assert {name: array.tolist() for name, array in request.arrays.items()} == {
        "x": [1.0, 2.0, 3.0],
        "x_1": [0, 2, 2, 3],
    }
    assert request.arrays["x_1"].dtype == np.int64


@pytest.mark.parametrize("rows", [[1.0, 2.0], [[1.0], 2.0]])
def test_ragged_input_is_a_list_of_lists(rows: list[Any]) -> None:
    with pytest.raises(RequestError, match="input 'x' is ragged; expected a list of lists"):
        read({"instances": rows}, RAGGED)


def test_rows_are_those_of_the_first_input_that_has_any() -> None:
    assert rows_of({"a": np.zeros(()), "b": np.zeros((3, 2))}) == 3
    assert rows_of({"a": np.zeros(())}) == rows_of({}) == 1
