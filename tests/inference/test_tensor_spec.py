"""Inputs and outputs of a model, without Spark and TensorFlow."""

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.inference import tensor_spec
from sparkdl.inference.tensor_spec import (
    TensorSpec,
    arrow_type,
    fit_rows,
    fits,
    to_arrow,
    type_name,
)

OUTPUTS = [
    ((), "float32", "float", [1.5, 2.5]),
    ((1,), "float32", "float", [[1.5], [2.5]]),
    ((1,), "float64", "double", [[1.5], [2.5]]),
    ((2,), "float32", "array<float>", [[1.0, 2.0], [3.0, 4.0]]),
    ((2, 1), "int32", "array<array<int>>", [[[1], [2]], [[3], [4]]]),
    ((None,), "int64", "array<bigint>", [[1, 2], [3, 4]]),
    ((), "uint8", "smallint", [1, 255]),
    ((), "uint32", "bigint", [1, 2**32 - 1]),
    ((), "float16", "float", [1.5, 2.5]),
    ((), "bool", "boolean", [True, False]),
    ((2,), "bool", "array<boolean>", [[True, False], [False, True]]),
]


@pytest.mark.parametrize(("shape", "dtype", "spark_type", "values"), OUTPUTS)
def test_outputs_become_columns(shape: tuple, dtype: str, spark_type: str, values: list) -> None:
    output = TensorSpec("y", shape, dtype)
    assert type_name(output) == spark_type
    array = to_arrow(np.array(values, dtype), output)
    assert array.type == arrow_type(output)
    array.validate(full=True)
    expected = [value[0] for value in values] if shape == (1,) else values
    assert array.to_pylist() == expected


def test_to_arrow_converts_text_and_no_rows() -> None:
    words = TensorSpec("y", (2,), "string")
    values = np.array([[b"a", "ü".encode()]], object)
    assert to_arrow(values, words).to_pylist() == [["a", "ü"]]
    none = to_arrow(np.empty((0, 3), "float32"), TensorSpec("y", (3,), "float32"))
    assert len(none) == 0 and none.type == pa.list_(pa.field("element", pa.float32()))


def test_type_name_refuses_outputs_without_a_spark_type() -> None:
    with pytest.raises(ValueError, match="'y' is complex64"):
        type_name(TensorSpec("y", (), "complex64"))
    with pytest.raises(ValueError, match="rank"):
        type_name(TensorSpec("y", None, "float32"))


@pytest.mark.parametrize(
    ("shape", "target", "is_fit"),
    [
        ((), (), True),
        ((), (1,), True),
        ((1,), (), True),
        ((3,), (3,), True),
        ((3,), (4,), False),
        ((6,), (2, 3), True),
        ((6,), (None, 3), True),
        ((7,), (None, 3), False),
        ((6,), (None, None), False),
        ((2, 3), (6,), True),
        ((None,), (28, 28), True),
        ((None, 2), (5, 3), False),
    ],
)
def test_rows_fit_an_input(shape: tuple, target: tuple, is_fit: bool) -> None:
    assert fits(shape, target) is is_fit
    if is_fit and None not in shape:
        rows = np.arange(5 * np.prod(shape, dtype=int), dtype="float64").reshape(5, *shape)
        reshaped = fit_rows(rows, TensorSpec("x", target, "float32"), np.float32)
        assert reshaped.dtype == np.float32
        assert reshaped.reshape(-1).tolist() == rows.reshape(-1).tolist()
        assert fits(reshaped.shape[1:], target) and reshaped.ndim == 1 + len(target)


def test_fit_rows_refuses_another_number_of_values() -> None:
    with pytest.raises(ValueError, match=r"'x' expects rows of shape \[any, 3\].* have \[7\]"):
        fit_rows(np.zeros((5, 7)), TensorSpec("x", (None, 3), "float32"), np.float32)


def test_fit_rows_refuses_whole_numbers_that_the_dtype_cannot_represent() -> None:
    ids = TensorSpec("ids", (), "int32")
    assert fit_rows(np.array([2**31 - 1]), ids, np.int32).tolist() == [2**31 - 1]
    with pytest.raises(
        ValueError, match=r"'ids' expects int32.* contain 2147483648, which int32 cannot represent"
    ):
        fit_rows(np.array([1, 2**31]), ids, np.int32)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(16_777_217, "float32"), (2**63 - 1, "float32"), (70_000, "float16"), (2**53 + 1, "float64")],
)
def test_fit_rows_refuses_whole_numbers_that_floats_would_round(value: int, dtype: str) -> None:
    ids = TensorSpec("ids", (), dtype)
    assert fit_rows(np.array([2**11, -(2**11)]), ids, np.dtype(dtype)).tolist() == [2**11, -(2**11)]
    with pytest.raises(ValueError, match=rf"contain {value}, which {dtype} cannot represent"):
        fit_rows(np.array([1, value]), ids, np.dtype(dtype))


def test_to_arrow_refuses_more_values_than_a_column_can_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tensor_spec, "_MAX_VALUES", 5)
    output = TensorSpec("y", (2,), "float32")
    assert len(to_arrow(np.zeros((2, 2), "float32"), output)) == 2
    with pytest.raises(ValueError, match=r"'y' has 6 values for 3 rows.*PerBatch below 3"):
        to_arrow(np.zeros((3, 2), "float32"), output)
