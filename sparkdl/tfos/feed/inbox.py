"""Runs in the training process.

The rows that Spark feeds to this node, and the results that it gives back.
"""

import os
import pickle
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from sparkdl.cluster.process.fork_server import peer
from sparkdl.tfos.feed import protocol
from sparkdl.tfos.feed.chunks import ArrowChunk, Chunk

__all__ = ["Cut", "Inbox"]

# So many chunks of a partition wait here; then the task that feeds it waits, and Spark with it.
MOST_CHUNKS = 8
# After so long without a row something may be wrong.
SILENT_S = 30.0
AGAIN_S = 0.1


class Cut(Enum):
    """What may come in place of rows."""

    PARTITION = "the end of a partition, in inference"
    FEED = "no more rows will come"


class Inbox:
    """Takes in rows from the tasks that feed this node, several at a time, each in a thread.

    Args:
        listener: where tasks connect.
        on_terminate: called once when no more rows are wanted.
    """

    def __init__(self, listener: socket.socket, on_terminate: Callable[[], None]) -> None:
        self._listener, self._on_terminate = listener, on_terminate
        self._changed = threading.Condition()
        self._streams: list[_Stream] = []
        self._seen: dict[tuple[int, int], int] = {}
        self._owed: deque[tuple[_Stream, int]] = deque()
        self._is_over = self._infers = False
        self._broken: Exception | None = None
        self.is_terminating = False
        threading.Thread(target=self._accept, name="sparkdl-inbox", daemon=True).start()

    # ---- for the training function

    def take(self, qname: str, most: int | None = None) -> "Sequence[Any] | Cut":
        """The next rows of a queue, at most so many; waits until there are some.

        Args:
            qname: the queue.
            most: None takes the chunk as it came.

        Raises:
            Exception: a row's own, if it could not be unpickled.
        """
        with self._changed:
            while True:
                if self._broken:
                    raise self._broken
                stream = self._next(qname)
                if stream and stream.chunks:
                    return self._take_from(stream, most)
                if stream:
                    self._streams.remove(stream)
                    return Cut.PARTITION
                if self._is_over and not any(s.qname == qname for s in self._streams):
                    return Cut.FEED
                if not self._changed.wait(SILENT_S):
                    self._say_what_is_owed()

    def _say_what_is_owed(self) -> None:
        """A task that is owed results waits for ever, and nothing comes of it here."""
        count = sum(count for stream, count in self._owed if stream.is_ended and not stream.chunks)
        if count:
            print(
                f"sparkdl: batch_results() has given no results for {count} rows of an inference, "
                f"and no rows have come for {SILENT_S:g} s. Give one for each row of next_batch, "
                "which with train_mode=False does not wait for the next partition.",
                file=sys.stderr,
            )

    def _next(self, qname: str) -> "_Stream | None":
        """A stream that has rows; of inference, the one that was begun until it is at its end."""
        streams = [stream for stream in self._streams if stream.qname == qname]
        begun = [stream for stream in streams if stream.is_begun and stream.is_inference]
        for stream in begun or streams:
            if stream.chunks or (stream.is_inference and stream.is_ended):
                return stream
        return None

    def _take_from(self, stream: "_Stream", most: int | None) -> Sequence[Any]:
        stream.is_begun = True
        chunk = stream.chunks[0]
        rows = chunk.take(most)
        if not len(chunk):
            stream.chunks.popleft()
            self._changed.notify_all()
        if stream.is_inference:
            self._infers = True
            self._owed.append((stream, len(rows)))
        else:
            self._streams.remove(stream)
            self._streams.append(stream)  # The others' turn is next.
            self._finish(stream)
        return rows

    def _finish(self, stream: "_Stream") -> None:
        """Tell the task of a stream that all its rows have been used, if they have."""
        if stream.is_ended and not stream.chunks:
            self._streams.remove(stream)
            stream.say(protocol.DONE)

    def give(self, results: Sequence[Any]) -> None:
        """Hand results back, one for each row of inference that was taken, in that order.

        Raises:
            ValueError: there are more of them than rows.
        """
        given = 0
        while given < len(results):
            with self._changed:
                if not self._owed:
                    break
                stream, count = self._owed[0]
                part = results[given : given + count]
                if len(part) == count:
                    self._owed.popleft()
                else:
                    self._owed[0] = (stream, count - len(part))
            stream.say(protocol.RESULTS, pickle.dumps(list(part), pickle.HIGHEST_PROTOCOL))
            given += len(part)
        if given < len(results) and self._infers:
            raise ValueError(
                f"batch_results got {len(results)} results, and rows that wait for one were "
                f"{given}. Give one for each row of next_batch."
            )

    def terminate(self) -> None:
        """Want no more rows: what is here is dropped, and what comes."""
        with self._changed:
            if self.is_terminating:
                return
            self.is_terminating = True
            streams, self._streams = self._streams, []
            for stream in streams:
                stream.chunks.clear()
            self._changed.notify_all()
        self._on_terminate()
        for stream in streams:
            stream.say(protocol.TERMINATING)

    # ---- for the tasks

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # Too many files are open, for a moment or longer.
                time.sleep(AGAIN_S)
                continue
            if peer(connection)[1] != os.getuid():
                connection.close()
                continue
            reader = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            reader.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            first = protocol.read_frame(connection)
            if first and first[0] == protocol.FEED_OVER:
                with self._changed:
                    self._is_over = True
                    self._changed.notify_all()
            elif first and first[0] == protocol.HELLO:
                self._read(_Stream(connection, **pickle.loads(first[1])))

    def _read(self, stream: "_Stream") -> None:
        with self._changed:
            has = 0 if stream.is_inference else self._replace(stream)
            wants = not self.is_terminating
            if wants:
                self._streams.append(stream)
        stream.say(protocol.WELCOME if wants else protocol.TERMINATING, f"{has}".encode())
        try:
            while found := protocol.read_frame(stream.connection):
                kind, body = found
                chunk = None if kind == protocol.END else _chunk(kind, body)
                with self._changed:
                    self._take_in(stream, chunk)
        except Exception as exc:  # noqa: BLE001 Of the rows' own classes: whatever it is.
            with self._changed:
                self._broken = exc
                # Nobody is told that its rows are used.
                self._streams = [one for one in self._streams if one is not stream]
        finally:
            with self._changed:
                self._leave(stream)

    def _replace(self, stream: "_Stream") -> int:
        """How many rows of this partition came by an attempt before, which is over then."""
        for other in self._streams:
            if other.key == stream.key and not other.is_ended:
                other.is_ended = True
                other.hang_up()
        return self._seen.get(stream.key, 0)

    def _take_in(self, stream: "_Stream", chunk: Chunk | None) -> None:
        if chunk is None:
            stream.is_ended = True
            if not stream.is_inference and stream in self._streams:
                self._finish(stream)
        else:
            self._changed.wait_for(
                lambda: len(stream.chunks) < MOST_CHUNKS or self.is_terminating or stream.is_ended
            )
            if self.is_terminating or stream.is_ended:
                return
            stream.chunks.append(chunk)
            self._seen[stream.key] = self._seen.get(stream.key, 0) + len(chunk)
        self._changed.notify_all()

    def _leave(self, stream: "_Stream") -> None:
        """The task of a stream is gone, with its partition's end or without."""
        if stream.is_inference and stream in self._streams and not stream.is_ended:
            self._streams.remove(stream)  # Another attempt feeds all rows again.
        elif stream in self._streams and not stream.is_ended:
            stream.is_ended = True
            self._finish(stream)
        self._changed.notify_all()


class _Stream:
    """One task that feeds a partition.

    Attributes:
        key: which partition of which call it is.
        chunks: what came of it and was not taken.
        is_begun, is_ended: some of it was taken; all of it has come.
    """

    def __init__(
        self, connection: socket.socket, feed: int, partition: int, qname: str, is_inference: bool
    ) -> None:
        self.connection, self.qname, self.is_inference = connection, qname, is_inference
        self.key = (feed, partition)
        self.chunks: deque[Chunk] = deque()
        self.is_begun = self.is_ended = False
        self._saying = threading.Lock()

    def say(self, kind: bytes, body: bytes = b"") -> None:
        """Send a frame; one that is gone hears nothing."""
        with self._saying:
            try:
                self.connection.sendall(kind + len(body).to_bytes(8, "big"))
                if body:
                    self.connection.sendall(body)
            except OSError:
                pass

    def hang_up(self) -> None:
        """End the connection: its thread and its task see it."""
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def _chunk(kind: bytes, body: bytearray) -> Chunk:
    return ArrowChunk(body) if kind == protocol.ARROW else Chunk(pickle.loads(body))
