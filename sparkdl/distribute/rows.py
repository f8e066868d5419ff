"""Runs anywhere (pure). The rows that each rank gets from a collective."""

import itertools
import math
from collections.abc import Sequence
from typing import Any


def row_slices(count: int, num_slices: int) -> list[slice]:
    """Return consecutive slices of `count` rows; the first ones have one row more than the last.

    Example:
        >>> row_slices(5, 3)
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    width, num_longer = divmod(count, num_slices)
    ends = [width * i + min(i, num_longer) for i in range(num_slices + 1)]
    return [slice(begin, end) for begin, end in itertools.pairwise(ends)]


def split_rows(array: Any, counts: Sequence[int]) -> list[Any]:
    """Return consecutive rows of an array, as views.

    Args:
        array: an array of at least one dimension.
        counts: number of rows of each view.

    Example:
        >>> split_rows("abc", [1, 2])
        ['a', 'bc']
    """
    ends = itertools.accumulate(counts, initial=0)
    return [array[begin:end] for begin, end in itertools.pairwise(ends)]


def check_splits(array: Any, splits: Sequence[int], num_ranks: int) -> None:
    """Validate that the splits of `alltoall` fit an array.

    Raises:
        ValueError: if they do not.
    """
    num_rows = len(array) if array.ndim else None
    if len(splits) != num_ranks or min(splits) < 0 or sum(splits) != num_rows:
        raise ValueError(
            f"alltoall got the splits {list(splits)} for an array of the shape {array.shape}; "
            f"expected {num_ranks} numbers of rows, one for each rank, that add up to the first "
            "dimension. Without splits, the number of ranks must divide it."
        )


def row_bytes(array: Any) -> int:
    """Return the number of bytes of each row of an array, also if it has no rows.

    Args:
        array: an array of at least one dimension.

    Example:
        >>> import numpy as np
        >>> row_bytes(np.zeros((0, 3)))
        24
    """
    return int(math.prod(array.shape[1:]) * array.itemsize)


def check_row_bytes(call: str, widths: Any, num_ranks: int) -> None:
    """Validate that the rows of all ranks are equally long.

    Args:
        call: name of the collective.
        widths: the bytes of a row of each rank, see `row_bytes`.
        num_ranks: number of ranks.

    Raises:
        ValueError: if they are not.
    """
    different = sorted({int(nbytes) for nbytes in widths})
    if len(different) > 1:
        raise ValueError(
            f"{call} got rows of {different} bytes from {num_ranks} ranks; expected arrays that "
            "differ in their first dimension only."
        )
