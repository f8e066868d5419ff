"""Runs in the training process. Cut blocks of NumPy arrays into batches of equal size."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sparkdl.data.nested import leaves, map_leaves
from sparkdl.data.ragged import Ragged


def rebatched(blocks: Iterator[Any], batch_size: int, drop_remainder: bool) -> Iterator[Any]:
    """Yield batches of one size; a batch within one block is a view of the block.

    Args:
        blocks: elements of any number of rows, of one structure.
        batch_size: number of rows in a batch.
        drop_remainder: leave out the last batch if it has fewer rows.

    Example:
        >>> blocks = [{"i": np.array([0, 1, 2])}, {"i": np.array([3, 4])}]
        >>> [batch["i"].tolist() for batch in rebatched(iter(blocks), 2, False)]
        [[0, 1], [2, 3], [4]]
    """
    parts: list[list[Any]] = []
    num_held, block = 0, None
    for block in blocks:
        arrays = list(leaves(block))
        begin = 0
        rows = len(arrays[0])
        while num_held + rows - begin >= batch_size:
            end = begin + batch_size - num_held
            yield concatenate(block, [*parts, [array[begin:end] for array in arrays]])
            parts = []
            num_held = 0
            begin = end
        if begin < rows:
            parts.append([array[begin:] for array in arrays])
            num_held += rows - begin
    if parts and not drop_remainder:
        yield concatenate(block, parts)


def concatenate(structure: Any, parts: Sequence[Sequence[Any]]) -> Any:
    """Return the rows of all parts in a structure of arrays.

    Args:
        structure: an element of the structure.
        parts: the arrays of each part, in the order of `leaves`.
    """
    columns = iter([_concatenated(column) for column in zip(*parts, strict=True)])
    return map_leaves(lambda _: next(columns), structure)


def _concatenated(arrays: Sequence[Any]) -> Any:
    if len(arrays) == 1:
        return arrays[0]
    if isinstance(arrays[0], Ragged):
        return Ragged.concatenate(arrays)
    return np.concatenate(arrays)
