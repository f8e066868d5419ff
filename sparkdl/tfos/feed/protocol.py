"""Runs in a Spark task and in the training process. Define the protocol of feed tasks and nodes.

A feeding task and its node are connected by a Unix stream socket in a folder that only this user
can enter. Each side checks that its peer is a process of the same user, so pickled data comes from
the user's own processes only. All messages are frames: one byte for the kind, eight bytes for the
length of the body (big-endian), then the body.
"""

import select
import socket
from collections import deque
from collections.abc import Iterator

HEADER_BYTES = 9
RECEIVE_BYTES = 1 << 18

# From the task: its partition and queue; rows as a pickled list; rows as an Arrow stream; the end
# of the partition.
HELLO, ROWS, ARROW, END = b"H", b"R", b"A", b"E"
# From the supervisor of the node: no more rows will come.
FEED_OVER = b"F"
# From the node: the number of rows of this partition that it has already; it accepts no more rows;
# all rows have been used, with the number of rows of failed tasks that were not fed again as they
# were; results of an inference.
WELCOME, TERMINATING, DONE, RESULTS = b"W", b"T", b"D", b"S"


def header(kind: bytes, body: bytes = b"") -> bytes:
    """Return the first bytes of a frame, which are followed by the body.

    Example:
        >>> header(FEED_OVER)
        b'F\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00'
    """
    return kind + len(body).to_bytes(8, "big")


def read_frame(connection: socket.socket) -> tuple[bytes, bytearray] | None:
    """Return the kind and body of the next frame, or None at the end of the connection."""
    start = _read(connection, HEADER_BYTES)
    if start is None:
        return None
    body = _read(connection, int.from_bytes(start[1:], "big"))
    return None if body is None else (bytes(start[:1]), body)


def _read(connection: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        try:
            count = connection.recv_into(view)
        except ConnectionResetError:
            return None
        if not count:
            return None
        view = view[count:]
    return data


class FeedConnection:
    """The task's end of a connection. It sends and receives concurrently from one thread.

    Args:
        connection: the connected socket. The `FeedConnection` owns and closes the socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.setblocking(False)
        self._outgoing: deque[memoryview] = deque()
        self._incoming = bytearray()
        self._is_closed = False

    @property
    def is_full(self) -> bool:
        """Return True if data is waiting to be sent."""
        return bool(self._outgoing)

    def put(self, kind: bytes, body: bytes = b"") -> None:
        """Queue a frame. The next calls of `exchange` send it."""
        self._outgoing.append(memoryview(header(kind, body)))
        if body:
            self._outgoing.append(memoryview(body))

    def exchange(self, wait: bool) -> Iterator[tuple[bytes, bytes]]:
        """Send as much queued data as possible and yield the frames that have arrived.

        Args:
            wait: block until data can be sent or has arrived.

        Raises:
            EOFError: if the node has closed the connection and all its frames were yielded.
        """
        if self._is_closed:
            raise EOFError
        poll = select.poll()  # select(2) cannot watch descriptors above 1023.
        poll.register(self._connection, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
        ready = poll.poll(None if wait else 0)
        events = ready[0][1] if ready else 0
        if events & select.POLLOUT:
            self._send()
        if events & ~select.POLLOUT:
            self._receive()
        yield from self._frames()

    def _send(self) -> None:
        try:
            while self._outgoing:
                sent = self._connection.send(self._outgoing[0])
                if sent == len(self._outgoing[0]):
                    self._outgoing.popleft()
                else:
                    self._outgoing[0] = self._outgoing[0][sent:]
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            # The frames that the node sent before it ended can still be read.
            self._outgoing.clear()

    def _receive(self) -> None:
        try:
            data = self._connection.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except ConnectionResetError:
            data = b""
        self._is_closed = not data
        self._incoming += data

    def _frames(self) -> Iterator[tuple[bytes, bytes]]:
        start = 0
        while len(self._incoming) - start >= HEADER_BYTES:
            body_start = start + HEADER_BYTES
            end = body_start + int.from_bytes(self._incoming[start + 1 : body_start], "big")
            if len(self._incoming) < end:
                break
            yield bytes(self._incoming[start : start + 1]), bytes(self._incoming[body_start:end])
            start = end
        del self._incoming[:start]

    def __enter__(self) -> "FeedConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
