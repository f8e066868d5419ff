"""Runs in the training process.

SPARK mode, the training process's side: a thread takes the rows in.
"""

import mmap
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sparkdl.data.dataframe.protocol import (
    ANSWER,
    BATCH,
    END,
    ERROR,
    FREED,
    HAVE,
    HEADER,
    KEPT,
    MOST_TEXT,
    SCHEMAS,
    unpack_schemas,
)
from sparkdl.data.dataframe.row_buffer import Arriving

__all__ = ["Receiver"]


class Receiver:
    """Hears the task that supervises this process, in a thread; one `Arriving` for each dataset.

    Args:
        channel: the end of the channel that is ours.

    Raises:
        ConnectionError: the task is gone.
        RuntimeError: it cannot pass rows on.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._files: dict[int, mmap.mmap] = {}
        self._unsaid: deque[bytes] = deque()
        self._saying = threading.Lock()
        self._wanted = threading.Event()
        first = self._next()
        if first.kind != SCHEMAS:
            raise RuntimeError(f"no rows can be had: {first.message.tobytes().decode()}")
        self.datasets = {
            name: Arriving(name, schema, self._wanted)
            for name, schema in unpack_schemas(first.message.tobytes()).items()
        }
        threading.Thread(target=self._receive, name="sparkdl-rows", daemon=True).start()

    def _receive(self) -> None:
        numbered = list(self.datasets.values())
        error: str | None = None
        try:
            while not error and not all(dataset.is_complete for dataset in numbered):
                while all(dataset.is_enough for dataset in numbered):
                    self._wanted.wait()  # The task, and Spark, wait too.
                    self._wanted.clear()
                error = self._hear(numbered)
            if not error:
                self._channel.send(ANSWER.pack(HAVE, 0, sum(d.rows for d in numbered)))
        except ConnectionError:
            error = "they ended early"
        except Exception as exc:  # noqa: BLE001 Whatever it was, whoever waits must know.
            error = f"{type(exc).__name__}: {exc}"
        finally:
            for dataset in numbered:
                dataset.fail(error or "they ended early")
            self._channel.close()  # What Spark still has, nobody would read.

    def _hear(self, numbered: Sequence[Arriving]) -> str | None:
        """Take in the next packet; what is wrong, if something is."""
        packet = self._next()
        dataset = numbered[packet.number]
        if packet.kind == ERROR:
            return packet.message.tobytes().decode()
        if packet.kind == BATCH:
            self._take_in(packet, dataset)
        elif packet.kind == END:
            dataset.complete(packet.rows)
        return dataset.error

    def _next(self) -> "_Packet":
        data, descriptors, _, _ = socket.recv_fds(self._channel, HEADER.size + MOST_TEXT, 1)
        if not data:
            raise ConnectionError("the task has closed the channel")
        kind, number, rows, file, offset, length = HEADER.unpack_from(data)
        for descriptor in descriptors:
            size = os.fstat(descriptor).st_size
            self._files[file] = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
            os.close(descriptor)
        if kind == ERROR:
            message = np.frombuffer(data, np.uint8, offset=HEADER.size)
        elif length:
            message = np.frombuffer(self._files[file], np.uint8, length, offset)
        else:
            message = np.empty(0, np.uint8)
        return _Packet(kind, number, rows, file, message)

    def _take_in(self, packet: "_Packet", dataset: Arriving) -> None:
        file, message = packet.file, packet.message
        if dataset.add(packet.rows, message, self._files[file]):
            self._say(ANSWER.pack(KEPT, file, len(message)))
        else:
            self._say_all()
            # Tensors may stand in the same memory: it is free when the last of them is gone.
            freed = ANSWER.pack(FREED, file, len(message))
            weakref.finalize(message, self._say, freed).atexit = False

    def _say(self, answer: bytes) -> None:
        """Tell the task, and never wait: one that waits for Spark hears nothing meanwhile."""
        self._unsaid.append(answer)
        self._say_all()

    def _say_all(self) -> None:
        # It may be called while it runs: whenever an array goes.
        if self._saying.acquire(blocking=False):
            try:
                while self._unsaid:
                    self._channel.send(self._unsaid[0], socket.MSG_DONTWAIT)
                    self._unsaid.popleft()
            except OSError:
                pass  # Full, and said with the next one; or gone.
            finally:
                self._saying.release()


class _Packet(NamedTuple):
    kind: int
    number: int
    rows: int
    file: int
    message: "np.ndarray[Any, Any]"
