"""Runs in the training process. Balance the rows of a DataFrame among the ranks of a gang.

Spark deals rows to ranks almost equally; an exact division needs the counts of all ranks. Each rank
reports the number of rows that have arrived in a file `<rank>.rows-<dataset>.json` of the trial's
folder `ranks/<attempt>/`, and reads the reports of the others. Rows up to the smallest reported
count can be used at once. When all rows have arrived, a rank with more rows than its share gives
the surplus to other ranks in files of the same folder.
"""

import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sparkdl import storage
from sparkdl.context import Context
from sparkdl.data.dataframe.row_buffer import RowBuffer
from sparkdl.data.shard import Transfer, balance
from sparkdl.polling import poll_s

__all__ = ["BalancedRows", "RowBalance", "SingleRank"]

# Default for a rank that has not reported its row count yet: (rows, has all rows).
_NO_REPORT = (0, False)

# Shorter than the usual interval: training waits for the reports.
LOCAL_POLL_S = 0.1
REMIND_S = 60.0

_logger = logging.getLogger("sparkdl.data")


@dataclass(frozen=True)
class BalancedRows:
    """The rows of one rank after balancing.

    Attributes:
        keeps: number of the rank's first rows that it keeps.
        extra: rows received from other ranks, and repeated rows.
        rows: number of rows of all ranks together.
    """

    keeps: int
    extra: Sequence[pa.RecordBatch]
    rows: int


class SingleRank:
    """Replace `RowBalance` where there is a single rank.

    Args:
        buffer: the rank's rows.
        max_rows: number of rows to use; None for all.
    """

    def __init__(self, buffer: RowBuffer, max_rows: int | None) -> None:
        self._buffer = buffer
        self._max_rows = max_rows

    def certain_rows(self, beyond: int) -> tuple[int, BalancedRows | None]:
        """Implement `RowBalance.certain_rows`."""
        self._buffer.wait(beyond)
        is_complete, rows = self._buffer.is_complete, self._buffer.rows
        if self._max_rows is not None and rows >= self._max_rows:
            is_complete, rows = True, self._max_rows
        return rows, BalancedRows(rows, (), rows) if is_complete else None


class RowBalance:
    """Balance the rows of one dataset for one rank, in a background thread.

    Args:
        me: the context of the rank.
        buffer: the rank's rows.
        last_batch: `pad` or `drop`, the same on every rank.
        max_rows: number of rows that each rank uses; None for all.
    """

    def __init__(
        self, me: Context, buffer: RowBuffer, last_batch: str, max_rows: int | None
    ) -> None:
        self._me = me
        self._buffer = buffer
        self._last_batch = last_batch
        self._max_rows = max_rows
        self._name = f"{buffer.name}-{last_batch}-{max_rows or 'all'}"
        self._folder = storage.join(me.url or me.folder or ".", "ranks", me.attempt)
        self._poll_s = poll_s(self._folder, local_s=LOCAL_POLL_S)
        self._changed = threading.Condition()
        self._num_certain = 0
        self._reported = (-1, False)
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
        reminded_s = time.monotonic()
        while True:
            # Read before the count of rows: no row may arrive between the two.
            is_complete = self._buffer.is_complete
            self._report(self._buffer.rows, is_complete)
            reports = self._read_reports()
            have_all_reported = len(reports) == self._me.world_size
            least = min(rows for rows, _ in reports.values()) if have_all_reported else 0
            if self._max_rows is not None and least >= self._max_rows:
                return [self._max_rows] * self._me.world_size
            with self._changed:
                self._num_certain = least
                self._changed.notify_all()
            if have_all_reported and all(done for _, done in reports.values()):
                return [reports[rank][0] for rank in self._ranks]
            if any(done and rows < (self._max_rows or 0) for rows, done in reports.values()):
                self._buffer.request(None)  # A rank has too few rows; others must give it some.
            self._refuse_ended([r for r in self._ranks if not reports.get(r, _NO_REPORT)[1]])
            if not have_all_reported and time.monotonic() - reminded_s > REMIND_S:
                reminded_s = time.monotonic()
                self._remind(sorted(set(self._ranks) - reports.keys()))
            if not is_complete:
                self._buffer.wait(self._reported[0], self._poll_s)
            time.sleep(self._poll_s)

    def _remind(self, absent: Sequence[int]) -> None:
        _logger.warning(
            "data %r: waiting for ranks %s to call data.dataset; every rank must call it",
            self._buffer.name,
            absent,
        )

    def _report(self, rows: int, is_complete: bool) -> None:
        if (rows, is_complete) != self._reported:
            report = json.dumps({"rows": rows, "all": is_complete})
            storage.write(self._report_url(self._me.rank), report)
            self._reported = rows, is_complete

    @property
    def _ranks(self) -> range:
        return range(self._me.world_size)

    def _report_url(self, rank: int) -> str:
        return storage.join(self._folder, f"{rank}.rows-{self._name}.json")

    def _read_reports(self) -> Mapping[int, tuple[int, bool]]:
        """Return the reports by rank: the number of rows, and True if these are all rows."""
        reports = {}
        for rank in self._ranks:
            try:
                report = json.loads(storage.read(self._report_url(rank)))
            except FileNotFoundError:
                continue
            reports[rank] = report["rows"], report["all"]
        return reports

    def _refuse_ended(self, awaited: Sequence[int]) -> None:
        ended = [r for r in awaited if storage.exists(storage.join(self._folder, f"{r}.done"))]
        if ended:
            raise RuntimeError(
                f"ranks {ended} returned before they had read their rows of data "
                f"{self._buffer.name!r}, and rank {self._me.rank} needs more rows. Every rank must "
                "call data.dataset with the same arguments, and take the same number of batches."
            )

    # ---- exchange of rows

    def _exchange(self, counts: Sequence[int]) -> BalancedRows:
        plan, rank = balance(counts, self._last_batch), self._me.rank
        for transfer in plan.transfers:
            if transfer.giver == rank != transfer.taker:
                self._give(transfer)
        extra: list[pa.RecordBatch] = []
        for transfer in plan.transfers:
            if transfer.taker == rank:
                extra += self._read(transfer) if transfer.giver == rank else self._take(transfer)
        # With `drop`, rows above the equal number stay unread.
        keeps = min(plan.keeps[rank], plan.each)
        num_extra = plan.each - keeps
        return BalancedRows(keeps, list(_first_rows(extra, num_extra)), sum(counts))

    def _read(self, transfer: Transfer) -> Iterator[pa.RecordBatch]:
        return self._buffer.read(transfer.start, transfer.stop)

    def _transfer_url(self, transfer: Transfer) -> str:
        name = f"{transfer.giver}.given-{self._name}-{transfer.taker}-{transfer.start}"
        return storage.join(self._folder, name)

    def _give(self, transfer: Transfer) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._buffer.schema) as writer:
            for batch in self._read(transfer):
                writer.write_batch(batch)
        storage.write(self._transfer_url(transfer), sink.getvalue().to_pybytes())

    def _take(self, transfer: Transfer) -> list[pa.RecordBatch]:
        url = self._transfer_url(transfer)
        while not storage.exists(url):
            self._refuse_ended([transfer.giver])
            time.sleep(self._poll_s)
        with pa.ipc.open_stream(storage.read(url)) as reader:
            batches: list[pa.RecordBatch] = list(reader)
        storage.remove(url)
        return batches


def _first_rows(batches: Sequence[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, rows)
        rows -= min(rows, batch.num_rows)
