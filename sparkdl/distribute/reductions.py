"""Runs in the training process. Reduce arrays of several ranks, whole or block by block.

Every rank adds in the same order, that of the ring, so that the results have the same bits.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparkdl.distribute.call_header import OPERATIONS
from sparkdl.distribute.operands import block_slices, bytes_of
from sparkdl.distribute.shared_memory import BLOCK_BYTES

_UFUNCS: dict[str, Any] = dict(
    zip(OPERATIONS, (np.add, np.add, np.minimum, np.maximum, np.multiply), strict=True)
)


def reduce_arrays(arrays: Sequence[Any], out: Any, op: str) -> None:
    """Reduce the arrays of all ranks.

    Args:
        arrays: flat arrays, in ring order.
        out: flat array for the result.
        op: one of OPERATIONS.
    """
    size = len(arrays)
    if has_whole_mean(out.dtype, op):
        pairs = [quotients_and_remainders(array, size) for array in arrays]
        out[...] = whole_mean(sum(q for q, _ in pairs), sum(r for _, r in pairs), size)
        return
    out[...] = arrays[0]
    for count, values in enumerate(arrays[1:], start=1):
        accumulate_values(out, values, count, op, out)
    finish(out, size, op)


def accumulate_values(
    total: Any, values: Any, count: int, op: str, out: Any, num_more: int = 1
) -> None:
    """Combine the values of some ranks with those of other ranks.

    Args:
        total: what has been accumulated.
        values: the values of one more rank, or what has been accumulated of several.
        count: number of ranks whose values `total` has.
        op: one of OPERATIONS.
        out: array for the result.
        num_more: number of ranks whose values `values` has.
    """
    if _has_running_mean(total.dtype, op):
        share = np.float32(num_more / (count + num_more))
        mean = total.astype(np.float32) * np.float32(count / (count + num_more))
        mean += values.astype(np.float32) * share
        out[...] = mean.astype(out.dtype)
    else:
        _UFUNCS[op](total, values, out=out)


def finish(total: Any, size: int, op: str) -> None:
    """Turn the accumulated values of all ranks into the result, in place.

    Args:
        total: the accumulated values.
        size: number of ranks.
        op: one of OPERATIONS.
    """
    if op == "mean" and not _has_running_mean(total.dtype, op):
        np.true_divide(total, total.dtype.type(size), out=total)


def _has_running_mean(dtype: Any, op: str) -> bool:
    """Return True if a mean is accumulated as the mean of the ranks so far.

    The sum of float16 and bfloat16 values may overflow where their mean does not, and a sum in a
    wider type would double the bytes that travel. A mean of some of the ranks always fits, and is
    rounded as precisely as their sum would be.
    """
    return op == "mean" and dtype.itemsize <= 2 and not has_whole_mean(dtype, op)


def has_whole_mean(dtype: Any, op: str) -> bool:
    """Return True if the result is a mean of integers, see `quotients_and_remainders`."""
    return op == "mean" and dtype.kind in "iu"


def quotients_and_remainders(array: Any, size: int) -> Any:
    """Return the integers divided by the number of ranks: quotients and remainders.

    The sums of both over the ranks give the mean, see `whole_mean`. A sum of the integers
    themselves might overflow. Both are of the dtype of the integers, or of the next wider one that
    can hold the sum of the remainders.
    """
    largest = size * (size - 1)
    sums = np.min_scalar_type(largest if array.dtype.kind == "u" else -largest)
    wide = np.result_type(array.dtype, sums)
    return np.divmod(array.astype(wide, copy=False), wide.type(size))


def whole_mean(quotients: Any, remainders: Any, size: int) -> Any:
    """Return the mean of integers, rounded down.

    Args:
        quotients, remainders: sums over all ranks, see `quotients_and_remainders`. The sum of
            quotients may wrap around; adding the remainders wraps it back, because the mean fits.
        size: number of ranks.
    """
    return quotients + remainders // size


def reducing_blocks(
    flat: Any,
    result: Any,
    schedule: Sequence[slice],
    gathered: Sequence[slice],
    op: str,
    num_ranks: int,
    block_bytes: int = BLOCK_BYTES,
) -> tuple[list[Any], list[Any], int, Callable[[int, Any], None]]:
    """Return the blocks by which a ring reduces a flat array, see `Links.exchange`.

    Args:
        flat: the values of this rank, or of as many ranks as those of each other rank.
        result: flat array for the result.
        schedule: parts of the array, one for each rank. This rank sends them in this order, the
            first with its own values alone. To each of the others it adds its own values first;
            the last is complete then.
        gathered: the complete parts that come then, of which this rank passes on all but the last.
        op: one of OPERATIONS; `sum` for a mean of integers, see `quotients_and_remainders`.
        num_ranks: number of ranks whose values the result has.
        block_bytes: the most bytes of a block.

    Returns:
        `sends`, `receives`, `num_ready` and `arrived`.
    """
    size, block_items = len(schedule), max(1, block_bytes // flat.itemsize)
    blocks = [block_slices(part, block_items) for part in (*schedule, *gathered)]
    sources = [flat] + [result] * (len(blocks) - 2)
    sends = [bytes_of(s, b) for s, part in zip(sources, blocks, strict=False) for b in part]
    # The part of place s arrives with the values of s ranks.
    to_add = [(block, s) for s in range(1, size) for block in blocks[s]]
    first_complete = len(to_add) - len(blocks[size - 1])
    receives: list[Any] = [(b.stop - b.start) * flat.itemsize for b, _ in to_add]
    receives += [bytes_of(result, b) for part in blocks[size:] for b in part]

    def arrived(number: int, received: Any) -> None:
        if number < len(to_add):
            block, count = to_add[number]
            total = result[block]
            accumulate_values(received.view(flat.dtype), flat[block], count, op, total)
            if number >= first_complete:
                finish(total, num_ranks, op)

    return sends, receives, len(blocks[0]), arrived
