"""Runs in the training process. The passes of a rank over the rows of files.

A pass is one epoch. It begins with its first row, or, after a restart, where the steps of all ranks
have ended.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence

import numpy as np

from sparkdl.context import Context
from sparkdl.data.data_state import DataState, Round, rows_between
from sparkdl.data.lanes import EpochOrder, Pass
from sparkdl.data.pass_numbers import PassNumbers
from sparkdl.data.shard import Range, Share, share, totals
from sparkdl.errors import ConfigError

__all__ = ["Passes"]


class Passes:
    """The passes of one rank, one after the other.

    Args:
        sizes: number of rows of each piece; the same on every rank.
        me: the context of the rank.
        batch_size: number of rows in a batch of each rank.
        last_batch: `pad` or `drop`, see `shard`.
        max_steps: maximum number of batches in a pass; None for no maximum.
        window_rows: number of rows that are shuffled together; None keeps the order.
        max_lanes: number of places that a shuffled pass reads at the same time.
        columns: names of the columns; chunks of large rows end by the bytes of these.

    Attributes:
        numbers: counts the passes.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        me: Context,
        batch_size: int,
        last_batch: str,
        max_steps: int | None,
        window_rows: int | None,
        max_lanes: int,
        columns: Sequence[str] = (),
    ) -> None:
        self.numbers = PassNumbers()
        self._sizes = sizes
        self._me = me
        self._rank, self._ranks = me.reading
        self._batch_size = batch_size
        self._last_batch = last_batch
        self._max_steps = max_steps
        self._window_rows = window_rows
        self._max_lanes = max_lanes
        self._columns = columns
        self._seed = me.data_seed
        self._resumed: DataState | None = None

    def next(self) -> Pass:
        """Return the next pass."""
        number = self.numbers.take()
        if (state := self._resumed_at(number)) is not None:
            return self._rest(state)
        return self._whole(number, self._rank, self._ranks, self._batch_size)

    def _whole(self, number: int, rank: int, ranks: int, batch_size: int) -> Pass:
        """Return a pass of one of a number of ranks, from its first row."""

        def mine(order: Sequence[int] | None = None) -> Share:
            return share(self._sizes, rank, ranks, batch_size, self._last_batch, order)

        if self._window_rows is None:
            return Pass.in_order(mine().ranges)
        # A rank that replaces a lost one counts its passes anew, so in an elastic gang all passes
        # divide the pieces in the same way, and only the order within a rank differs.
        division = 0 if self._me.is_elastic else number
        seed = [self._seed, division]
        order = EpochOrder(self._sizes, seed, self._window_rows, self._max_lanes)
        ranges = mine(order.pieces).ranges
        if self._me.is_elastic:
            places = np.random.default_rng([self._seed, number, rank]).permutation(len(ranges))
            ranges = tuple(ranges[place] for place in places)
        begin = sum(self._sizes) * rank // ranks
        return order.shuffled_pass(ranges, begin, [self._seed, number])

    def _rest(self, state: DataState) -> Pass:
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

    # ---- the state

    def num_steps(self, epoch: int | None = None) -> int:
        """Return the number of batches that this process reads in a pass.

        Args:
            epoch: number of the pass; by default the next one.
        """
        number = self.numbers.upcoming if epoch is None else epoch
        if (state := self._resumed_at(number)) is not None:
            steps, made = self._portion(state)[1], state.steps
        else:
            rows = sum(self._sizes)
            steps, made = totals(rows, self._ranks, self._batch_size, self._last_batch)[0], 0
        return steps if self._max_steps is None else min(steps, self._max_steps - made)

    def steps_made(self, epoch: int) -> int:
        """Return the number of steps of a pass before the place where it goes on.

        Args:
            epoch: number of the pass.
        """
        state = self._resumed_at(epoch)
        return state.steps if state else 0

    def entropy(self, epoch: int) -> list[int]:
        """Return what the random numbers of a rank in a pass follow from.

        Args:
            epoch: number of the pass.
        """
        # The rest of a pass must not have the random numbers of its beginning again.
        return [self._seed, epoch, self._rank, *filter(None, [self.steps_made(epoch)])]

    def state(self, epoch: int, steps: int) -> DataState:
        """Return the state after some steps of a pass.

        Args:
            epoch: number of the pass.
            steps: number of batches that were used of those that this process has read.

        Raises:
            ConfigError: if the pass has fewer batches.
        """
        num_steps = self.num_steps(epoch)
        if not 0 <= steps <= num_steps:
            raise ConfigError(
                f"steps is {steps!r}; expected at most {num_steps}, the steps of epoch {epoch}."
            )
        order = self._order_digest
        if steps == num_steps:
            return DataState(epoch + 1, self._seed, order)
        state = self._resumed_at(epoch) or DataState(epoch, self._seed, order)
        return state.after(Round(self._ranks, self._batch_size, steps))

    def go_on(self, state: DataState) -> None:
        """Begin the next pass where the steps of a state have ended.

        Args:
            state: the state. If it leaves no batch of its epoch, the next epoch begins.

        Raises:
            ConfigError: if the state is that of other rows, or of rows in another order.
        """
        if state.order != self._order_digest:
            raise ConfigError(
                "the state is that of other data: the files, their numbers of rows, the columns, "
                "shuffle, last_batch, steps, split and where must be those with which the epoch "
                "began. Restore them, or begin the epoch anew, without the state."
            )
        self._seed, self._resumed = state.seed, state
        is_over = not self.num_steps(state.epoch)
        self.numbers.upcoming = state.epoch + is_over

    def begin_at(self, epoch: int) -> None:
        """Let the next pass be a whole one.

        Args:
            epoch: number of the pass.
        """
        self._resumed = None
        self.numbers.upcoming = epoch

    def _resumed_at(self, number: int) -> DataState | None:
        state = self._resumed
        return state if state and state.rounds and state.epoch == number else None

    @functools.cached_property
    def _order_digest(self) -> str:
        order = [
            list(self._sizes),
            self._last_batch,
            self._max_steps,
            self._window_rows,
            [self._max_lanes, sorted(self._columns)] if self._window_rows else [],
        ]
        return hashlib.sha256(json.dumps(order).encode()).hexdigest()[:16]
