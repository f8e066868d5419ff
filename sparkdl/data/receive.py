"""Where it runs: P. SPARK mode, the training process's side: a thread takes the rows in."""

import contextlib
import mmap
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sparkdl.data.frames import (
    ANSWER,
    BATCH,
    END,
    ERROR,
    HAVE,
    HEADER,
    RELEASED,
    unpack_schemas,
)
from sparkdl.errors import ConfigError

__all__ = ["Arriving", "Receiver"]


@dataclass(frozen=True, eq=False)
class _Block:
    """A received batch, and the number of rows before it."""

    before: int
    rows: int
    message: memoryview

    @property
    def end(self) -> int:
        return self.before + self.rows

    def slice(self, start: int, stop: int, schema: pa.Schema) -> pa.RecordBatch:
        """Its rows among `start <= i < stop` of all."""
        batch = pa.ipc.read_record_batch(pa.py_buffer(self.message), schema)
        begin, end = max(start - self.before, 0), min(stop - self.before, self.rows)
        return batch.slice(begin, end - begin)


class Arriving:
    """The rows of one dataset, as far as they have arrived. Filled by one thread, read by any.

    Attributes:
        name, schema: its name, and its columns.
        rows: how many have arrived.
        is_complete: no more will come.

    Args:
        release: called with the length of a message that the task need not wait for any more.
    """

    def __init__(self, name: str, schema: pa.Schema, release: Callable[[int], None]) -> None:
        self.name, self.schema = name, schema
        self.rows, self.is_complete = 0, False
        self._blocks: list[_Block] = []
        self._release = release
        self._error: str | None = None
        self._changed = threading.Condition()
        self._keeps: bool | None = None
        self._most: int | None = 0
        self._taken = 0

    # ---- for the thread that fills it

    def add(self, rows: int, message: memoryview) -> None:
        """The next batch."""
        with self._changed:
            # The first stays, see `take`, and so do all that are kept.
            is_kept = self._keeps is not False or not self._blocks
            self._blocks.append(_Block(self.rows, rows, message))
            self.rows += rows
            self._changed.notify_all()
        if is_kept:
            self._release(len(message))

    def complete(self, rows: int) -> None:
        """No more will come; `rows` were sent."""
        with self._changed:
            self.is_complete = rows == self.rows
            if not self.is_complete:
                self._error = f"Spark sent {rows} rows and {self.rows} arrived"
            self._changed.notify_all()

    def fail(self, error: str) -> None:
        """No more will come, though there are more."""
        with self._changed:
            if not self.is_complete:
                self._error = self._error or error
            self._changed.notify_all()

    @property
    def is_enough(self) -> bool:
        """Whether nobody waits for more."""
        return self.is_complete or (self._most is not None and 0 < self._most <= self.rows)

    # ---- for those that read it

    def open(self, keeps: bool, most: int | None) -> None:
        """Say what will be read of it.

        Args:
            keeps: more than once; else each row is given away as it is read.
            most: how many rows, None for all.

        Raises:
            ConfigError: that does not go with what was said before.
        """
        with self._changed:
            if self._keeps is False or (self._keeps and not keeps):
                raise ConfigError(
                    f"data {self.name!r} is read twice, and once with cache=False, which gives "
                    "each row away. Leave that out, or read it once."
                )
            self._keeps = keeps
            wants_all = most is None or self._most is None
            self._most = None if wants_all else max(most or 0, self._most or 0)

    def wait(self, beyond: int, timeout_s: float | None = None) -> None:
        """Return when more rows than `beyond` have arrived, all have, or the time is over.

        Raises:
            RuntimeError: they were cut off.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._error or self.is_complete or self.rows > beyond, timeout_s
            )
            if self._error and self.rows <= beyond:
                raise RuntimeError(
                    f"the rows of data {self.name!r} are not all there: {self._error}"
                )

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows `start <= i < stop`, which have arrived, in batches."""
        last: memoryview | None = None
        for block in self._overlapping(start, stop):
            if last is not None and last.obj is not block.message.obj:
                _forget(last)
            last = block.message
            yield block.slice(start, stop, self.schema)

    def take(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The same for a pass; where rows are not kept, each batch goes when the next is asked for.

        Raises:
            RuntimeError: they were taken before.
        """
        if self._keeps:
            yield from self.read(start, stop)
            return
        if start < self._taken:
            raise RuntimeError(
                f"data {self.name!r} is read a second time; cache=False allows one pass only."
            )
        for block in self._overlapping(start, stop):
            yield block.slice(start, stop, self.schema)
            self._give_away(block, stop)

    def _give_away(self, block: "_Block", stop: int) -> None:
        with self._changed:
            self._taken = min(stop, block.end)
            # A row of the first may be repeated at the end of the pass.
            is_over = block.before > 0 and self._taken == block.end
            if is_over:
                self._blocks.remove(block)
        if is_over:
            self._release(len(block.message))

    def bounds(self, stop: int) -> list[tuple[int, int]]:
        """Where the batches of the first `stop` rows begin and end."""
        blocks = self._overlapping(0, stop)
        return [(b.before, min(b.end, stop)) for b in blocks]

    def _overlapping(self, start: int, stop: int) -> Sequence[_Block]:
        with self._changed:
            return [b for b in self._blocks if b.before < stop and start < b.end]


def _forget(message: memoryview) -> None:
    """Leave a file to the page cache: it counts as this process's memory no longer."""
    if isinstance(message.obj, mmap.mmap):
        message.obj.madvise(mmap.MADV_DONTNEED)


class Receiver:
    """Hears the task that supervises this process, in a thread; one `Arriving` for each dataset.

    Args:
        channel: the end of the channel that is ours.

    Raises:
        ConnectionError: the task is gone.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._file: mmap.mmap | None = None
        _, _, _, body = self._next()
        self.datasets = {
            name: Arriving(name, schema, self._release)
            for name, schema in unpack_schemas(bytes(body)).items()
        }
        threading.Thread(target=self._receive, name="sparkdl-rows", daemon=True).start()

    def _receive(self) -> None:
        numbered = list(self.datasets.values())
        error = "they ended early"
        try:
            while not all(dataset.is_enough for dataset in numbered):
                kind, number, rows, body = self._next()
                if kind == BATCH:
                    numbered[number].add(rows, body)
                elif kind == END:
                    numbered[number].complete(rows)
                elif kind == ERROR:
                    error = bytes(body).decode()
                    break
            if all(dataset.is_complete for dataset in numbered):
                self._answer(HAVE, sum(d.rows for d in numbered))
        except ConnectionError:
            pass
        except Exception as exc:  # noqa: BLE001 Whatever it was, whoever waits must know.
            error = f"{type(exc).__name__}: {exc}"
        finally:
            for dataset in numbered:
                dataset.fail(error)
            self._channel.close()  # What Spark still has, nobody would read.

    def _next(self) -> tuple[int, int, int, memoryview]:
        """Kind, number, rows and message of the next packet."""
        packet, descriptors, _, _ = socket.recv_fds(self._channel, HEADER.size, 1)
        if not packet:
            raise ConnectionError("the task has closed the channel")
        kind, number, rows, offset, length = HEADER.unpack(packet)
        for descriptor in descriptors:
            size = os.fstat(descriptor).st_size
            self._file = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
            os.close(descriptor)
        body = memoryview(self._file or b"")
        return kind, number, rows, body[offset : offset + length]

    def _release(self, length: int) -> None:
        self._answer(RELEASED, length)

    def _answer(self, kind: int, value: int) -> None:
        with contextlib.suppress(OSError):  # It is gone, or was told that this is enough.
            self._channel.send(ANSWER.pack(kind, value))
