"""Runs anywhere (pure). Arrays whose rows differ in length."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths, as all their values and the places where rows begin.

    This is the layout of Arrow's lists, of `tf.RaggedTensor` and of PyTorch's jagged tensors.

    Attributes:
        values: the values of all rows, one after the other.
        offsets: for each ragged dimension, the outermost first: where each of its parts begins,
            and where the last one ends (parts + 1,).
        pad: value with which the rows of a batch are filled up to equal lengths; None keeps the
            lengths.

    Example:
        >>> Ragged(np.array([1, 2, 3]), (np.array([0, 2, 2, 3]),)).to_list()
        [[1, 2], [], [3]]
    """

    values: "np.ndarray[Any, Any]"
    offsets: tuple["np.ndarray[Any, Any]", ...]
    pad: Any = None

    @classmethod
    def from_lengths(cls, values: Any, lengths: Sequence[Any], pad: Any = None) -> "Ragged":
        """Create from the number of parts in each part of a dimension, the outermost first."""
        starts = (np.concatenate(([0], np.cumsum(each, dtype=np.int64))) for each in lengths)
        return cls(values, tuple(starts), pad)

    @classmethod
    def concatenate(cls, parts: Sequence["Ragged"]) -> "Ragged":
        """Return the rows of all parts, one part after the other."""
        depth = len(parts[0].offsets)
        lengths = [np.concatenate([np.diff(p.offsets[i]) for p in parts]) for i in range(depth)]
        values = np.concatenate([part.values for part in parts])
        return cls.from_lengths(values, lengths, parts[0].pad)

    def __len__(self) -> int:
        return len(self.offsets[0]) - 1

    def __getitem__(self, rows: slice) -> "Ragged":
        start, stop, _ = rows.indices(len(self))
        offsets = []
        for of_dimension in self.offsets:
            part = of_dimension[start : stop + 1]
            start, stop = int(part[0]), int(part[-1])
            offsets.append(part - start)
        return Ragged(self.values[start:stop], tuple(offsets), self.pad)

    def rows(self) -> "np.ndarray[Any, Any]":
        """Return an array (rows,) of objects: the array of each row, views of the values."""
        inner = Ragged(self.values, self.offsets[1:]) if len(self.offsets) > 1 else self.values
        rows = np.empty(len(self), object)
        bounds = self.offsets[0].tolist()
        for row in range(len(rows)):
            part = inner[bounds[row] : bounds[row + 1]]
            rows[row] = part.rows() if isinstance(part, Ragged) else part
        return rows

    def padded(self) -> "np.ndarray[Any, Any]":
        """Return an array (rows, longest, ...) in which shorter rows end with the value `pad`.

        Example:
            >>> Ragged(np.array([1, 2, 3]), (np.array([0, 2, 2, 3]),), pad=0).padded().tolist()
            [[1, 2], [0, 0], [3, 0]]
        """
        inner = self.values
        if len(self.offsets) > 1:
            inner = Ragged(self.values, self.offsets[1:], self.pad).padded()
        lengths = np.diff(self.offsets[0])
        shape = len(lengths), lengths.max(initial=0), *inner.shape[1:]
        padded = np.full(shape, self.pad, inner.dtype)
        padded[np.arange(shape[1]) < lengths[:, None]] = inner
        return padded

    def to_list(self) -> list[Any]:
        """Return the rows as lists."""

        def plain(array: Any) -> Any:
            return [plain(part) if isinstance(part, np.ndarray) else part for part in array]

        return [plain(row.tolist()) for row in self.rows()]
