"""Runs in the training process. The passes of a rank over the rows of files."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparkdl.context import Context
from sparkdl.data.data_state import DataState, rows_between
from sparkdl.data.lanes import CHUNK_SECTIONS, MAX_LANES, EpochOrder, Pass
from sparkdl.data.shard import Range, Share, share, totals
from sparkdl.data.stateful_passes import StatefulPasses


class Passes(StatefulPasses):
    """The passes of one rank, one after the other.

    Args:
        sizes: number of rows of each piece; the same on every rank.
        me: the context of the rank.
        batch_size: number of rows in a batch of each rank.
        last_batch: `pad` or `drop`, see `shard`.
        max_steps: maximum number of batches in a pass; None for no maximum.
        window_rows: number of rows that are shuffled together; None keeps the order.
        columns: names of the columns; chunks of large rows end by the bytes of these.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        me: Context,
        batch_size: int,
        last_batch: str,
        max_steps: int | None,
        window_rows: int | None,
        columns: Sequence[str] = (),
    ) -> None:
        super().__init__(me, batch_size, max_steps, window_rows)
        self._sizes = sizes
        self._last_batch = last_batch
        self._columns = columns

    def prepare(self) -> None:
        """Implement `StatefulPasses.prepare`: the order of files is known."""

    def next(self, repeats: bool = True) -> Pass:
        """Return the next pass.

        Args:
            repeats: False leaves out the row that `pad` repeats.
        """
        number = self.numbers.take()
        if (state := self._resumed_at(number)) is not None:
            return self._pass_left(state)
        return self._whole(number, *self._reading, self._batch_size, repeats)

    def _whole(
        self, number: int, rank: int, ranks: int, batch_size: int, repeats: bool = True
    ) -> Pass:
        """Return a pass of one of a number of ranks, from its first row."""

        def mine(order: Sequence[int] | None = None) -> Share:
            return share(self._sizes, rank, ranks, batch_size, self._last_batch, order, repeats)

        if self._window_rows is None:
            return Pass.in_order(mine().ranges)
        # A rank that replaces a lost one counts its passes anew, so in an elastic gang all passes
        # divide the pieces in the same way, and only the order within a rank differs.
        division = 0 if self._me.is_elastic else number
        seed = [self._seed, division]
        order = EpochOrder(self._sizes, seed, self._window_rows)
        ranges = mine(order.pieces).ranges
        if self._me.is_elastic:
            places = np.random.default_rng([self._seed, number, rank]).permutation(len(ranges))
            ranges = tuple(ranges[place] for place in places)
        begin = sum(self._sizes) * rank // ranks
        return order.shuffled_pass(ranges, begin, [self._seed, number])

    def _pass_left(self, state: DataState) -> Pass:
        """Return this rank's part of what the steps of a pass have left."""
        first = state.rounds[0]
        parts, _ = self._portion(state)
        streams = {
            stream: self._whole(state.epoch, stream, first.ranks, first.batch_size)
            for stream in dict.fromkeys(part.piece for part in parts)
        }
        if self._window_rows is None:
            return Pass.in_order(
                [
                    own
                    for part in parts
                    for own in rows_between(streams[part.piece].ranges, part.start, part.stop)
                ]
            )
        rest = None
        for part in reversed(parts):
            rest = dataclasses.replace(
                streams[part.piece], start=part.start, stop=part.stop, following=rest
            )
        return rest or Pass.in_order([])

    def _portion(self, state: DataState) -> tuple[Sequence[Range], int]:
        rows = sum(self._sizes)
        return state.portion(rows, self._rank, self._ranks, self._batch_size, self._last_batch)

    def _num_batches(self, state: DataState | None) -> int:
        if state is not None:
            return self._portion(state)[1]
        return totals(sum(self._sizes), self._ranks, self._batch_size, self._last_batch)[0]

    @property
    def _must_stay(self) -> str:
        return (
            "the files, their numbers of rows, the columns, shuffle, last_batch, steps, split and "
            "where"
        )

    @property
    def _order_terms(self) -> list[Any]:
        return [
            list(self._sizes),
            self._last_batch,
            self._max_steps,
            self._window_rows,
            [MAX_LANES, CHUNK_SECTIONS, sorted(self._columns)] if self._window_rows else [],
        ]
