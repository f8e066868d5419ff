"""Runs anywhere (pure). The order of a rank's rows in a pass, and the rows that steps have used.

After a restart, rows arrive in another order, and at other ranks. So each start of a training keeps
a list of the hashes of each rank's rows, see `row_hashes`. The order in which a rank reads its list
follows from the seed, the number of the epoch and the number of the rows. The lists of all starts
in an epoch so tell how often each row was used, whatever ranks have used it. Of equal rows, any may
be left: it makes no difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.data.data_state import DataState
from sparkdl.data.lanes import MAX_LANES
from sparkdl.data.shard import balance

# Rows next to each other in the order of arrival that stay in the same window of a shuffled pass.
SLICE_ROWS = 256

Hashes = np.ndarray[Any, np.dtype[np.uint64]]
Places = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, eq=False)
class Start:
    """The rows of all ranks from one start of the training to the next.

    Attributes:
        lists: the hashes (rows,) of the rows of each rank.
        windows: for each rank, the number of rows that it shuffles together; None keeps the order.
    """

    lists: Sequence[Hashes]
    windows: Sequence[int | None]


def pass_order(rows: int, window_rows: int | None, seed: Sequence[int]) -> Places:
    """Return the order in which a rank reads its rows, an array (rows,) of their places.

    Slices of rows that have arrived together come in random order; windows of them are shuffled.

    Args:
        rows: number of rows.
        window_rows: number of rows that are shuffled together; None keeps the order.
        seed: the seed of the order.

    Example:
        >>> pass_order(3, None, seed=[0]).tolist(), sorted(pass_order(3, 2, seed=[0]).tolist())
        ([0, 1, 2], [0, 1, 2])
    """
    if window_rows is None:
        return np.arange(rows)
    random = np.random.default_rng(seed)
    size = max(min(SLICE_ROWS, window_rows // MAX_LANES), 1)
    slices = random.permutation(-(-rows // size))
    order = (slices[:, np.newaxis] * size + np.arange(size)).ravel()
    order = order[order < rows]
    for begin in range(0, rows, window_rows):
        random.shuffle(order[begin : begin + window_rows])
    return order


def order_seed(seed: int, epoch: int, rank: int, steps: int) -> list[int]:
    """Return the seed of the order of a rank.

    Args:
        seed: the seed of the order of all epochs.
        epoch: number of the epoch.
        rank: the rank.
        steps: number of steps made in the epoch before.
    """
    return [seed, epoch, rank, *filter(None, [steps])]


def used_rows(state: DataState, starts: Mapping[str, Start]) -> Hashes:
    """Return the hashes of the rows that the steps of an epoch have used, in no certain order.

    Args:
        state: the steps.
        starts: the starts of the training that have made them, by name.
    """
    used: Hashes = np.empty(0, np.uint64)
    steps = 0
    for each_round in state.rounds:
        start = starts[each_round.start]
        read = _shares(start.lists, rows_left(start.lists, used)) if steps else start.lists
        parts = [used]
        for rank, hashes in enumerate(read):
            seed = order_seed(state.seed, state.epoch, rank, steps)
            order = pass_order(len(hashes), start.windows[rank], seed)
            parts.append(hashes[order[: each_round.steps * each_round.batch_size]])
        used, steps = np.concatenate(parts), steps + each_round.steps
    return used


def rows_left(lists: Sequence[Hashes], used: Hashes) -> list[Mask]:
    """Return which rows of each rank are not used yet: a mask (rows,) for each list.

    Args:
        lists: the hashes of the rows of each rank.
        used: the hashes of the rows that were used. Of equal rows the first count as used.

    Example:
        >>> lists = [np.array([7, 8], "uint64"), np.array([7, 7, 9], "uint64")]
        >>> [mask.tolist() for mask in rows_left(lists, np.array([9, 7, 7], "uint64"))]
        [[False, True], [False, True, False]]
    """
    hashes, used = np.concatenate(lists), np.sort(used)
    order = np.argsort(hashes, kind="stable")  # Which of equal rows comes first is always the same.
    ordered = hashes[order]
    earlier = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    num_used = np.searchsorted(used, ordered, "right") - np.searchsorted(used, ordered)
    is_left = np.empty(len(hashes), bool)
    is_left[order] = earlier >= num_used
    return np.split(is_left, np.cumsum([len(each) for each in lists])[:-1])


def differences(before: Sequence[Hashes], now: Sequence[Hashes]) -> tuple[int, int]:
    """Return how many rows there are now that were not there before, and how many are missing.

    Args:
        before: the hashes of the rows of each rank before.
        now: the hashes of the rows of each rank now.

    Example:
        >>> differences([np.array([7, 8], "uint64")], [np.array([8, 9, 9], "uint64")])
        (2, 1)
    """
    old, new = np.concatenate(before), np.concatenate(now)
    if np.array_equal(np.sort(old), np.sort(new)):  # Much faster.
        return 0, 0
    return int(rows_left([new], old)[0].sum()), int(rows_left([old], new)[0].sum())


def _shares(lists: Sequence[Hashes], masks: Sequence[Mask]) -> list[Hashes]:
    """Return the hashes of the rows that are left, as the ranks share them equally."""
    rows = [hashes[mask] for hashes, mask in zip(lists, masks, strict=True)]
    plan = balance([len(hashes) for hashes in rows])
    shares = [[hashes[:keep]] for hashes, keep in zip(rows, plan.keeps, strict=True)]
    for transfer in plan.transfers:
        if not plan.is_repeated(transfer):
            shares[transfer.taker].append(rows[transfer.giver][transfer.start : transfer.stop])
    return [np.concatenate(share) for share in shares]
