"""Runs in the training process. Balance the rows of a DataFrame among the ranks of a gang.

Spark deals rows to ranks almost equally; an exact division needs the counts of all ranks, which
they exchange by files in the trial's folder `ranks/<attempt>/`, see `row_counts`. Rows up to the
smallest reported count can be used at once. When all rows have arrived, a rank with more rows than
its share gives the surplus to other ranks in files of the same folder.
"""

import functools
import itertools
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sparkdl.context import Context
from sparkdl.data.dataframe.row_buffer import RowBuffer
from sparkdl.data.dataframe.row_counts import RowCounts
from sparkdl.data.dataframe.row_exchange import RowExchange
from sparkdl.data.peer_files import FIRST, PeerFiles
from sparkdl.data.shard import balance

REMIND_S = 60.0

_logger = logging.getLogger("sparkdl.data")


@dataclass(frozen=True, eq=False)
class BalancedRows:
    """The rows of one rank after balancing.

    Attributes:
        keeps: number of the rank's first rows that it reads in a pass.
        available: number of the rank's first rows that it may read instead.
        extra: rows received from other ranks, and repeated rows.
        rows: number of rows of all ranks together.
        received: all rows received from other ranks, also one that a pass leaves out.
        repeated: the row that this rank reads once more, or nothing.
    """

    keeps: int
    available: int
    extra: Sequence[pa.RecordBatch]
    rows: int
    received: Sequence[pa.RecordBatch] = ()
    repeated: Sequence[pa.RecordBatch] = ()


class SingleRank:
    """Replace `RowBalance` where there is a single rank.

    Args:
        buffer: the rank's rows.
        max_rows: number of rows to use; None for all.
    """

    def __init__(self, buffer: RowBuffer, max_rows: int | None) -> None:
        self._buffer = buffer
        self._max_rows = max_rows
        self._balanced = functools.cache(lambda rows: BalancedRows(rows, rows, (), rows))

    def certain_rows(self, beyond: int) -> tuple[int, BalancedRows | None]:
        """Implement `RowBalance.certain_rows`."""
        self._buffer.wait(beyond)
        is_complete, rows = self._buffer.is_complete, self._buffer.rows
        if self._max_rows is not None and rows >= self._max_rows:
            is_complete, rows = True, self._max_rows
        return rows, self._balanced(rows) if is_complete else None


class RowBalance:
    """Balance the rows of one dataset for one rank, in a background thread.

    Args:
        me: the context of the rank.
        buffer: the rank's rows.
        last_batch: `pad` or `drop`, the same on every rank.
        max_rows: number of rows that each rank uses; None for all.
        batch_size: number of rows per batch of a rank, the same on every rank: with other numbers
            the ranks would take unequal steps.
    """

    def __init__(
        self,
        me: Context,
        buffer: RowBuffer,
        last_batch: str,
        max_rows: int | None,
        batch_size: int,
    ) -> None:
        self._me = me
        self._buffer = buffer
        self._last_batch = last_batch
        self._max_rows = max_rows
        self._files = PeerFiles(me)
        number = next(_numbers(buffer))
        terms = {
            "last_batch": last_batch,
            "max_rows": max_rows,
            "batch_size_per_worker": batch_size,
        }
        self._counts = RowCounts(me, self._files, buffer.name, number, terms, max_rows)
        self._given_topic = f"given-{buffer.name}-{number}"
        self._changed = threading.Condition()
        self._num_certain = 0
        self._balanced: BalancedRows | None = None
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="sparkdl-balance", daemon=True).start()

    def certain_rows(self, beyond: int) -> tuple[int, BalancedRows | None]:
        """Wait until more than `beyond` of this rank's first rows are certain to stay with it.

        Args:
            beyond: number of rows that the caller has already.

        Returns:
            The number of certain rows, and the result of balancing, None while it is not known.

        Raises:
            RuntimeError: if rows are missing, or a rank does not read this dataset.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._error or self._balanced or self._num_certain > beyond
            )
            # Rows that are certain can be used even if a later step has failed.
            if self._error and self._num_certain <= beyond:
                raise self._error
            return (self._balanced.keeps if self._balanced else self._num_certain), self._balanced

    def _run(self) -> None:
        try:
            balanced = self._exchange(self._final_counts())
            with self._changed:
                self._balanced = balanced
                self._changed.notify_all()
        except BaseException as exc:  # noqa: BLE001 The waiting threads must receive any error.
            with self._changed:
                self._error = exc
                self._changed.notify_all()

    def _final_counts(self) -> list[int]:
        """Return the row count of every rank, once all its rows or `max_rows` have arrived."""
        pace, is_first = self._counts.pace, self._me.rank == FIRST
        time.sleep(pace.first_s())
        reminded_s = time.monotonic()
        earlier = None
        while True:
            # Read before the count of rows: no row may arrive between the two.
            is_complete = self._buffer.is_complete
            rows = self._buffer.rows
            summary = self._counts.look(rows, is_complete)
            with self._changed:
                self._num_certain = max(summary.least, self._num_certain)
                self._changed.notify_all()
            if summary.counts is not None:
                return list(summary.counts)
            if summary.refusal:
                raise RuntimeError(summary.refusal)
            if summary.needs_all:
                self._buffer.request(None)  # A rank has too few rows; others must give it some.
            if summary.absent and time.monotonic() - reminded_s > REMIND_S:
                reminded_s = time.monotonic()
                self._remind(summary.absent)
            # The other ranks wait for the first one, which does not slow down.
            delay_s = pace.next_s(has_changed=is_first or (rows, summary) != earlier)
            earlier = rows, summary
            if not is_complete:
                self._buffer.wait(rows, delay_s)
            time.sleep(delay_s)

    def _remind(self, absent: Sequence[int]) -> None:
        _logger.warning(
            "data %r: waiting for ranks %s to call data.dataset; every rank must call it",
            self._buffer.name,
            list(absent),
        )

    # ---- exchange of rows

    def _exchange(self, counts: Sequence[int]) -> BalancedRows:
        plan, rank = balance(counts, self._last_batch), self._me.rank
        exchange = RowExchange(self._files, self._given_topic, self._buffer.schema, rank)
        received, repeated = exchange.run(plan, self._buffer.read)
        # With `drop`, rows above the equal number stay unread.
        keeps = min(plan.keeps[rank], plan.each)
        extra = list(_first_rows([*received, *repeated], plan.each - keeps))
        available = plan.keeps[rank]
        return BalancedRows(keeps, available, extra, sum(counts), received, repeated)


# Process-wide state: the number of the next balance of a dataset. A program may read a dataset with
# other arguments a second time.
@functools.cache
def _numbers(buffer: RowBuffer) -> Iterator[int]:
    return itertools.count()


def _first_rows(batches: Sequence[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, rows)
        rows -= min(rows, batch.num_rows)
