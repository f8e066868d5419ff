"""Runs in a Spark task. Send the Arrow batches of a partition to the training process."""

import contextlib
import io
import socket
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from sparkdl.data.dataframe.protocol import (
    ANSWER,
    BATCH,
    END,
    ERROR,
    HEADER,
    KEPT,
    MAX_AHEAD_BYTES,
    MAX_TEXT_BYTES,
    MIN_AHEAD_MESSAGES,
    PART,
    RECEIVED,
    SCHEMAS,
    Feed,
    RowCopy,
)
from sparkdl.data.dataframe.spool import Spool
from sparkdl.host.local_disk import local_disk

if TYPE_CHECKING:
    import pyarrow as pa


class Copies(Protocol):
    """A copy of the rows that several tasks share; see `cluster.process.shared_rows`."""

    is_writing: bool

    def wait(self, end: threading.Event) -> RowCopy | None: ...

    def has_room(self, num_bytes: int) -> bool: ...

    def keep(self, copy: RowCopy) -> bool: ...

    def give_up(self, why: str) -> None: ...

    def close(self) -> None: ...


class RowSender:
    """Send Arrow batches to a training process, in a thread. A context manager.

    The sender, and Spark with it, waits for a slow training process. If the training process has
    ended or needs no more rows, the sender stops and the rest of the partition is not read.

    Args:
        feed: the datasets that the batches hold: a single dataset as it is; several each in a
            column of structs, null where a row belongs to another dataset.
        batches: the partition. It is not used if there is a copy of its rows.
        copies: the copy that this task reads or writes; None if it shares none.

    Attributes:
        process_end: the training process's end of the channel.
        is_cut_short: True if not all batches were read although the batches had no error.
        is_ended_by_spark: True if Spark has ended the batches early, for a reason that the driver
            hears from Spark.
        has_copy: True if there is a copy of the rows for further tasks on this executor.
    """

    def __init__(
        self, feed: Feed, batches: "Iterable[pa.RecordBatch]", copies: Copies | None = None
    ) -> None:
        import pyarrow as pa

        self._feed = feed
        self._batches = batches
        self._copies = copies
        self._end = threading.Event()
        self._names = list(feed.schemas)
        self._schemas = [pa.ipc.read_schema(pa.py_buffer(s)) for s in feed.schemas.values()]
        self._writers = [_Writer(schema) for schema in self._schemas]
        self._num_sent = [0] * len(self._names)
        self._task_end, self.process_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._spool = Spool(local_disk(), keeps_all=copies is not None)
        self._unsent: deque[tuple[bytes, int | None]] = deque()
        self._headers = bytearray()  # Of all packets, while this task writes the copy.
        self._num_bytes = 0
        self._thread = threading.Thread(target=self._run, name="sparkdl-feed", daemon=True)
        self._ahead_messages = 0
        self._ahead_bytes = 0
        self._num_received: int | None = None
        self.is_cut_short = feed.is_in_partition
        self.is_ended_by_spark = False
        self.has_copy = False

    def __enter__(self) -> "RowSender":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for end in (self._task_end, self.process_end):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # Wakes a thread that waits for the socket.
            end.close()

    @property
    def problem(self) -> str | None:
        """A message if the training process returned but has received another number of rows."""
        num_sent = sum(self._num_sent)
        if self._num_received is None or self._num_received == num_sent:
            return None
        return (
            f"{num_sent} rows were sent to the training process, and it received "
            f"{self._num_received}"
        )

    def _run(self) -> None:
        try:
            if copy := self._copies and self._copies.wait(self._end):
                self._pass_on(copy)
            else:
                self._send_batches()
            while self._num_received is None:
                self._receive()
        except (BrokenPipeError, ConnectionResetError):
            pass  # The process has ended or needs no more rows; its own outcome says which.
        except BaseException as exc:  # noqa: BLE001 Any error means that rows are missing.
            self.is_cut_short = False
            self.is_ended_by_spark = isinstance(exc, EOFError)
            text = f"{type(exc).__name__}: {exc}".encode()[:MAX_TEXT_BYTES]
            with contextlib.suppress(OSError):
                self._task_end.send(HEADER.pack(ERROR, 0, 0, 0, 0, 0) + text)
        finally:
            if self._copies:
                with contextlib.suppress(OSError):
                    self._copies.close()
            self._spool.close()
            with contextlib.suppress(OSError):
                self._task_end.shutdown(socket.SHUT_WR)

    def _pass_on(self, copy: RowCopy) -> None:
        """Send the packets that another task has written."""
        self.has_copy = True
        new = dict(enumerate(copy.descriptors))
        for place in range(0, len(copy.headers), HEADER.size):
            header = copy.headers[place : place + HEADER.size]
            kind, number, rows, file, _, length = HEADER.unpack(header)
            if kind == END:
                self._num_sent[number] = rows
            self._unsent.append((header, new.pop(file, None) if length else None))
            self._flush()
            while self._receive(is_blocking=False):
                pass

    def _send_batches(self) -> None:
        if not self._feed.is_in_partition:
            raise RuntimeError("the copy of the rows on this executor was lost")
        if not self._copying:
            self._spool.keep_no_more()
        self._send(SCHEMAS, 0, 0, [self._feed.pack_schemas()])
        for batch in self._batches:
            for number, rows in self._split(batch):
                self._num_sent[number] += rows.num_rows
                self._send(BATCH, number, rows.num_rows, self._writers[number].parts(rows))
        self.is_cut_short = False
        for number, count in enumerate(self._num_sent):
            self._send(END, number, count)
        if copies := self._copying:
            self.has_copy = copies.keep(RowCopy(bytes(self._headers), self._spool.descriptors))
        self._flush()

    @property
    def _copying(self) -> Copies | None:
        """The copy, while this task writes it."""
        return self._copies if self._copies and self._copies.is_writing else None

    def _split(self, batch: "pa.RecordBatch") -> "Iterator[tuple[int, pa.RecordBatch]]":
        """Yield the rows of a batch, with the number of their dataset."""
        import pyarrow as pa

        for number, name in enumerate(self._names):
            rows = batch if len(self._names) == 1 else _rows_of(batch, number)
            schema = self._schemas[number]
            if name in self._feed.packed_names:
                for message in rows.column(rows.num_columns - 1):
                    yield number, pa.ipc.read_record_batch(message.as_buffer(), schema)
            elif rows.num_rows:
                yield number, _cast(rows, schema)

    def _send(
        self, kind: int, number: int, rows: int, parts: Sequence["bytes | pa.Buffer"] = ()
    ) -> None:
        length = sum(len(part) for part in parts)
        file, offset, descriptor = self._spool.write(parts) if length else (0, 0, None)
        header = HEADER.pack(kind, number, rows, file, offset, length)
        self._unsent.append((header, descriptor))
        self._ahead_bytes += length
        self._ahead_messages += length > 0
        if copies := self._copying:
            self._headers += header
            self._num_bytes += length
            if not copies.has_room(self._num_bytes):
                size = f"{self._num_bytes >> 20} MiB and more"
                self._stop_copying(copies, f"the disk has no room for them ({size})")
        # Other tasks wait for the copy, which therefore does not wait for this process.
        self._flush(socket.MSG_DONTWAIT if self._copying else 0)
        while self._receive(
            not self._copying
            and self._ahead_messages > MIN_AHEAD_MESSAGES
            and self._ahead_bytes > MAX_AHEAD_BYTES
        ):
            pass

    def _flush(self, flags: int = 0) -> None:
        """Send what was not sent yet; with MSG_DONTWAIT, only as much as the process takes now."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                header, descriptor = self._unsent[0]
                descriptors = [] if descriptor is None else [descriptor]
                socket.send_fds(self._task_end, [header], descriptors, flags)
                self._unsent.popleft()

    def _stop_copying(self, copies: Copies, why: str) -> None:
        copies.give_up(why)
        self._flush()  # Before files are closed that the process has not got yet.
        self._spool.keep_no_more()

    def _receive(self, is_blocking: bool = True) -> bool:
        """Handle an answer of the training process; return False if there is none, or no more.

        Raises:
            ConnectionResetError: if the process has ended or needs no more rows.
        """
        try:
            packet = self._task_end.recv(ANSWER.size, 0 if is_blocking else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        if not packet:
            if self._num_received is not None:
                return False
            raise ConnectionResetError("the training process has closed its channel")
        kind, file, value = ANSWER.unpack(packet)
        if kind == RECEIVED:
            self._num_received = value
            return True
        if kind == PART:
            if copies := self._copying:
                self._stop_copying(copies, "a trial reads a part of them, or reads them once only")
            return True
        self._ahead_bytes -= value
        self._ahead_messages -= 1
        if kind == KEPT:
            self._spool.keep(file)
        else:
            self._spool.free(file, value)
        return True


class _Writer(io.RawIOBase):
    """Serialize batches as Arrow IPC messages without copying their buffers."""

    def __init__(self, schema: "pa.Schema") -> None:
        import pyarrow as pa

        super().__init__()
        self._parts: list[pa.Buffer] = []
        self._stream = pa.ipc.new_stream(pa.PythonFile(self, mode="w"), schema)
        # Arrow writes the schema before the first batch; the schemas are sent separately.
        self.parts(pa.RecordBatch.from_pylist([], schema))

    def writable(self) -> bool:
        return True

    def write(self, part: Any) -> int:
        self._parts.append(part)
        return len(part)

    def parts(self, rows: "pa.RecordBatch") -> "list[pa.Buffer]":
        """Return the buffers of the message of one batch."""
        self._parts = []
        self._stream.write_batch(rows)
        return self._parts


def _rows_of(batch: "pa.RecordBatch", number: int) -> "pa.RecordBatch":
    """Return the rows of one dataset: the rows whose struct is not null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    structs = batch.column(number)
    if structs.null_count:
        structs = structs.filter(pc.is_valid(structs))
    names = [field.name for field in structs.type]
    return pa.RecordBatch.from_arrays(structs.flatten(), names)


def _cast(rows: "pa.RecordBatch", schema: "pa.Schema") -> "pa.RecordBatch":
    """Return the rows with the types that the training process expects.

    Spark's types may differ in their time zone, or in the width of their offsets with
    `spark.sql.execution.arrow.useLargeVarTypes`.
    """
    import pyarrow as pa

    columns = rows.columns
    if rows.schema.types != schema.types:
        columns = [c.cast(kind) for c, kind in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
