"""Runs in the training process. The passes of a rank over its rows of a DataFrame."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl import context
from sparkdl.context import Context
from sparkdl.data.batching import Batches
from sparkdl.data.data_state import DataState
from sparkdl.data.dataframe.balancing import BalancedRows, RowBalance, SingleRank
from sparkdl.data.dataframe.known_order import SLICE_ROWS, order_seed
from sparkdl.data.dataframe.known_rows import KnownRows, Portion
from sparkdl.data.dataframe.row_buffer import RowBuffer
from sparkdl.data.dataset_report import report_dataset
from sparkdl.data.lanes import MAX_LANES, WINDOW_BYTES
from sparkdl.data.shard import totals
from sparkdl.data.shuffle import shuffled
from sparkdl.data.stateful_passes import StatefulPasses
from sparkdl.errors import ConfigError


@functools.cache
def _row_balance(
    buffer: RowBuffer, last_batch: str, max_rows: int | None, batch_size: int
) -> RowBalance | SingleRank:
    """Return the balance of a dataset, created once for all calls with the same arguments."""
    me = context.current()
    if me.num_readers == 1:
        return SingleRank(buffer, max_rows)
    return RowBalance(me, buffer, last_batch, max_rows, batch_size)


@functools.cache
def _known_rows(
    buffer: RowBuffer, balanced: BalancedRows, last_batch: str, window_rows: int | None
) -> KnownRows:
    """Return the rows in a known order, listed once for all calls with the same arguments."""
    return KnownRows(context.current(), buffer, balanced, last_batch, window_rows)


class RowPasses(StatefulPasses):
    """Passes over the rows of one rank, including rows that are still arriving.

    Args:
        me: the context of the rank.
        buffer: the rank's rows.
        batches: how rows become batches.
        cache: keep the rows for further passes.
        num_datasets: number of DataFrames that the rank receives.

    Attributes:
        has_state: the order of the rows can be known.
    """

    def __init__(
        self, me: Context, buffer: RowBuffer, batches: Batches, cache: bool, num_datasets: int
    ) -> None:
        window_rows = batches.window_rows if batches.shuffle else None
        super().__init__(me, batches.per_worker(me.num_readers), None, window_rows)
        if not cache and (batches.epochs > 1 or batches.shuffle or num_datasets > 1):
            raise ConfigError(
                "cache=False reads rows once, in the order of their arrival; it requires epochs=1, "
                f"shuffle=False and a single DataFrame, and got epochs={batches.epochs}, "
                f"shuffle={batches.shuffle} and {num_datasets} DataFrames."
            )
        self._buffer = buffer
        self._batches = batches
        max_rows = batches.steps and batches.steps * self._batch_size
        buffer.open(cache, max_rows)
        self._balance = _row_balance(buffer, batches.last_batch, max_rows, self._batch_size)
        self._is_reported = False
        is_whole = cache and batches.steps is None and batches.epochs == 1
        self.has_state = is_whole and not (batches.bucket_by or me.is_elastic)
        self._known_rows: KnownRows | None = None
        self._portion_after: tuple[DataState, Portion] | None = None
        self._total_after: tuple[DataState, int] | None = (
            None  # The number of rows of the last rest.
        )
        self._begun_unknown: set[int] = set()  # Numbers of passes in another order.

    def first(self) -> pa.RecordBatch | None:
        """Return a batch with the first row; None if there are no rows."""
        return next((batch for batch in self._in_order() if batch.num_rows), None)

    def num_rows(self) -> int:
        """Return the number of rows of all ranks; wait until all rows have arrived."""
        return self._balanced().rows

    def next_pass(self, repeats: bool = True) -> Iterator[pa.RecordBatch]:
        """Return the rows of the next pass.

        Args:
            repeats: False leaves out the row that `pad` repeats.
        """
        number = self.numbers.take()
        if self._known_rows:
            self._begun_unknown.discard(number)
            return self._in_known_order(self._known_rows, number, repeats)
        self._begun_unknown.add(number)
        if not self._batches.shuffle:
            return self._in_order(repeats)
        entropy = [self._me.data_seed, number, self._me.rank]
        seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        rows = self._in_random_order(seed, repeats)
        return shuffled([(rows, seed)], self._batches.window_rows, WINDOW_BYTES)

    def _in_order(self, repeats: bool = True) -> Iterator[pa.RecordBatch]:
        position, balanced = 0, None
        while balanced is None:
            certain, balanced = self._certain_rows(position)
            yield from self._buffer.take(position, certain)
            position = certain
        yield from balanced.extra if repeats else balanced.received

    def _in_random_order(self, seed: int, repeats: bool) -> Iterator[pa.RecordBatch]:
        """Yield all rows, in random order slice by slice."""
        balanced = self._balanced()
        yield from balanced.extra if repeats else balanced.received
        random = np.random.default_rng(seed)
        begin = int(random.integers(balanced.available - balanced.keeps + 1))
        size = max(min(SLICE_ROWS, self._batches.window_rows // MAX_LANES), 1)
        for place in random.permutation(-(-balanced.keeps // size)).tolist():
            start = place * size
            stop = min((place + 1) * size, balanced.keeps)
            yield from self._buffer.read(begin + start, begin + stop)

    # ---- the state

    @property
    def is_known(self) -> bool:  # type: ignore[override]
        """True if the order of the rows is known."""
        return self._known_rows is not None

    def prepare(self) -> None:
        """Implement `StatefulPasses.prepare`: wait for all rows, and list them."""
        if self._known_rows is None:
            balanced, last_batch = self._balanced(), self._batches.last_batch
            self._known_rows = _known_rows(self._buffer, balanced, last_batch, self._window_rows)

    def go_on(self, state: DataState) -> None:
        """Implement `StatefulPasses.go_on`; rows left that were freed are found again."""
        if self._portion_after is None:
            self._total_after = None
        super().go_on(state)

    def _in_known_order(
        self, known: KnownRows, number: int, repeats: bool
    ) -> Iterator[pa.RecordBatch]:
        state = self._resumed_at(number)
        if self._portion_after and number > self._portion_after[0].epoch:
            self._portion_after = None  # Its places take as much memory as those of all rows.
        seed = order_seed(self._seed, number, self._rank, self.steps_made(number))
        portion = self._portion(state)
        portion = portion if repeats else dataclasses.replace(portion, repeated=None)
        return known.read(portion, seed, self.num_steps(number) * self._batch_size)

    def _portion(self, state: DataState | None) -> Portion:
        if self._known_rows is None:
            raise RuntimeError("the order of the rows is not known; call prepare first.")
        if state is None:
            return self._known_rows.whole
        if self._portion_after is None or self._portion_after[0] != state:
            self._portion_after = state, self._known_rows.portion_left(state)
            self._total_after = state, self._portion_after[1].total
        return self._portion_after[1]

    def _num_batches(self, state: DataState | None) -> int:
        if self._total_after is not None and self._total_after[0] == state:
            rows = self._total_after[1]
        else:
            rows = self._portion(state).total
        return totals(rows, self._ranks, self._batch_size, self._batches.last_batch)[0]

    def state(self, epoch: int, steps: int) -> DataState:
        """Implement `StatefulPasses.state`."""
        state = super().state(epoch, steps)
        if epoch in self._begun_unknown and state.rounds:
            raise ConfigError(
                f"epoch {epoch} of data {self._buffer.name!r} has no state: it was begun before "
                "the first call of state_dict or load_state_dict, in the order in which rows "
                "arrived. Call state_dict once before the first iteration, on every rank, or "
                "create Checkpoint(data=...) there."
            )
        return state

    @property
    def _start(self) -> str:
        return self._known_rows.start if self._known_rows else ""

    @property
    def _must_stay(self) -> str:
        return "the columns of the DataFrame, shuffle and last_batch"

    @property
    def _order_terms(self) -> list[Any]:
        columns = [[field.name, str(field.type)] for field in self._buffer.schema]
        return [columns, self._batches.last_batch, self._window_rows]

    # ---- the rows that have arrived

    def size(self) -> tuple[int, int]:
        """Return the numbers of batches and rows per pass; wait until all rows have arrived."""
        rows, world_size = self._balanced().rows, self._me.num_readers
        last_batch = self._batches.last_batch
        steps, padded, _ = totals(rows, world_size, self._batch_size, last_batch)
        is_cut = last_batch == "drop"
        return steps, steps * self._batch_size if is_cut else (rows + padded) // world_size

    def size_without_repeats(self) -> tuple[int, int]:
        """Return the numbers of batches and rows of a pass without a repeated row."""
        balanced = self._balanced()
        rows = balanced.keeps + sum(batch.num_rows for batch in balanced.received)
        return -(-rows // self._batch_size), rows

    def _balanced(self) -> BalancedRows:
        certain, balanced = self._certain_rows(0)
        while balanced is None:
            certain, balanced = self._certain_rows(certain)
        return balanced

    def _certain_rows(self, beyond: int) -> tuple[int, BalancedRows | None]:
        certain, balanced = self._balance.certain_rows(beyond)
        if balanced and not self._is_reported:
            self._is_reported = True
            rows, world_size = balanced.rows, self._me.num_readers
            numbers = totals(rows, world_size, self._batch_size, self._batches.last_batch)
            max_steps = self._batches.steps
            report_dataset(self._buffer.name, self._batch_size, max_steps, rows, *numbers)
        return certain, balanced
