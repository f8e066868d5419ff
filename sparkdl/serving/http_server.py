"""Runs on the driver. The HTTP server of a model server: its threads, its limits, and its end.

One thread reads requests and writes answers in a loop of events, so that neither a slow client nor
a request that waits for a batch holds a thread. Everything that takes time runs in other threads.
"""

import asyncio
import contextlib
import logging
import select
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from email.utils import formatdate
from typing import Any

import uvloop

from sparkdl.errors import ConfigError
from sparkdl.serving.http_protocol import HttpProtocol, Shared
from sparkdl.serving.messages import Answer, HttpRequest

__all__ = ["HttpServer", "listen"]

# Threads for requests that are computed alone, or that are large.
THREADS = 64
MAX_CONNECTIONS = 1000
BACKLOG = 1024
# Seconds after which a connection is closed that has no request, or sends and reads nothing.
IDLE_S = 120.0
# Seconds for which a connection without a request is kept while the server is being stopped.
LAST_REQUEST_S = 0.2
# Seconds for which the end waits for connections that are being closed.
END_S = 5.0

_logger = logging.getLogger("sparkdl.serving")


class HttpServer:
    """An HTTP server in threads of this process.

    Args:
        answer: answers a request with a pool of threads, and never fails.
        bound: the socket.
        max_body_bytes: the size of the largest body.
    """

    def __init__(
        self,
        answer: Callable[[HttpRequest, Executor], Awaitable[Answer]],
        bound: socket.socket,
        max_body_bytes: int,
    ) -> None:
        self._pool = ThreadPoolExecutor(THREADS, "sparkdl-serving-request")
        self._shared = Shared(
            answer=lambda request: answer(request, self._pool),
            max_body_bytes=max_body_bytes,
            max_connections=MAX_CONNECTIONS,
        )
        self._socket = bound
        self._server: Any = None
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="sparkdl-serving", daemon=True)
        self._thread.start()
        self._in_loop(self._listen())

    @property
    def num_open(self) -> int:
        """Number of requests that have come and are not answered."""
        return sum(connection.num_open for connection in list(self._shared.connections))

    @property
    def num_connections(self) -> int:
        """Number of connections of clients."""
        return len(self._shared.connections)

    def drain(self, timeout_s: float) -> None:
        """Take no more connections, and wait until all requests are answered.

        Args:
            timeout_s: seconds after which requests that were not answered are given up.
        """
        self._in_loop(self._drain(timeout_s))

    def close(self) -> None:
        """Close all connections, and end the threads."""
        self._in_loop(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ---- in the loop

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _in_loop(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _listen(self) -> None:
        loop = self._loop
        self._socket.setblocking(False)
        self._server = await loop.create_server(
            lambda: HttpProtocol(self._shared), sock=self._socket, backlog=BACKLOG
        )
        self._care = loop.create_task(self._take_care())

    async def _take_care(self) -> None:
        """Keep the date, and close connections on which nothing happens."""
        while True:
            self._shared.date = formatdate(usegmt=True)
            limit = self._loop.time() - IDLE_S
            for connection in list(self._shared.connections):
                if connection.last_active < limit and not connection.num_open:
                    connection.close()
            await asyncio.sleep(1.0)

    async def _drain(self, timeout_s: float) -> None:
        loop, shared = self._loop, self._shared
        deadline = loop.time() + timeout_s
        shared.is_draining = True
        # Connections that clients have made already are taken, and no more.
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        while loop.time() < deadline and waiting.poll(0):
            await asyncio.sleep(0.005)
        self._server.close()
        quiet_since = loop.time()
        while loop.time() < min(deadline, quiet_since + LAST_REQUEST_S):
            if any(
                connection.is_busy or connection.has_unread for connection in shared.connections
            ):
                quiet_since = loop.time()
            elif not shared.connections:
                return
            await asyncio.sleep(0.01)

    async def _close(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for connection in list(self._shared.connections):
            connection.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()
        # The connections and the socket end in the next rounds of the loop.
        deadline = self._loop.time() + END_S
        while self._shared.connections and self._loop.time() < deadline:
            await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; connections wait until a server takes them.

    Raises:
        ConfigError: if the address cannot be used.
    """
    with contextlib.ExitStack() as stack:
        try:
            if not isinstance(port, int) or not 0 <= port <= 65535:
                raise OverflowError("a port is a number from 0 to 65535")
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            bound = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            # Two sockets may be bound to one port until one of them listens.
            bound.listen(BACKLOG)
        except (OSError, OverflowError, TypeError, UnicodeError) as exc:
            raise ConfigError(
                f"host is {host!r} and port is {port!r}, which cannot be used: {exc}. Pass another "
                "port, or 0 for a free one."
            ) from exc
        stack.pop_all()
        return bound
