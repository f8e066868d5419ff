"""What goes into a model and comes out of it, without Spark and TensorFlow."""

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.inference import tensor_spec
from sparkdl.inference.tensor_spec import Tensor, fits, fitted, to_arrow, type_name

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
    output = Tensor("y", shape, dtype)
    assert type_name(output) == spark_type
    array = to_arrow(np.array(values, dtype), output)
    array.validate(full=True)
    expected = [value[0] for value in values] if shape == (1,) else values
    assert array.to_pylist() == expected


def test_text_and_no_rows() -> None:
    words = Tensor("y", (2,), "string")
    values = np.array([[b"a", "ü".encode()]], object)
    assert to_arrow(values, words).to_pylist() == [["a", "ü"]]
    none = to_arrow(np.empty((0, 3), "float32"), Tensor("y", (3,), "float32"))
    assert len(none) == 0 and none.type == pa.list_(pa.field("element", pa.float32()))


def test_what_spark_has_no_column_for() -> None:
    with pytest.raises(ValueError, match="'y' is complex64"):
        type_name(Tensor("y", (), "complex64"))
    with pytest.raises(ValueError, match="rank"):
        type_name(Tensor("y", None, "float32"))


@pytest.mark.parametrize(
    ("shape", "wanted", "fit"),
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
def test_rows_fit_an_input(shape: tuple, wanted: tuple, fit: bool) -> None:
    assert fits(shape, wanted) is fit
    if fit and None not in shape:
        rows = np.arange(5 * np.prod(shape, dtype=int), dtype="float64").reshape(5, *shape)
        given = fitted(rows, Tensor("x", wanted, "float32"), np.float32)
        assert given.dtype == np.float32
        assert given.reshape(-1).tolist() == rows.reshape(-1).tolist()
        assert fits(given.shape[1:], wanted) and given.ndim == 1 + len(wanted)


def test_rows_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"'x' takes rows of shape \[any, 3\].* give \[7\]"):
        fitted(np.zeros((5, 7)), Tensor("x", (None, 3), "float32"), np.float32)


def test_whole_numbers_that_an_input_cannot_hold_are_an_error() -> None:
    ids = Tensor("ids", (), "int32")
    assert fitted(np.array([2**31 - 1]), ids, np.int32).tolist() == [2**31 - 1]
    with pytest.raises(ValueError, match=r"'ids' takes int32.* hold 2147483648, which is none"):
        fitted(np.array([1, 2**31]), ids, np.int32)


def test_more_values_than_a_column_holds_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_spec, "_MOST_VALUES", 5)
    output = Tensor("y", (2,), "float32")
    assert len(to_arrow(np.zeros((2, 2), "float32"), output)) == 2
    with pytest.raises(ValueError, match=r"'y' has 6 values for 3 rows.*PerBatch below 3"):
        to_arrow(np.zeros((3, 2), "float32"), output)
