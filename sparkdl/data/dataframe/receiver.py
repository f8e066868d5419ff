"""Runs in the training process. Receive the rows that the Spark task sends, in a thread."""

import logging
import mmap
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparkdl.data.dataframe.protocol import (
    ANSWER,
    BATCH,
    END,
    ERROR,
    FREED,
    HEADER,
    KEPT,
    MAX_TEXT_BYTES,
    PART,
    RECEIVED,
    SCHEMAS,
    unpack_schemas,
)
from sparkdl.data.dataframe.row_buffer import RowBuffer
from sparkdl.data.row_keys import key_log

# YARN ends all containers of a host whose disk is fuller than 90 percent: the warning comes before.
MAX_DISK_USE = 0.8

_logger = logging.getLogger("sparkdl.data")


class Receiver:
    """Receive the datasets from the task that supervises this process, in a thread.

    Args:
        channel: the training process's end of the channel.

    Attributes:
        datasets: the buffer of each dataset, by name.

    Raises:
        ConnectionError: if the task has ended.
        RuntimeError: if the task cannot send rows.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._files: dict[int, mmap.mmap] = {}
        self._unsent: deque[bytes] = deque()
        self._sending = threading.Lock()
        self._requested = threading.Event()
        self._disk: os.statvfs_result | None = None
        self._has_warned = False
        self._has_told_part = False
        first = self._next_packet()
        if first.kind != SCHEMAS:
            raise RuntimeError(
                f"cannot receive rows from the Spark task: {first.message.tobytes().decode()}"
            )
        self.datasets = {
            name: RowBuffer(name, schema, self._requested)
            for name, schema in unpack_schemas(first.message.tobytes()).items()
        }
        self._keys = {name: key_log(name, b.schema) for name, b in self.datasets.items()}
        threading.Thread(target=self._receive, name="sparkdl-rows", daemon=True).start()

    def _receive(self) -> None:
        buffers = list(self.datasets.values())
        error: str | None = None
        try:
            while not error and not all(buffer.is_complete for buffer in buffers):
                while all(buffer.has_enough for buffer in buffers):
                    self._requested.wait()  # The task, and Spark, wait too.
                    self._requested.clear()
                self._tell_part(buffers)
                error = self._handle_packet(buffers)
            if not error:
                num_rows = sum(buffer.rows for buffer in buffers)
                self._channel.send(ANSWER.pack(RECEIVED, 0, num_rows))
        except ConnectionError:
            error = "the rows ended early"
        except Exception as exc:  # noqa: BLE001 The waiting threads must receive any error.
            error = f"{type(exc).__name__}: {exc}"
        finally:
            for buffer in buffers:
                buffer.fail(error or "the rows ended early")
            self._channel.close()  # Makes the task stop: no thread reads further rows.

    def _tell_part(self, buffers: Sequence[RowBuffer]) -> None:
        """Tell the task once if no copy of all rows is needed here."""
        if not self._has_told_part and any(buffer.is_read_in_part for buffer in buffers):
            self._has_told_part = True
            self._send(ANSWER.pack(PART, 0, 0))

    def _handle_packet(self, buffers: Sequence[RowBuffer]) -> str | None:
        """Handle the next packet; return the text of an error, or None."""
        packet = self._next_packet()
        buffer = buffers[packet.number]
        if packet.kind == ERROR:
            return packet.message.tobytes().decode()
        if packet.kind == BATCH:
            if self._disk and buffer.is_cached:  # Without a cache there is no copy that grows.
                self._warn_of_full_disk(self._disk)
            self._add(packet, buffer)
        elif packet.kind == END:
            buffer.complete(packet.rows)
        return buffer.error

    def _next_packet(self) -> "_Packet":
        data, descriptors, _, _ = socket.recv_fds(self._channel, HEADER.size + MAX_TEXT_BYTES, 1)
        if not data:
            raise ConnectionError("the task has closed the channel")
        kind, number, rows, file, offset, length = HEADER.unpack_from(data)
        for descriptor in descriptors:
            size = os.fstat(descriptor).st_size
            self._files[file] = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
            self._disk = os.fstatvfs(descriptor)
            os.close(descriptor)
        if kind == ERROR:
            message = np.frombuffer(data, np.uint8, offset=HEADER.size)
        elif length:
            message = np.frombuffer(self._files[file], np.uint8, length, offset)
        else:
            message = np.empty(0, np.uint8)
        return _Packet(kind, number, rows, file, message)

    def _warn_of_full_disk(self, disk: os.statvfs_result) -> None:
        use = 1 - disk.f_bavail / max(disk.f_blocks, 1)
        if use > MAX_DISK_USE and not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "the disk that holds the copy of this rank's rows is %.0f %% full, with %.1f GiB "
                "free. Free disk space, point spark.local.dir to a larger disk, select only the "
                "columns that are needed, or pass cache=False to data.dataset for a single pass",
                100 * use,
                disk.f_bavail * disk.f_frsize / 2**30,
            )

    def _add(self, packet: "_Packet", buffer: RowBuffer) -> None:
        file, message = packet.file, packet.message
        if log := self._keys[buffer.name]:
            log.add(pa.ipc.read_record_batch(pa.py_buffer(message), buffer.schema))
        if buffer.add(packet.rows, message, self._files[file]):
            self._send(ANSWER.pack(KEPT, file, len(message)))
        else:
            self._flush()
            # Tensors may share this memory: the message is free when the last of them is gone.
            freed = ANSWER.pack(FREED, file, len(message))
            weakref.finalize(message, self._send, freed).atexit = False

    def _send(self, answer: bytes) -> None:
        """Send an answer without blocking: a task that waits for Spark does not read answers."""
        self._unsent.append(answer)
        self._flush()

    def _flush(self) -> None:
        # A finalizer may call this method while it is running, hence the lock is not waited for.
        if self._sending.acquire(blocking=False):
            try:
                while self._unsent:
                    self._channel.send(self._unsent[0], socket.MSG_DONTWAIT)
                    self._unsent.popleft()
            except OSError:
                pass  # The socket is full, and the next call sends the rest; or it is closed.
            finally:
                self._sending.release()


class _Packet(NamedTuple):
    kind: int
    number: int
    rows: int
    file: int
    message: "np.ndarray[Any, Any]"
