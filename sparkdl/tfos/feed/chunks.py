"""Runs in the training process.

A piece of a partition as it came from Spark: its rows, or its columns.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

__all__ = ["ArrowChunk", "Chunk", "arrays_of", "columns_of", "rows_of"]


class Chunk:
    """Rows that are taken from the front.

    Args:
        rows: as the RDD has them.
    """

    def __init__(self, rows: Sequence[Any]) -> None:
        self._rows, self._at = rows, 0

    def __len__(self) -> int:
        return len(self._rows) - self._at

    def take(self, most: int | None) -> Sequence[Any]:
        """The next rows, all of them where `most` is None."""
        begin = self._at
        self._at = len(self._rows) if most is None else min(begin + most, len(self._rows))
        return self._rows[begin : self._at] if begin or most is not None else self._rows


class ArrowChunk(Chunk):
    """Rows of a DataFrame; each is a tuple, arrays in it are lists.

    Args:
        body: an Arrow stream.
    """

    def __init__(self, body: "bytes | bytearray") -> None:
        self._table = pa.ipc.open_stream(pa.py_buffer(body)).read_all().combine_chunks()
        self._is_whole = True
        super().__init__(())

    def __len__(self) -> int:
        return int(self._table.num_rows) if self._is_whole else super().__len__()

    def take(self, most: int | None) -> Sequence[Any]:
        """The next rows; all of them as a table of Arrow where `most` is None."""
        if self._is_whole:
            self._is_whole = False
            if most is None:
                return _Table(self._table)
            self._rows = rows_of(self._table)
        return super().take(most)


class _Table(Sequence[Any]):
    """A whole chunk in columns."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, place: Any) -> Any:
        return rows_of(self.table)[place]


def rows_of(table: pa.Table) -> list[Any]:
    """The rows of a table.

    Example:
        >>> rows_of(pa.table({"x": [[1.0, 2.0], [3.0, 4.0]], "y": [0, None]}))
        [([1.0, 2.0], 0), ([3.0, 4.0], None)]
    """
    return list(zip(*map(_values, table.columns), strict=True))


def _values(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column as Python has them; of numbers much faster than Arrow's own way."""
    array = _combined(column)
    if (found := _matrix(array)) is not None:
        values: list[Any] = found.tolist()
        return values
    listed: list[Any] = array.to_pylist()
    return listed


def _combined(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    if isinstance(found, pa.ChunkedArray):
        return found.chunk(0) if found.num_chunks else pa.array([], found.type)
    return found


def _matrix(array: pa.Array) -> "np.ndarray[Any, Any] | None":
    """Numbers, or lists of equally many, as an array; None of anything else, and of nulls."""
    if array.null_count:
        return None
    if types.is_integer(array.type) or types.is_floating(array.type):
        plain: np.ndarray[Any, Any] = array.to_numpy(zero_copy_only=False)
        return plain
    if not (types.is_list(array.type) or types.is_large_list(array.type)) or not len(array):
        return None
    widths = np.diff(array.offsets.to_numpy())
    inner = _matrix(array.flatten())
    if inner is None or (widths != widths[0]).any():
        return None
    return inner.reshape(len(array), int(widths[0]), *inner.shape[1:])


def columns_of(rows: Sequence[Any]) -> list[Any]:
    """What each part of the rows is, an array or a list; a row that is a list is one part.

    Example:
        >>> [part.shape for part in columns_of([([0.5, 1.0], 3), ([1.5, 2.0], 4)])]
        [(2, 2), (2,)]
        >>> [part.shape for part in columns_of([[0.5, 1.0], [1.5, 2.0]])]
        [(2, 2)]
    """
    if isinstance(rows, _Table):
        matrices = ((_matrix(_combined(c)), c) for c in rows.table.columns)
        parts = [c.to_pylist() if found is None else found for found, c in matrices]
    elif isinstance(rows[0], tuple):
        parts = list(zip(*rows, strict=True))
    else:
        parts = [rows]
    return [arrays_of(part) for part in parts]


def arrays_of(part: Any) -> "np.ndarray[Any, Any]":
    """One part of some rows as TensorFlow takes it: Python's floats are float32, as there.

    Example:
        >>> arrays_of([0.5, 1.0]).dtype, arrays_of([b"a\\0"])
        (dtype('float32'), array([b'a\\x00'], dtype=object))
    """
    first = _first(part)
    if isinstance(first, str | bytes | bytearray) and not isinstance(part, np.ndarray):
        # NumPy's types for texts cut off zeros at their ends; a bytearray is numbers to it.
        return np.array([bytes(x) if isinstance(x, bytearray) else x for x in part], object)
    is_python = not isinstance(part, np.ndarray) and not isinstance(first, np.generic)
    array: np.ndarray[Any, Any] = np.asarray(part)
    if array.dtype.kind in "US":
        return array.astype(object)
    return array.astype(np.float32) if is_python and array.dtype == np.float64 else array


def _first(part: Any) -> Any:
    """The first number in lists of lists, or the first array."""
    while isinstance(part, list | tuple) and part:
        part = part[0]
    return part.flat[0] if isinstance(part, np.ndarray) and part.size else part
