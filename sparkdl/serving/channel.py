"""Runs on the driver. Calls between a model server and the processes of its workers.

Both sides call each other over a private pair of sockets, which no other process can open.
"""

import contextlib
import itertools
import logging
import os
import pickle
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

from sparkdl.serving.request_threads import RequestThreads

# Calls that one side answers at the same time.
THREADS = 64

_logger = logging.getLogger("sparkdl.serving")


class Channel:
    """One end of a pair of sockets, over which each side calls functions of the other.

    Args:
        connection: the socket.
        functions: the functions that the other side may call, by name.
        name: the beginning of the names of threads.

    Attributes:
        is_closed: set when the other side has ended.
    """

    def __init__(
        self, connection: Connection, functions: Mapping[str, Callable[..., Any]], name: str
    ) -> None:
        self.is_closed = threading.Event()
        self._connection = connection
        self._functions = functions
        self._pool = RequestThreads(THREADS, name)
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._thread = threading.Thread(target=self._read, name=name, daemon=True)

    def start(self) -> None:
        """Take calls from now on."""
        self._thread.start()

    def begin(self, function: str, *arguments: Any) -> "Future[Any]":
        """Call a function of the other side, and return its result as a future.

        The future has the exception that the function raised, or `ConnectionError` if the other
        side has ended.
        """
        future: Future[Any] = Future()
        number = next(self._numbers)
        with self._lock:
            if self.is_closed.is_set():
                future.set_exception(_ended())
                return future
            self._waiting[number] = future
        self._send(("call", number, function, arguments))
        return future

    def call(self, function: str, *arguments: Any, timeout_s: float | None = None) -> Any:
        """Call a function of the other side, and return its result.

        Raises:
            ConnectionError: if the other side has ended.
            concurrent.futures.TimeoutError: after `timeout_s` seconds.
            Exception: whatever the function raises.
        """
        return self.begin(function, *arguments).result(timeout_s)

    def tell(self, function: str, *arguments: Any) -> None:
        """Call a function of the other side without waiting. Calls stay in their order."""
        self._send(("tell", 0, function, arguments))

    def has_unread(self) -> bool:
        """Return True if the other side has sent something that was not read yet."""
        with self._lock:
            return not self._connection.closed and self._connection.poll()

    def close(self) -> None:
        """End the connection; the other side notices it."""
        self._end()
        with self._lock:
            if self._connection.closed:
                return
            # The thread that reads closes the file, whose number may be another file's afterwards.
            with (
                contextlib.suppress(OSError),
                socket.socket(fileno=os.dup(self._connection.fileno())) as own,
            ):
                own.shutdown(socket.SHUT_RDWR)

    # ---- in the thread

    def _read(self) -> None:
        try:
            while True:
                kind, number, name, content = pickle.loads(self._connection.recv_bytes())
                if kind == "call":
                    # It takes no calls after `close`.
                    with contextlib.suppress(RuntimeError):
                        self._pool.submit(self._answer, number, name, content)
                elif kind == "tell":
                    self._run(name, content)
                else:
                    self._finish(number, kind, content)
        except (EOFError, OSError):
            pass
        finally:
            self.close()
            with self._sending, self._lock:
                self._connection.close()

    def _run(self, name: str, arguments: Any) -> None:
        try:
            self._functions[name](*arguments)
        except Exception:
            _logger.exception("%s failed", name)

    def _answer(self, number: int, name: str, arguments: Any) -> None:
        try:
            kind, content = "result", self._functions[name](*arguments)
        except Exception as exc:  # noqa: BLE001 The other side gets it.
            kind, content = "error", _sendable(exc)
        self._send((kind, number, name, content))

    def _finish(self, number: int, kind: str, content: Any) -> None:
        with self._lock:
            future = self._waiting.pop(number, None)
        if future is not None and kind == "result":
            future.set_result(content)
        elif future is not None:
            future.set_exception(content)

    def _send(self, message: tuple[str, int, str, Any]) -> None:
        try:
            data = pickle.dumps(message)
        except Exception as exc:
            kind, number, name, _ = message
            if kind in ("call", "tell"):
                raise
            # The other side waits for an answer.
            data = pickle.dumps(("error", number, name, _sendable(exc)))
        with self._sending, contextlib.suppress(OSError):
            # An end of the other side is noticed where its messages are read.
            self._connection.send_bytes(data)

    def _end(self) -> None:
        with self._lock:
            self.is_closed.set()
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(_ended())
        self._pool.shutdown()


def _sendable(exc: Exception) -> Exception:
    """Return an exception, or one that says the same if it is not the same after it was sent."""
    try:
        pickle.loads(pickle.dumps(exc))
    except Exception:  # noqa: BLE001
        return RuntimeError(f"{type(exc).__name__}: {exc}")
    return exc


def _ended() -> ConnectionError:
    return ConnectionError("the other process has ended")
