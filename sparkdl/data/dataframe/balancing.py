"""Runs in the training process.

The ranks of a gang agree on who has how many rows, and even them out.

Spark deals rows out to ranks almost equally; to be exact takes all counts. Each rank tells how many
rows have arrived in a file of the trial's `ranks/<attempt>/` folder, `<rank>.rows-<dataset>.json`,
and looks at those of the others. What at least every rank has can be used at once; when all rows
are there, a rank with more than its share gives some to others, in files of the same folder.
"""

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sparkdl import storage
from sparkdl.context import Context
from sparkdl.data.dataframe.row_buffer import Arriving
from sparkdl.data.shard import Transfer, balance

__all__ = ["Agreement", "Alone", "Settled"]

# What a rank has told that has told nothing.
_NOTHING = (0, False)

LOOK_S = 0.1
LOOK_REMOTE_S = 2.0
REMIND_S = 60.0


@dataclass(frozen=True)
class Settled:
    """What a rank has once all agree.

    Attributes:
        keeps: how many of its first rows are its own.
        extra: rows from other ranks, and repeated ones.
        rows: all rows of all ranks.
    """

    keeps: int
    extra: Sequence[pa.RecordBatch]
    rows: int


class Alone:
    """What `Agreement` answers, for a rank that is the only one.

    Args:
        arriving: its rows.
        most: how many of them are wanted, None for all.
    """

    def __init__(self, arriving: Arriving, most: int | None) -> None:
        self._arriving, self._most = arriving, most

    def certain(self, beyond: int) -> tuple[int, Settled | None]:
        """See `Agreement.certain`."""
        self._arriving.wait(beyond)
        is_complete, rows = self._arriving.is_complete, self._arriving.rows
        if self._most is not None and rows >= self._most:
            is_complete, rows = True, self._most
        return rows, Settled(rows, (), rows) if is_complete else None


class Agreement:
    """One rank's part of the agreement on one dataset, made in a thread.

    Args:
        me: which rank.
        arriving: its rows.
        last_batch: `pad` or `drop`, the same on every rank.
        most: rows of one rank that are wanted, None for all.
    """

    def __init__(self, me: Context, arriving: Arriving, last_batch: str, most: int | None) -> None:
        self._me, self._arriving = me, arriving
        self._last_batch, self._most = last_batch, most
        self._name = f"{arriving.name}-{last_batch}-{most or 'all'}"
        self._folder = storage.join(me.url or me.folder or ".", "ranks", me.attempt)
        self._look_s = LOOK_S if storage.is_local(self._folder) else LOOK_REMOTE_S
        self._changed = threading.Condition()
        self._certain, self._told = 0, (-1, False)
        self._settled: Settled | None = None
        self._error: BaseException | None = None
        threading.Thread(target=self._agree, name="sparkdl-agree", daemon=True).start()

    def certain(self, beyond: int) -> tuple[int, Settled | None]:
        """Wait until more than `beyond` of this rank's first rows are surely its own.

        Returns:
            How many, and what was settled, None as long as it is not.

        Raises:
            RuntimeError: the rows were cut off, or a rank does not read this dataset.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._settled or self._certain > beyond)
            # What is certain can be used, whatever went wrong behind it.
            if self._error and self._certain <= beyond:
                raise self._error
            return (self._settled.keeps if self._settled else self._certain), self._settled

    def _agree(self) -> None:
        try:
            settled = self._even_out(self._counts())
            with self._changed:
                self._settled = settled
                self._changed.notify_all()
        except BaseException as exc:  # noqa: BLE001 Whoever waits must know.
            with self._changed:
                self._error = exc
                self._changed.notify_all()

    def _counts(self) -> list[int]:
        """The rows of every rank, once all have arrived, or as many as are wanted."""
        reminded_s = time.monotonic()
        while True:
            is_all = self._arriving.is_complete  # Before the count: none may come between the two.
            self._tell(self._arriving.rows, is_all)
            told = self._look()
            is_heard = len(told) == self._me.world_size
            least = min(rows for rows, _ in told.values()) if is_heard else 0
            if self._most is not None and least >= self._most:
                return [self._most] * self._me.world_size
            with self._changed:
                self._certain = least
                self._changed.notify_all()
            if is_heard and all(done for _, done in told.values()):
                return [told[rank][0] for rank in self._ranks]
            if any(done and rows < (self._most or 0) for rows, done in told.values()):
                self._arriving.want(None)  # Others have to help out.
            self._refuse_ended([r for r in self._ranks if not told.get(r, _NOTHING)[1]])
            if not is_heard and time.monotonic() - reminded_s > REMIND_S:
                reminded_s = time.monotonic()
                absent = sorted(set(self._ranks) - told.keys())
                print(
                    f"sparkdl: data {self._arriving.name!r}: waiting for ranks {absent} to call "
                    "data.dataset; every rank must"
                )
            if not is_all:
                self._arriving.wait(self._told[0], self._look_s)
            time.sleep(self._look_s)

    def _tell(self, rows: int, is_all: bool) -> None:
        if (rows, is_all) != self._told:
            storage.write(self._file(self._me.rank), json.dumps({"rows": rows, "all": is_all}))
            self._told = rows, is_all

    @property
    def _ranks(self) -> range:
        return range(self._me.world_size)

    def _file(self, rank: int) -> str:
        return storage.join(self._folder, f"{rank}.rows-{self._name}.json")

    def _look(self) -> Mapping[int, tuple[int, bool]]:
        """What the ranks that have said something have: how many rows, and whether that is all."""
        told = {}
        for rank in self._ranks:
            try:
                said = json.loads(storage.read(self._file(rank)))
            except FileNotFoundError:
                continue
            told[rank] = said["rows"], said["all"]
        return told

    def _refuse_ended(self, awaited: Sequence[int]) -> None:
        ended = [r for r in awaited if storage.exists(storage.join(self._folder, f"{r}.done"))]
        if ended:
            raise RuntimeError(
                f"ranks {ended} returned before they had read their rows of data "
                f"{self._arriving.name!r}, and rank {self._me.rank} asks for more. Every rank must "
                "call data.dataset with the same arguments, and take as many batches."
            )

    # ---- evening out

    def _even_out(self, counts: Sequence[int]) -> Settled:
        plan, rank = balance(counts, self._last_batch), self._me.rank
        for transfer in plan.transfers:
            if transfer.giver == rank != transfer.taker:
                self._give(transfer)
        extra: list[pa.RecordBatch] = []
        for transfer in plan.transfers:
            if transfer.taker == rank:
                extra += self._own(transfer) if transfer.giver == rank else self._take(transfer)
        # With `drop`, what is above the equal number stays unread.
        keeps = min(plan.keeps[rank], plan.each)
        left = plan.each - keeps
        return Settled(keeps, list(_first_rows(extra, left)), sum(counts))

    def _own(self, transfer: Transfer) -> Iterator[pa.RecordBatch]:
        return self._arriving.read(transfer.start, transfer.stop)

    def _path(self, transfer: Transfer) -> str:
        name = f"{transfer.giver}.given-{self._name}-{transfer.taker}-{transfer.start}"
        return storage.join(self._folder, name)

    def _give(self, transfer: Transfer) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._arriving.schema) as writer:
            for batch in self._own(transfer):
                writer.write_batch(batch)
        storage.write(self._path(transfer), sink.getvalue().to_pybytes())

    def _take(self, transfer: Transfer) -> list[pa.RecordBatch]:
        path = self._path(transfer)
        while not storage.exists(path):
            self._refuse_ended([transfer.giver])
            time.sleep(self._look_s)
        with pa.ipc.open_stream(storage.read(path)) as reader:
            taken: list[pa.RecordBatch] = list(reader)
        storage.remove(path)
        return taken


def _first_rows(batches: Sequence[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, rows)
        rows -= min(rows, batch.num_rows)
