"""Runs in a Spark task. SPARK mode, the task's side: a partition's Arrow batches into a process."""

import contextlib
import io
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.data.dataframe.protocol import (
    AHEAD_BYTES,
    ANSWER,
    BATCH,
    END,
    ERROR,
    HAVE,
    HEADER,
    KEPT,
    LEAST_AHEAD,
    MOST_TEXT,
    SCHEMAS,
    Feed,
)
from sparkdl.data.dataframe.spool import Spool, local_disk

__all__ = ["Feeder"]


class Feeder:
    """Passes Arrow batches to a training process, from a thread of its own.

    A slow process lets it wait, and Spark with it. One that has ended, or has read enough, makes
    it stop, and the rest of the partition is not read. A context manager.

    Attributes:
        theirs: the end of the channel for the training process.
        is_cut_short: not all batches were read, and not for a fault of theirs.

    Args:
        feed: the datasets that the batches hold: as they are if it is one, else each in a column
            of structs, null where a row belongs to another.
        batches: the partition.
    """

    def __init__(self, feed: Feed, batches: Iterable[pa.RecordBatch]) -> None:
        self._feed, self._batches = feed, batches
        self._names = list(feed.schemas)
        self._schemas = [pa.ipc.read_schema(pa.py_buffer(s)) for s in feed.schemas.values()]
        self._writers = [_Writer(schema) for schema in self._schemas]
        self._rows = [0] * len(self._names)
        self._mine, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._spool = Spool(local_disk())
        self._thread = threading.Thread(target=self._pass_on, name="sparkdl-feed", daemon=True)
        self._ahead = self._ahead_bytes = 0
        self._answer: int | None = None
        self.is_cut_short = True

    def __enter__(self) -> "Feeder":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._mine, self.theirs):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # Wakes a thread that waits at it.
            end.close()

    @property
    def problem(self) -> str | None:
        """What is wrong although the process returned: it was sent other rows than it has."""
        sent = sum(self._rows)
        if self._answer is None or self._answer == sent:
            return None
        return f"{sent} rows were sent to the training process, and it has {self._answer}"

    def _pass_on(self) -> None:
        try:
            self._send(SCHEMAS, 0, 0, [self._feed.pack_schemas()])
            for batch in self._batches:
                for number, rows in self._split(batch):
                    self._rows[number] += rows.num_rows
                    self._send(BATCH, number, rows.num_rows, self._writers[number].parts(rows))
            self.is_cut_short = False
            for number, count in enumerate(self._rows):
                self._send(END, number, count)
            while self._answer is None:
                self._hear()
        except (BrokenPipeError, ConnectionResetError):
            pass  # It has ended, or wants no more; which of both, its own outcome tells.
        except BaseException as exc:  # noqa: BLE001 Whatever it was, the rows are not all there.
            self.is_cut_short = False
            text = f"{type(exc).__name__}: {exc}".encode()[:MOST_TEXT]
            with contextlib.suppress(OSError):
                self._mine.send(HEADER.pack(ERROR, 0, 0, 0, 0, 0) + text)
        finally:
            self._spool.close()
            with contextlib.suppress(OSError):
                self._mine.shutdown(socket.SHUT_WR)

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of a batch, by the number of their dataset."""
        for number, name in enumerate(self._names):
            rows = batch if len(self._names) == 1 else _rows_of(batch, number)
            schema = self._schemas[number]
            if name in self._feed.packed:
                for message in rows.column(rows.num_columns - 1):
                    yield number, pa.ipc.read_record_batch(message.as_buffer(), schema)
            elif rows.num_rows:
                yield number, _as(schema, rows)

    def _send(
        self, kind: int, number: int, rows: int, parts: Sequence["bytes | pa.Buffer"] = ()
    ) -> None:
        length = sum(len(part) for part in parts)
        file, offset, descriptor = self._spool.write(parts) if length else (0, 0, None)
        header = HEADER.pack(kind, number, rows, file, offset, length)
        socket.send_fds(self._mine, [header], [] if descriptor is None else [descriptor])
        self._ahead_bytes += length
        self._ahead += length > 0
        while self._hear(self._ahead > LEAST_AHEAD and self._ahead_bytes > AHEAD_BYTES):
            pass

    def _hear(self, waits: bool = True) -> bool:
        """Take in an answer of the training process; False if there is none.

        Raises:
            ConnectionResetError: it has ended, or wants no more.
        """
        try:
            packet = self._mine.recv(ANSWER.size, 0 if waits else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        if not packet:
            raise ConnectionResetError("the training process has closed its channel")
        kind, file, value = ANSWER.unpack(packet)
        if kind == HAVE:
            self._answer = value
            return True
        self._ahead_bytes -= value
        self._ahead -= 1
        if kind == KEPT:
            self._spool.keep(file)
        else:
            self._spool.free(file, value)
        return True


class _Writer(io.RawIOBase):
    """Makes Arrow IPC messages of batches, as the buffers that they are made of: no copy."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__()
        self._parts: list[pa.Buffer] = []
        self._stream = pa.ipc.new_stream(pa.PythonFile(self, mode="w"), schema)
        # With the first batch goes the schema, which is told otherwise.
        self.parts(pa.RecordBatch.from_pylist([], schema))

    def writable(self) -> bool:
        return True

    def write(self, part: Any) -> int:
        self._parts.append(part)
        return len(part)

    def parts(self, rows: pa.RecordBatch) -> list[pa.Buffer]:
        """The message of one batch."""
        self._parts = []
        self._stream.write_batch(rows)
        return self._parts


def _rows_of(batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
    """The rows of one dataset: those whose struct is not null."""
    structs = batch.column(number)
    if structs.null_count:
        structs = structs.filter(pc.is_valid(structs))
    names = [field.name for field in structs.type]
    return pa.RecordBatch.from_arrays(structs.flatten(), names)


def _as(schema: pa.Schema, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows with the types that the training process reads them as.

    Spark's may differ: in their time zone, or with `spark.sql.execution.arrow.useLargeVarTypes`.
    """
    columns = rows.columns
    if rows.schema.types != schema.types:
        columns = [c.cast(kind) for c, kind in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
