"""Runs in the training process. Hold a chunk of a partition, as rows or as columns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types


class Chunk:
    """A sequence of rows that is consumed from the front.

    Args:
        rows: the elements of the RDD.
    """

    def __init__(self, rows: Sequence[Any]) -> None:
        self._rows = rows
        self._position = 0

    def __len__(self) -> int:
        return len(self._rows) - self._position

    def take(self, max_rows: int | None) -> Sequence[Any]:
        """Remove and return the next rows, or all remaining rows if `max_rows` is None."""
        start = self._position
        size = len(self._rows)
        self._position = size if max_rows is None else min(start + max_rows, size)
        if max_rows is None and not start:
            return self._rows
        return self._rows[start : self._position]


class ArrowChunk(Chunk):
    """A chunk of a DataFrame. Each row is a tuple, and arrays in a row are lists.

    Args:
        body: an Arrow stream.
    """

    def __init__(self, body: "bytes | bytearray") -> None:
        self._table = pa.ipc.open_stream(pa.py_buffer(body)).read_all().combine_chunks()
        self._is_whole = True
        super().__init__(())

    def __len__(self) -> int:
        return int(self._table.num_rows) if self._is_whole else super().__len__()

    def take(self, max_rows: int | None) -> Sequence[Any]:
        """Remove and return the next rows; a whole chunk if `max_rows` is None stays columnar."""
        if self._is_whole:
            self._is_whole = False
            if max_rows is None:
                return _ColumnarRows(self._table)
            self._rows = rows_of(self._table)
        return super().take(max_rows)


class _ColumnarRows(Sequence[Any]):
    """The rows of a whole chunk, stored as an Arrow table."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, index: Any) -> Any:
        return rows_of(self.table)[index]


def rows_of(table: pa.Table) -> list[Any]:
    """Return the rows of a table as tuples.

    Example:
        >>> rows_of(pa.table({"x": [[1.0, 2.0], [3.0, 4.0]], "y": [0, None]}))
        [([1.0, 2.0], 0), ([3.0, 4.0], None)]
    """
    return list(zip(*map(_values, table.columns), strict=True))


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column as Python objects; `to_pylist` alone is slow for numbers."""
    array = _combined(column)
    matrix = _matrix(array)
    values: list[Any] = array.to_pylist() if matrix is None else matrix.tolist()
    return values


def _combined(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        return combined.chunk(0) if combined.num_chunks else pa.array([], combined.type)
    return combined


def _matrix(array: pa.Array) -> "np.ndarray[Any, Any] | None":
    """Convert a column of numbers, or of equal-length lists of numbers, to an array.

    Return None for other types and for columns with nulls.
    """
    if array.null_count:
        return None
    if types.is_integer(array.type) or types.is_floating(array.type):
        # `to_numpy` would import pandas, which takes longer than many a partition.
        return np.from_dlpack(array)
    if not (types.is_list(array.type) or types.is_large_list(array.type)) or not len(array):
        return None
    widths = np.diff(np.from_dlpack(array.offsets))
    inner = _matrix(array.flatten())
    if inner is None or (widths != widths[0]).any():
        return None
    return inner.reshape(len(array), int(widths[0]), *inner.shape[1:])


def columns_of(rows: Sequence[Any]) -> list[Any]:
    """Return one array for each part of the rows. A row that is not a tuple has one part.

    Example:
        >>> [part.shape for part in columns_of([([0.5, 1.0], 3), ([1.5, 2.0], 4)])]
        [(2, 2), (2,)]
        >>> [part.shape for part in columns_of([[0.5, 1.0], [1.5, 2.0]])]
        [(2, 2)]
    """
    if isinstance(rows, _ColumnarRows):
        matrices = ((_matrix(_combined(column)), column) for column in rows.table.columns)
        parts = [column.to_pylist() if matrix is None else matrix for matrix, column in matrices]
    elif isinstance(rows[0], tuple):
        parts = list(zip(*rows, strict=True))
    else:
        parts = [rows]
    return [arrays_of(part) for part in parts]


def arrays_of(part: Any) -> "np.ndarray[Any, Any]":
    """Convert one part of the rows to an array for TensorFlow.

    Python floats become float32, as in TensorFlow.

    Example:
        >>> arrays_of([0.5, 1.0]).dtype, arrays_of([b"a\\0"])
        (dtype('float32'), array([b'a\\x00'], dtype=object))
    """
    first = _first(part)
    if isinstance(first, str | bytes | bytearray) and not isinstance(part, np.ndarray):
        # NumPy's dtypes for strings drop trailing zeros, and NumPy reads a bytearray as numbers.
        return np.array([bytes(x) if isinstance(x, bytearray) else x for x in part], object)
    is_python = not isinstance(part, np.ndarray) and not isinstance(first, np.generic)
    array: np.ndarray[Any, Any] = np.asarray(part)
    if array.dtype.kind in "US":
        return array.astype(object)
    return array.astype(np.float32) if is_python and array.dtype == np.float64 else array


def _first(part: Any) -> Any:
    """Return the first scalar in nested lists or in an array, or an empty sequence itself."""
    while isinstance(part, list | tuple) and part:
        part = part[0]
    return part.flat[0] if isinstance(part, np.ndarray) and part.size else part
