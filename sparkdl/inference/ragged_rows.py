"""Runs anywhere (pure). Rows of different lengths, padded to arrays, and cut out of them again."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.data.arrow_arrays import to_array
from sparkdl.data.schema import Column

Array = Any  # np.ndarray, whose first axis counts the rows.


@dataclass(frozen=True)
class RaggedRows:
    """Rows of different lengths, as `tf.RaggedTensor` has them.

    Attributes:
        values: the values of all rows, one row after the other.
        lengths: for each axis of variable length, the outermost first, the length of every part.

    Example:
        >>> rows = RaggedRows(np.array([1, 2, 3]), (np.array([2, 0, 1]),))
        >>> rows.padded(9).tolist()
        [[1, 2], [9, 9], [3, 9]]
    """

    values: Array
    lengths: tuple[Array, ...]

    def __len__(self) -> int:
        return len(self.lengths[0])

    def padded(self, value: Any, shape: Sequence[int | None] = ()) -> Array:
        """Return an array in which shorter rows end with `value`; its axes are never empty.

        A network with a mask can take a row of padding alone, but no axis of length 0.

        Args:
            value: the value that fills up.
            shape: the shape of a row, with None for an axis as long as its longest part.
        """
        array = self.values
        sizes = (*shape, *(None,) * len(self.lengths))
        for size, lengths in reversed(list(zip(sizes, self.lengths, strict=False))):
            width = size or padded_width(lengths)
            if (lengths == width).all():
                array = array.reshape(len(lengths), width, *array.shape[1:])
                continue
            padded = np.full((len(lengths), width, *array.shape[1:]), value, array.dtype)
            padded[np.arange(width) < lengths[:, None]] = array
            array = padded
        return array

    @classmethod
    def cut(cls, array: Array, lengths: Array) -> "RaggedRows":
        """Return the rows of a padded array without their padding.

        Args:
            array: the rows, of shape (rows, width, ...).
            lengths: the length of each row.
        """
        return cls(array[np.arange(array.shape[1]) < lengths[:, None]], (lengths,))


def padded_width(lengths: Array) -> int:
    """Return the length to which rows of these lengths are padded, which is at least 1."""
    return int(max(1, lengths.max(initial=0)))


def from_arrow(
    values: pa.Array, column: Column, shape: Sequence[int | None], depth: int
) -> RaggedRows:
    """Convert a column of arrays.

    Args:
        values: the column's values.
        column: how the column becomes an array.
        shape: the shape of a row, with None for a variable length. A column of flat arrays may
            have rows of several axes, of which only the first is variable.
        depth: the number of axes of a row that are kept as lengths.

    Raises:
        ValueError: if there is a null, or an array whose length is not that of `shape`.
    """
    flat = values
    lengths = []
    for _ in range(column.depth):
        lengths.append(outer_lengths(flat, column))
        flat = flat.flatten()
    array = to_array(flat, replace(column, depth=0))
    if len(shape) > column.depth:
        inner = prod(n for n in shape[1:] if n)
        _check(lengths[0] % inner, 0, column, f"a multiple of {inner}")
        lengths[0] = lengths[0] // inner
    else:
        for size, axis_lengths in zip(shape, lengths, strict=True):
            if size is not None:
                _check(axis_lengths, size, column, str(size))
    return RaggedRows(array.reshape(-1, *shape[depth:]), tuple(lengths[:depth]))


def outer_lengths(values: pa.Array, column: Column) -> Array:
    """Return the number of elements in each array of a column.

    Raises:
        ValueError: if there is a null.
    """
    if values.null_count:
        raise ValueError(
            f"column {column.name!r} has {values.null_count} nulls among {len(values)} arrays. "
            "Drop these rows (df.na.drop); an array that is null as a whole cannot be filled."
        )
    return pc.list_value_length(values).to_numpy(zero_copy_only=False).astype(np.int64)


def _check(found: Array, expected: int, column: Column, description: str) -> None:
    if (found != expected).any():
        raise ValueError(
            f"column {column.name!r} has an array of another length than the model's input, which "
            f"expects {description} values. Make the arrays of that length, or drop these rows."
        )


def concatenate(parts: Sequence[Any]) -> Any:
    """Return the rows of several arrays or `RaggedRows`, one part after the other.

    The result is an array if all parts are arrays of one width.

    Args:
        parts: at least one part.
    """
    is_dense = all(isinstance(part, np.ndarray) for part in parts)
    if is_dense and len({part.shape[1:] for part in parts}) == 1:
        return np.concatenate(parts)
    depth = max(len(part.lengths) if isinstance(part, RaggedRows) else 1 for part in parts)
    ragged = [_with_levels(part, depth) for part in parts]
    while len({part.values.shape[1:] for part in ragged}) > 1:  # Inner axes differ, too.
        depth += 1
        ragged = [_with_levels(part, depth) for part in ragged]
    levels = zip(*(part.lengths for part in ragged), strict=True)
    return RaggedRows(
        np.concatenate([part.values for part in ragged]),
        tuple(np.concatenate(level) for level in levels),
    )


def _with_levels(rows: Any, depth: int) -> RaggedRows:
    """Return an array or `RaggedRows` with lengths for this number of axes."""
    is_ragged = isinstance(rows, RaggedRows)
    values, levels = (rows.values, rows.lengths) if is_ragged else (rows, ())
    while len(levels) < depth:
        count, width, *inner = values.shape
        levels = (*levels, np.full(count, width, np.int64))
        values = values.reshape(count * width, *inner)
    return RaggedRows(values, levels)
