"""Runs in a Spark task and in the training process.

What a task that feeds and the node that it feeds say to each other.

They share a Unix stream socket in a folder that only this user can enter, and each sees that the
other is this user; so what is pickled comes from one's own processes. All is said in frames: a
letter, eight bytes with the length of the body, the body.
"""

import select
import socket
from collections import deque
from collections.abc import Iterator

__all__ = [
    "ARROW",
    "DONE",
    "END",
    "FEED_OVER",
    "HEADER_BYTES",
    "HELLO",
    "RESULTS",
    "ROWS",
    "TERMINATING",
    "WELCOME",
    "Link",
    "frame",
    "read_frame",
]

HEADER_BYTES = 9
RECEIVE_BYTES = 1 << 18

# From the task: who it is; rows as a pickled list, or as an Arrow stream; the partition's end.
HELLO, ROWS, ARROW, END = b"H", b"R", b"A", b"E"
# From the node's keeper: no more rows will come. See `cluster.keeper`.
FEED_OVER = b"F"
# From the node: how many rows it has of this partition; it wants none; all are used; results.
WELCOME, TERMINATING, DONE, RESULTS = b"W", b"T", b"D", b"S"


def frame(kind: bytes, body: bytes = b"") -> bytes:
    """A frame of a short body.

    Example:
        >>> frame(FEED_OVER)
        b'F\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00'
    """
    return kind + len(body).to_bytes(8, "big") + body


def read_frame(connection: socket.socket) -> tuple[bytes, bytearray] | None:
    """The next frame of a connection, its kind and body; None at the end."""
    header = _read(connection, HEADER_BYTES)
    if header is None:
        return None
    body = _read(connection, int.from_bytes(header[1:], "big"))
    return None if body is None else (bytes(header[:1]), body)


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


class Link:
    """A task's end of a connection: sends and receives at once, from one thread.

    Args:
        connection: the socket; it is ours from now on.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.setblocking(False)
        self._out: deque[memoryview] = deque()
        self._in = bytearray()
        self._is_over = False

    @property
    def is_full(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._out)

    def put(self, kind: bytes, body: bytes = b"") -> None:
        """Have a frame sent by the next turns."""
        self._out.append(memoryview(kind + len(body).to_bytes(8, "big")))
        if body:
            self._out.append(memoryview(body))

    def turn(self, waits: bool) -> Iterator[tuple[bytes, bytes]]:
        """Send what can be sent; yield the frames that came.

        Args:
            waits: until something could be sent or has come.

        Raises:
            EOFError: the node is gone, and all that it has said was given.
        """
        if self._is_over:
            raise EOFError
        poll = select.poll()  # Unlike select(2), for any number of open files.
        poll.register(self._connection, select.POLLIN | (select.POLLOUT if self._out else 0))
        found = poll.poll(None if waits else 0)
        events = found[0][1] if found else 0
        if events & select.POLLOUT:
            self._send()
        if events & ~select.POLLOUT:
            self._receive()
        yield from self._frames()

    def _send(self) -> None:
        try:
            while self._out:
                sent = self._connection.send(self._out[0])
                if sent == len(self._out[0]):
                    self._out.popleft()
                else:
                    self._out[0] = self._out[0][sent:]
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            self._out.clear()  # What it has said before it ended is still to be read.

    def _receive(self) -> None:
        try:
            data = self._connection.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except ConnectionResetError:
            data = b""
        self._is_over = not data
        self._in += data

    def _frames(self) -> Iterator[tuple[bytes, bytes]]:
        at = 0
        while len(self._in) - at >= HEADER_BYTES:
            length = int.from_bytes(self._in[at + 1 : at + HEADER_BYTES], "big")
            end = at + HEADER_BYTES + length
            if len(self._in) < end:
                break
            yield bytes(self._in[at : at + 1]), bytes(self._in[at + HEADER_BYTES : end])
            at = end
        del self._in[:at]

    def __enter__(self) -> "Link":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
