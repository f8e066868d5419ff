"""Runs in the training process. The parts of variables that ranks have, and the whole variables."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparkdl.distribute.aligned_memory import Pool, aligned_empty
from sparkdl.distribute.buckets import plan_buckets
from sparkdl.distribute.graph_order import call_in_order
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.rows import row_slices, split_rows


def size_of(variable: Any) -> int:
    """Return the number of elements of a variable."""
    return int(np.prod(tuple(variable.shape), dtype=int))


class ShardExchange:
    """Gathers the variables of which each rank has a flat part.

    Args:
        ring: the ring of all ranks.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._pool = Pool()

    def part_of(self, variable: Any) -> slice:
        """Return the part of a flat variable that this rank has."""
        return self._ring.part_of(size_of(variable))

    def assign(self, wholes: Sequence[Any], parts: Sequence[Any]) -> None:
        """Assign the parts of all ranks to variables, in a graph or eagerly.

        Args:
            wholes: variables, the same on all ranks.
            parts: this rank's part of each.
        """
        import tensorflow as tf

        dtypes = [tf.as_dtype(variable.dtype) for variable in wholes]
        sizes = [size_of(v) * dtype.size for v, dtype in zip(wholes, dtypes, strict=True)]
        for bucket in plan_buckets(sizes, dtypes):
            gather = functools.partial(self.gather, [size_of(wholes[i]) for i in bucket])
            values = [tf.convert_to_tensor(parts[i]) for i in bucket]
            flats = call_in_order(gather, values, [dtypes[i] for i in bucket])
            for i, flat in zip(bucket, flats, strict=True):
                wholes[i].assign(tf.reshape(flat, wholes[i].shape))

    def gather(self, counts: Sequence[int], *parts: Any) -> list[Any]:
        """Return the flat arrays of which the ranks have the parts.

        Args:
            counts: number of elements of each array.
            *parts: this rank's part of each; of one dtype.
        """
        slices = [row_slices(count, self._ring.size) for count in counts]
        whole = self._pool.take(sum(counts), parts[0].dtype)
        # All that comes from a rank is together.
        lengths = [
            [part.stop - part.start for part in of_rank] for of_rank in zip(*slices, strict=True)
        ]
        ends = itertools.accumulate(map(sum, lengths), initial=0)
        ranges = [slice(*pair) for pair in itertools.pairwise(ends)]
        np.concatenate(parts, out=whole[ranges[self._ring.own_part]])
        self._ring.gather_parts(whole, ranges)
        if len(counts) == 1:
            return [whole]
        pieces = [
            split_rows(whole[place], each) for place, each in zip(ranges, lengths, strict=True)
        ]
        outs = [aligned_empty([count], whole.dtype) for count in counts]
        for out, of_one in zip(outs, zip(*pieces, strict=True), strict=True):
            np.concatenate(of_one, out=out)
        return outs
