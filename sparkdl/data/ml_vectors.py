"""Runs anywhere (pure). Columns of Spark ML vectors, dense and sparse, as Parquet files have them.

Spark stores a vector as a struct: `type` 0 with `size`, `indices` and `values` for a sparse one,
and `type` 1 with `values` for a dense one. Source: `pyspark/ml/linalg/__init__.py` of
pyspark 4.1.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sparkdl.data.exact_numbers import first_inexact

_FIELDS = ("type", "size", "indices", "values")
_SPARSE = 0
# The smallest number that float32 rounds to infinity.
TOO_LARGE = 2.0**128 - 2.0**103


def is_vector(kind: pa.DataType) -> bool:
    """Return True for the type of a column of vectors.

    Example:
        >>> is_vector(pa.struct({"type": pa.int8(), "size": pa.int32()}))
        False
    """
    if not types.is_struct(kind) or tuple(field.name for field in kind) != _FIELDS:
        return False
    of_type, size, indices, values = (field.type for field in kind)
    are_numbers = types.is_integer(of_type) and types.is_integer(size)
    are_lists = types.is_list(indices) and types.is_list(values)
    return bool(are_numbers and are_lists and types.is_floating(values.value_type))


def to_lists(vectors: pa.StructArray, name: str) -> pa.ListArray:
    """Return vectors as lists of float32, with the zeros of sparse ones.

    Args:
        vectors: the vectors; a null stays a null.
        name: the column's name in messages.

    Raises:
        ValueError: if an index is not within the size of its vector, or a finite number is too
            large for float32.

    Example:
        >>> kind = pa.struct({"type": pa.int8(), "size": pa.int32(),
        ...     "indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())})
        >>> sparse = {"type": 0, "size": 3, "indices": [1], "values": [5.0]}
        >>> to_lists(pa.array([sparse, {"type": 1, "values": [1.0]}], kind), "v").to_pylist()
        [[0.0, 5.0, 0.0], [1.0]]
    """
    of_type, size, indices, values = vectors.flatten()
    is_sparse = _numbers(of_type, 1) == _SPARSE
    num_values = _numbers(pc.list_value_length(values))
    lengths = np.where(is_sparse, _numbers(size), num_values)
    ends = np.cumsum(lengths)
    numbers = np.zeros(int(lengths.sum()), np.float32)
    first_values = np.cumsum(num_values) - num_values
    # The place of each value in its vector: that of its order, or its index.
    places = np.arange(num_values.sum()) - np.repeat(first_values, num_values)
    num_indices = _numbers(pc.list_value_length(indices))
    if (num_indices != num_values)[is_sparse].any():
        raise ValueError(f"column {name!r}: a sparse vector has fewer or more indices than values.")
    places[np.repeat(is_sparse, num_values)] = indices.flatten().to_numpy()
    if (places < 0).any() or (places >= np.repeat(lengths, num_values)).any():
        raise ValueError(f"column {name!r}: an index of a sparse vector is not within its size.")
    exact = values.flatten().to_numpy()
    if (value := first_inexact(exact, np.float32)) is not None:
        raise ValueError(too_large_message(name, value))
    numbers[np.repeat(ends - lengths, num_values) + places] = exact
    nulls = vectors.is_null() if vectors.null_count else None
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(numbers), mask=nulls)


def too_large_message(name: str, value: Any) -> str:
    """Return the error message for a number that a tensor of vectors cannot represent.

    Args:
        name: the name of the column.
        value: the number.
    """
    return (
        f"column {name!r}: vectors become float32. Scale the column, or convert it by "
        f"vector_to_array(column), which keeps doubles. Too large for float32: {value}"
    )


def _numbers(array: pa.Array, of_null: int = 0) -> "np.ndarray[Any, Any]":
    numbers: np.ndarray[Any, Any] = array.fill_null(of_null).to_numpy(zero_copy_only=False)
    return numbers.astype(np.int64)
