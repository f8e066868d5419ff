"""Vectors of Spark ML as Parquet files have them, dense and sparse."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.data.arrow_arrays import inner_shape, to_array
from sparkdl.data.ml_vectors import TOO_LARGE, is_vector, to_lists
from sparkdl.data.schema import UnsupportedType, column

KIND = pa.struct(
    {
        "type": pa.int8(),
        "size": pa.int32(),
        "indices": pa.list_(pa.int32()),
        "values": pa.list_(pa.float64()),
    }
)


def sparse(size: int, values: dict[int, float]) -> dict[str, Any]:
    return {"type": 0, "size": size, "indices": list(values), "values": list(values.values())}


def dense(*values: float) -> dict[str, Any]:
    return {"type": 1, "size": None, "indices": None, "values": list(values)}


VECTORS = pa.array(
    [dense(9, 9), sparse(3, {2: 5.0}), dense(1, 2, 3), sparse(3, {}), sparse(3, {0: 1, 1: 2})], KIND
)


def test_dense_and_sparse_vectors_become_arrays_also_of_a_slice() -> None:
    expected = [[0, 0, 5], [1, 2, 3], [0, 0, 0], [1, 2, 0]]
    assert to_lists(VECTORS, "v").to_pylist() == [[9, 9], *expected]
    conversion = column(pa.field("v", KIND))
    part = VECTORS.slice(1)
    assert inner_shape(part, conversion) == (3,)
    array = to_array(part, conversion, (3,))
    assert array.tolist() == expected and array.dtype == np.float32
    assert to_array(VECTORS.slice(2, 0), conversion, (3,)).shape == (0, 3)
    with pytest.raises(ValueError, match="an array has 3 values, the first one has 2"):
        to_array(VECTORS, conversion, (2,))
    padded = to_array(VECTORS, column(pa.field("v", KIND), pad={"v": -1}))
    assert padded.padded()[:2].tolist() == [[9, 9, -1], [0, 0, 5]]


def test_a_null_vector_is_refused() -> None:
    with_null = pa.array([sparse(2, {1: 1.0}), None, dense(1, 2)], KIND)
    assert to_lists(with_null, "v").to_pylist() == [[0, 1], None, [1, 2]]
    with pytest.raises(ValueError, match="column 'v' has 1 nulls among 3 values"):
        to_array(with_null, column(pa.field("v", KIND)), (2,))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("type", pa.float64()),
        ("size", pa.string()),
        ("indices", pa.int32()),
        ("values", pa.float64()),
        ("values", pa.list_(pa.int64())),
        ("more", pa.int8()),
    ],
)
def test_a_struct_of_other_fields_is_no_vector(name: str, kind: pa.DataType) -> None:
    assert is_vector(KIND)
    assert not is_vector(pa.struct({**{f.name: f.type for f in KIND}, name: kind}))
    assert not is_vector(kind)


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_outside_of_its_vector_is_refused(index: int) -> None:
    with pytest.raises(ValueError, match="'v': an index of a sparse vector is not within"):
        to_lists(pa.array([sparse(3, {index: 1.0}), sparse(3, {})], KIND), "v")


def test_a_finite_number_stays_finite() -> None:
    largest = float(np.finfo(np.float32).max)
    rounded, too_large = np.nextafter(TOO_LARGE, 0), np.nextafter(TOO_LARGE, np.inf)
    fine = pa.array([dense(largest, -rounded), sparse(2, {0: np.inf, 1: np.nan})], KIND)
    (first, second) = to_lists(fine, "v").to_pylist()
    assert first == [largest, -largest] and second[0] == np.inf and np.isnan(second[1])
    for value in (TOO_LARGE, -TOO_LARGE, too_large, 1e300):
        with pytest.raises(ValueError, match="column 'v': vectors become float32"):
            to_lists(pa.array([dense(0), sparse(9, {4: value})], KIND), "v")


def test_other_structs_are_none() -> None:
    other = pa.struct({"type": pa.int8(), "values": pa.list_(pa.float64())})
    assert is_vector(KIND) and not is_vector(other) and not is_vector(pa.float32())
    with pytest.raises(UnsupportedType, match="cannot become a tensor"):
        column(pa.field("v", other))
