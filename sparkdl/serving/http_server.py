"""Runs on the driver. The HTTP server of a model server: uvicorn in a thread, and its end.

One thread reads requests and writes answers in a loop of events, so that neither a slow client nor
a request that waits for a batch holds a thread. Everything that takes time runs in other threads.
"""

import asyncio
import select
import socket
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

import uvicorn
import uvloop

from sparkdl.serving.asgi import Asgi
from sparkdl.serving.http_connection import HttpConnection
from sparkdl.serving.messages import Answer, HttpRequest, ReadBody
from sparkdl.serving.places import MAX_OPEN
from sparkdl.serving.request_threads import RequestThreads
from sparkdl.serving.sockets import BACKLOG, IDLE_S

# Threads in which requests that are large, or have to wait, are read and answered.
THREADS = 64
MAX_CONNECTIONS = MAX_OPEN
MAX_HEADER_BYTES = 1 << 16
# Seconds for which connections without a request are kept while the server is being stopped,
# counted from the last answer.
LAST_REQUEST_S = 0.2
# Seconds in which the bodies of the last requests have to come.
LAST_BODY_S = 2.0
# Seconds for which the end waits for answers that are being sent, after requests were given up.
END_S = 1.0
# Seconds that uvicorn needs to end when there is nothing to wait for.
MIN_END_S = 0.1


class HttpServer:
    """An HTTP server in threads of this process.

    Args:
        bound: the socket.
        max_body_bytes: the size of the largest body.
    """

    def __init__(self, bound: socket.socket, max_body_bytes: int) -> None:
        self._pool = RequestThreads(THREADS, "sparkdl-serving-request")
        self._asgi = Asgi(lambda head, read: self._answer(head, read, self._pool), max_body_bytes)
        self._socket = bound
        self._server = uvicorn.Server(_config(self._asgi))
        self._thread = threading.Thread(target=self._run, name="sparkdl-serving", daemon=True)

    def start(self, answer: Callable[[HttpRequest, ReadBody, Executor], Awaitable[Answer]]) -> None:
        """Answer requests from now on.

        Args:
            answer: answers a request without a body, whose body it may read, with a pool of
                threads, and never fails.
        """
        self._answer = answer
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port."""
        host, port, *_ = self._socket.getsockname()
        return host, port

    @property
    def num_open(self) -> int:
        """Number of requests that are not answered."""
        return self._asgi.num_open

    @property
    def num_connections(self) -> int:
        """Number of connections of clients."""
        return len(self._server.server_state.connections)

    def drain(self, timeout_s: float) -> None:
        """Take no more connections, wait until all requests are answered, and end the threads.

        Args:
            timeout_s: seconds after which requests that were not answered are given up.
        """
        asyncio.run_coroutine_threadsafe(self._drain(timeout_s), self._loop).result()
        self._thread.join()
        self._pool.shutdown(cancel_futures=True)

    def close(self) -> None:
        """Close all connections, and end the threads."""
        if self._thread.is_alive():
            self.drain(0.0)
        self._socket.close()

    # ---- in the loop

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        await self._server.serve(sockets=[self._socket])
        # Requests that were given up get their answer.
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(tasks, timeout=END_S)
        deadline = self._loop.time() + END_S
        while self.num_connections and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        # The connections and the socket end in the next rounds of the loop.
        for _ in range(3):
            await asyncio.sleep(0)

    async def _drain(self, timeout_s: float) -> None:
        deadline = self._loop.time() + timeout_s
        self._asgi.is_draining = True
        await self._close_socket(min(deadline, self._loop.time() + LAST_BODY_S))
        self._loop.call_later(LAST_BODY_S, self._asgi.give_up_bodies)
        await self._read_last_requests(deadline)
        left_s = max(MIN_END_S, deadline - self._loop.time())
        self._server.config.timeout_graceful_shutdown = left_s  # type: ignore[assignment]
        self._server.should_exit = True

    async def _close_socket(self, deadline: float) -> None:
        """Take the connections that wait, and no more."""
        while not self._server.started:
            await asyncio.sleep(0)
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        # A connection that was not taken is reset when the socket is closed.
        while waiting.poll(0) and self._loop.time() < deadline:
            await asyncio.sleep(0)
        for server in self._server.servers:
            server.close()

    async def _read_last_requests(self, deadline: float) -> None:
        """Wait until no request has come for a while.

        uvicorn closes a connection without a request at once, maybe before it has read one that was
        sent already.
        """
        state = self._server.server_state
        num_answered = -1
        quiet_at = 0.0
        while self._loop.time() < deadline:
            if num_answered != state.total_requests:
                num_answered = state.total_requests
                quiet_at = self._loop.time() + LAST_REQUEST_S
            await asyncio.sleep(0.01)
            if not self.num_connections or self._loop.time() >= quiet_at:
                break


def _config(application: Asgi) -> uvicorn.Config:
    """Return the settings of uvicorn, none of which comes from the environment."""
    return uvicorn.Config(
        application,
        interface="asgi3",
        http=HttpConnection,
        ws="none",
        lifespan="off",
        # The program of the user says what is logged.
        log_config=None,
        proxy_headers=False,
        server_header=False,
        workers=1,
        backlog=BACKLOG,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=IDLE_S,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )
