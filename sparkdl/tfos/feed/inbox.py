"""Runs in the training process. Receive the rows that Spark feeds to a node, and return results."""

import logging
import os
import pickle
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from sparkdl.cluster.process.server_folder import peer
from sparkdl.tfos.feed import protocol
from sparkdl.tfos.feed.chunks import ArrowChunk, Chunk
from sparkdl.tfos.feed.received import Received, hash_of

# A feeding task blocks, and Spark with it, while this many chunks of its partition are waiting.
MAX_CHUNKS = 8
# After this many seconds without a row, missing results of an inference are reported.
SILENCE_TIMEOUT_S = 30.0
ACCEPT_RETRY_S = 0.1

_logger = logging.getLogger("sparkdl.tfos")


class Boundary(Enum):
    """The values that `take` returns in place of rows."""

    PARTITION = "the end of a partition, in inference"
    FEED = "no more rows will come"


class Inbox:
    """The queue of rows from the tasks that feed this node. Each task is served by a thread.

    Args:
        listener: the listening socket to which tasks connect.
        on_terminate: called once when the node stops accepting rows.
    """

    def __init__(self, listener: socket.socket, on_terminate: Callable[[], None]) -> None:
        self._listener = listener
        self._on_terminate = on_terminate
        self._changed = threading.Condition()
        self._streams: list[_Stream] = []
        self._received_by_key: dict[tuple[int, int], Received] = {}
        self._pending_results: deque[tuple[_Stream, int]] = deque()
        self._is_feed_over = False
        self._has_inference = False
        self._error: Exception | None = None
        self.is_terminating = False
        threading.Thread(target=self._accept, name="sparkdl-inbox", daemon=True).start()

    # ---- for the training function

    def take(self, qname: str, max_rows: int | None = None) -> "Sequence[Any] | Boundary":
        """Return the next rows of a queue. Wait until there is at least one.

        Args:
            qname: the name of the queue.
            max_rows: maximum number of rows; None returns a whole chunk as it was received.

        Raises:
            Exception: the error of a row that cannot be unpickled.
        """
        with self._changed:
            while True:
                if self._error:
                    raise self._error
                stream = self._next_stream(qname)
                if stream and stream.chunks:
                    return self._take_from(stream, max_rows)
                if stream:
                    self._streams.remove(stream)
                    return Boundary.PARTITION
                if self._is_feed_over and not any(s.qname == qname for s in self._streams):
                    return Boundary.FEED
                if not self._changed.wait(SILENCE_TIMEOUT_S):
                    self._warn_of_missing_results()

    def _warn_of_missing_results(self) -> None:
        """Log a warning if tasks wait for results of rows that the function has taken.

        Such a task waits indefinitely, and the function sees only that no more rows arrive.
        """
        count = sum(
            count
            for stream, count in self._pending_results
            if stream.is_ended and not stream.chunks
        )
        if count:
            _logger.warning(
                "batch_results() has returned no results for %d rows of an inference, and no rows "
                "have arrived for %g s. Pass one result for each row of next_batch(), which with "
                "train_mode=False returns at the end of each partition.",
                count,
                SILENCE_TIMEOUT_S,
            )

    def _next_stream(self, qname: str) -> "_Stream | None":
        """Return a stream with rows. A partition of an inference is finished before the next."""
        streams = [stream for stream in self._streams if stream.qname == qname]
        started = [stream for stream in streams if stream.is_started and stream.is_inference]
        for stream in started or streams:
            if stream.chunks or (stream.is_inference and stream.is_ended):
                return stream
        return None

    def _take_from(self, stream: "_Stream", max_rows: int | None) -> Sequence[Any]:
        stream.is_started = True
        chunk = stream.chunks[0]
        rows = chunk.take(max_rows)
        if not len(chunk):
            stream.chunks.popleft()
            self._changed.notify_all()
        if stream.is_inference:
            self._has_inference = True
            self._pending_results.append((stream, len(rows)))
        else:
            # Streams take turns: move this one to the end.
            self._streams.remove(stream)
            self._streams.append(stream)
            self._finish_if_used(stream)
        return rows

    def _finish_if_used(self, stream: "_Stream") -> None:
        """Notify the task of a stream if all its rows have been used."""
        if stream.is_ended and not stream.chunks:
            self._streams.remove(stream)
            stream.send(protocol.DONE, b"%d" % stream.repeat.num_missing)

    def give(self, results: Sequence[Any]) -> None:
        """Return results to the tasks, one for each row of an inference, in the order of the rows.

        Raises:
            ValueError: if there are more results than rows that wait for a result.
        """
        num_sent = 0
        while num_sent < len(results):
            with self._changed:
                if not self._pending_results:
                    break
                stream, count = self._pending_results[0]
                part = results[num_sent : num_sent + count]
                if len(part) == count:
                    self._pending_results.popleft()
                else:
                    self._pending_results[0] = (stream, count - len(part))
            stream.send(protocol.RESULTS, pickle.dumps(list(part), pickle.HIGHEST_PROTOCOL))
            num_sent += len(part)
        if num_sent < len(results) and self._has_inference:
            raise ValueError(
                f"batch_results got {len(results)} results, but {num_sent} rows were waiting for "
                "one. Pass one result for each row of next_batch()."
            )

    def terminate(self) -> None:
        """Stop accepting rows: drop the rows that are waiting and all rows that arrive later."""
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
            stream.send(protocol.TERMINATING)

    # ---- for the tasks

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # The process may have too many open files at the moment.
                time.sleep(ACCEPT_RETRY_S)
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
                    self._is_feed_over = True
                    self._changed.notify_all()
            elif first and first[0] == protocol.HELLO:
                self._receive(_Stream(connection, **pickle.loads(first[1])))

    def _receive(self, stream: "_Stream") -> None:
        with self._changed:
            self._forget(stream.first_running_call)
            if not stream.is_inference:
                self._replace(stream)
            is_accepted = not self.is_terminating
            if is_accepted:
                self._streams.append(stream)
        answer = protocol.WELCOME if is_accepted else protocol.TERMINATING
        stream.send(answer, b"%d" % stream.received.num_rows)
        try:
            while frame := protocol.read_frame(stream.connection):
                kind, body = frame
                if kind == protocol.END:
                    with self._changed:
                        self._end(stream)
                    continue
                chunk_hash = None if stream.is_inference else hash_of(body)
                if chunk_hash is None or not stream.repeat.take_once(chunk_hash):
                    chunk = _chunk(kind, body)
                    with self._changed:
                        self._add(stream, chunk, chunk_hash)
        except Exception as exc:  # noqa: BLE001 Unpickling a row runs code of the row's class.
            with self._changed:
                self._error = exc
                # Without the stream, its task is not told that its rows have been used.
                self._streams = [other for other in self._streams if other is not stream]
        finally:
            with self._changed:
                self._disconnect(stream)

    def _forget(self, first_running_call: int) -> None:
        """Forget the partitions of calls of `train` that have returned: no task repeats them."""
        keys = [key for key in self._received_by_key if key[0] < first_running_call]
        for key in keys:
            del self._received_by_key[key]

    def _replace(self, stream: "_Stream") -> None:
        """End the stream of an earlier attempt at this partition, and go on after its rows."""
        for other in list(self._streams):
            if other.key == stream.key and not other.is_ended:
                other.is_ended = True
                other.hang_up()
                if not other.chunks:  # No `take` would remove the stream, nor the feed end.
                    self._streams.remove(other)
        stream.received = self._received_by_key.setdefault(stream.key, stream.received)
        stream.repeat = stream.received.repeat()

    def _add(self, stream: "_Stream", chunk: Chunk, chunk_hash: int | None) -> None:
        """Add a chunk to a stream; in an inference, it has no hash."""
        self._changed.wait_for(
            lambda: len(stream.chunks) < MAX_CHUNKS or self.is_terminating or stream.is_ended
        )
        if self.is_terminating or stream.is_ended:
            return
        stream.chunks.append(chunk)
        if chunk_hash is not None:
            stream.received.add(chunk_hash, len(chunk))
        self._changed.notify_all()

    def _end(self, stream: "_Stream") -> None:
        """Mark the end of the partition of a stream."""
        stream.is_ended = True
        if not stream.is_inference and stream in self._streams:
            self._finish_if_used(stream)
        self._changed.notify_all()

    def _disconnect(self, stream: "_Stream") -> None:
        """Handle the end of a connection, which may come before the end of the partition."""
        if stream.is_inference and stream in self._streams and not stream.is_ended:
            self._streams.remove(stream)  # The next attempt feeds all rows of the partition.
        elif stream in self._streams and not stream.is_ended:
            stream.is_ended = True
            self._finish_if_used(stream)
        self._changed.notify_all()


class _Stream:
    """The connection to one task that feeds a partition.

    Attributes:
        key: the number of the call of `train` or `inference`, and the number of the partition.
        chunks: chunks that were received and have not been used up.
        first_running_call: number of the first call of `train` that has not returned.
        received: the chunks of the partition that all attempts have fed.
        repeat: those of earlier attempts.
        is_started: the function has taken rows of the partition.
        is_ended: all rows of the partition have been received.
    """

    def __init__(
        self,
        connection: socket.socket,
        call_number: int,
        partition: int,
        qname: str,
        is_inference: bool,
        first_running_call: int,
    ) -> None:
        self.connection = connection
        self.qname = qname
        self.is_inference = is_inference
        self.first_running_call = first_running_call
        self.key = (call_number, partition)
        self.chunks: deque[Chunk] = deque()
        self.received = Received()
        self.repeat = self.received.repeat()
        self.is_started = False
        self.is_ended = False
        self._send_lock = threading.Lock()

    def send(self, kind: bytes, body: bytes = b"") -> None:
        """Send a frame. A task that has gone is ignored."""
        with self._send_lock:
            try:
                self.connection.sendall(protocol.header(kind, body))
                if body:
                    self.connection.sendall(body)
            except OSError:
                pass

    def hang_up(self) -> None:
        """Shut the connection down, which ends its thread here and is seen by its task."""
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def _chunk(kind: bytes, body: bytearray) -> Chunk:
    return ArrowChunk(body) if kind == protocol.ARROW else Chunk(pickle.loads(body))
