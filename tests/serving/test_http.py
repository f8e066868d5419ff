"""The HTTP server itself: connections, limits, and its end; no model is asked."""

import asyncio
import contextlib
import http.client
import json
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import pytest

from sparkdl.errors import ConfigError
from sparkdl.serving import asgi, http_connection, http_server, sockets
from sparkdl.serving.application import Application
from sparkdl.serving.http_server import HttpServer
from sparkdl.serving.messages import Answer, HttpRequest, ReadBody, error_answer
from sparkdl.serving.request_error import RequestError
from sparkdl.serving.sockets import listen
from tests.helpers.processes import eventually
from tests.serving.fakes import FakeCatalog

MAX_BODY = 1000
LARGE = 1 << 23

# A request takes a minute in a thread, and the server gives it up.
GIVEN_UP = """
import asyncio, socket, time
from sparkdl.serving.application import Application
from sparkdl.serving.http_server import HttpServer
from sparkdl.serving.sockets import listen

async def answer(head, read, pool):
    await asyncio.get_running_loop().run_in_executor(pool, time.sleep, 60)

server = HttpServer(listen("127.0.0.1", 0), 1000)
server.start(answer)
client = socket.create_connection(server._socket.getsockname())
client.sendall(b"GET / HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n")
while not server.num_open:
    time.sleep(0.01)
server.drain(0.5)
print(client.recv(1000).split()[1].decode())
"""


class Echo:
    """Answers with the request; `/wait` waits until `opened` is set, and holds no thread.

    `/hold` waits in the loop of the server, and `/busy` computes there.
    """

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.entered = threading.Semaphore(0)

    async def __call__(self, head: HttpRequest, read: ReadBody, pool: Executor) -> Answer:
        try:
            request = replace(head, body=await read())
        except RequestError as exc:
            return error_answer(str(exc), exc.status)
        if request.path == "/wait":
            self.entered.release()
            while not self.opened.is_set():
                await asyncio.sleep(0.005)
        if request.path == "/hold":
            # The server can do nothing else.
            self.entered.release()
            self.opened.wait(240)
        if request.path == "/busy":
            time.sleep(0.005)
        if request.path == "/large":
            return Answer(b" " * LARGE)
        said = {"method": request.method, "path": request.path, "body": request.body.decode()}
        return Answer(json.dumps(said).encode(), headers={"X-Id": request.headers.get("x-id", "")})


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def server(echo: Echo) -> Iterator[HttpServer]:
    server = HttpServer(listen("127.0.0.1", 0), MAX_BODY)
    server.start(echo)
    yield server
    server.close()


@pytest.fixture
def connect(server: HttpServer) -> Iterator[Callable[[], socket.socket]]:
    """Opens connections, which are closed at the end."""
    address, opened = server._socket.getsockname(), []

    def connect() -> socket.socket:
        opened.append(socket.create_connection(address, timeout=120))
        return opened[-1]

    yield connect
    for one in opened:
        one.close()


Connect = Callable[[], socket.socket]


def answers(connection: socket.socket, number: int) -> list[Any]:
    """The JSON of the next answers."""
    file = connection.makefile("rb")
    return [answer_of(file)[1] for _ in range(number)]


def answer_of(file: Any) -> tuple[int, Any, dict[str, str]]:
    status = int(file.readline().split()[1])
    headers = {}
    while line := file.readline().strip():
        name, _, value = line.decode().partition(": ")
        headers[name.lower()] = value
    body = file.read(int(headers["content-length"]))
    return status, json.loads(body) if body else None, headers


def whole(connection: socket.socket) -> bytes:
    """Everything until the server ends the connection."""
    return connection.makefile("rb").read()


def test_requests_of_a_connection_are_answered_in_their_order(connect: Connect, echo: Echo) -> None:
    connection = connect()
    connection.sendall(b"".join(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n" for _ in range(2)))
    for number in range(50):
        connection.sendall(
            f"POST /{number} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx".encode()
        )
    assert echo.entered.acquire(timeout=120)
    echo.opened.set()
    paths = [answer["path"] for answer in answers(connection, 52)]
    assert paths == ["/wait", "/wait", *(f"/{number}" for number in range(50))]


def test_a_request_may_come_byte_by_byte_and_in_chunks(connect: Connect) -> None:
    connection = connect()
    head = b"POST http://localhost:1/a%5Fb%C3%BC?x=1#y HTTP/1.1\r\nHost: a\r\nX-Id: 7\r\n"
    body = b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    for byte in head + body:
        connection.sendall(bytes([byte]))
    status, answer, headers = answer_of(connection.makefile("rb"))
    assert (status, headers["x-id"]) == (200, "7")
    assert answer == {"method": "POST", "path": "/a_bü", "body": "abcde"}


def test_the_head_of_an_answer_is_sent_with_its_body() -> None:
    sent: list[bytes] = []

    class Transport:
        def write(self, data: bytes) -> None:
            sent.append(data)

        def close(self) -> None:
            sent.append(b"closed")

        def is_closing(self) -> bool:
            return False

    transport = http_connection._JoinedWrites(Transport())
    for data in (b"HTTP/1.1 100 Continue", b"HTTP/1.1 200 OK", b"HTTP/1.1 x", b"", b"more"):
        transport.write(data)
    assert sent == [b"HTTP/1.1 100 Continue", b"HTTP/1.1 200 OKHTTP/1.1 x", b"more"]
    transport.write(b"HTTP/1.1 200 OK")
    transport.write(b"")  # As for HEAD.
    transport.write(b"HTTP/1.1 503 Busy")
    assert not transport.is_closing()
    transport.close()
    assert sent[3:] == [b"HTTP/1.1 200 OK", b"HTTP/1.1 503 Busy", b"closed"]


def test_head_has_no_body(connect: Connect) -> None:
    connection = connect()
    connection.sendall(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
    connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    first, second = whole(connection).split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert first.endswith(b"\r\n\r\n") and b"content-length: 4" in first.lower()
    assert b"connection: close" in second.lower() and second.endswith(b"}")


def test_a_client_that_waits_is_told_to_continue(connect: Connect) -> None:
    connection = connect()
    connection.sendall(
        b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    )
    assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(b"ab")
    assert answers(connection, 1)[0]["body"] == "ab"


POST = b"POST / HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x01\r\n\r\n",
        POST + b"Content-Length: x\r\n\r\n",
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        POST + b"Host: b\r\n\r\n",
        POST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused_after_the_requests_before_it(
    connect: Connect, echo: Echo, sent: bytes
) -> None:
    connection = connect()
    connection.sendall(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n" + sent)
    assert echo.entered.acquire(timeout=120)
    echo.opened.set()
    file = connection.makefile("rb")
    assert answer_of(file)[0] == 200
    assert file.read().startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("address", [b"http://[/", b"http://%E2%84%80/"])
def test_an_address_that_is_none_is_refused(connect: Connect, caplog: Any, address: bytes) -> None:
    connection = connect()
    connection.sendall(b"GET " + address + b" HTTP/1.1\r\nHost: a\r\n\r\n")
    status, answer, headers = answer_of(connection.makefile("rb"))
    assert (status, headers["connection"]) == (400, "close")
    assert answer["error"].startswith("the address of the request is none")
    assert caplog.records == []


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nX: " + b"a" * (1 << 19),
        b"GET /" + b"a" * (1 << 19),
        b"GET / HTTP/1.1\r\n" + b"X: abcdefgh\r\n" * 30_000,
    ],
)
def test_headers_that_are_too_large_end_the_connection(connect: Connect, sent: bytes) -> None:
    connection = connect()
    try:
        connection.sendall(sent)
        assert whole(connection).startswith(b"HTTP/1.1 400 ")
    except ConnectionError:
        pass  # The client was still sending.


@pytest.mark.parametrize(
    "sent",
    [
        POST + b"Content-Length: 1001\r\n\r\n" + b"a" * 1001,
        POST + b"Transfer-Encoding: chunked\r\n\r\n3E9\r\n" + b"a" * 1001 + b"\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"F\r\naaaaaaaaaaaaaaa\r\n" * 100_000
        + b"0\r\n\r\n",
    ],
)  # fmt: skip
def test_a_body_that_is_too_large_is_refused_and_the_connection_goes_on(
    connect: Connect, sent: bytes
) -> None:
    connection = connect()
    connection.sendall(sent)
    file = connection.makefile("rb")
    status, answer, _ = answer_of(file)
    assert (status, [*answer]) == (413, ["error"])
    connection.sendall(b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n")
    assert answer_of(file)[1]["path"] == "/next"


def test_a_body_that_was_refused_and_goes_on_wrongly_ends_the_connection(
    connect: Connect, caplog: Any
) -> None:
    connection = connect()
    connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n3E9\r\n" + b"a" * 1001)
    file = connection.makefile("rb")
    assert answer_of(file)[0] == 413
    connection.sendall(b"\r\nno chunk\r\n")
    with contextlib.suppress(ConnectionResetError):
        assert file.read() == b""
    assert not [record for record in caplog.records if record.exc_info]


def test_a_body_that_is_too_large_is_refused_before_it_comes(connect: Connect) -> None:
    connection = connect()
    connection.sendall(POST + b"Content-Length: 1001\r\nExpect: 100-continue\r\n\r\n")
    assert answer_of(connection.makefile("rb"))[0] == 413


def test_a_client_that_goes_on_sending_sees_why_it_was_refused(server: HttpServer) -> None:
    host, port = server._socket.getsockname()
    connection = http.client.HTTPConnection(host, port, timeout=120)
    connection.request("POST", "/", b"a" * (1 << 22))
    assert connection.getresponse().status == 413
    connection.close()


def test_the_token_is_looked_at_before_the_body_comes() -> None:
    application = Application(FakeCatalog([]), token="0123456789abcdef")
    server = HttpServer(listen("127.0.0.1", 0), MAX_BODY)
    server.start(application.answer_soon)
    post = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n"
    with socket.create_connection(server._socket.getsockname(), timeout=120) as connection:
        connection.sendall(post + b"Expect: 100-continue\r\n\r\n")
        status, answer, headers = answer_of(connection.makefile("rb"))
    server.close()
    assert (status, [*answer], headers["www-authenticate"]) == (401, ["error"], "Bearer")


@pytest.mark.parametrize("length", [b"Content-Length: 3", b"Transfer-Encoding: chunked"])
def test_a_request_that_offers_another_protocol_is_read_with_its_body(
    connect: Connect, length: bytes
) -> None:
    """As Java's HttpClient and `curl --http2` send them."""
    connection = connect()
    file = connection.makefile("rb")
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
    connection.sendall(POST + offer + length + b"\r\n\r\n")
    connection.sendall(b"abc" if length.endswith(b"3") else b"3\r\nabc\r\n0\r\n\r\n")
    status, answer, _ = answer_of(file)
    assert (status, answer["body"]) == (200, "abc")
    connection.sendall(b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n")
    assert answer_of(file)[1]["path"] == "/next"


def test_connections_beyond_the_limit_are_refused_and_others_are_not(
    monkeypatch: Any, connect: Connect, server: HttpServer
) -> None:
    monkeypatch.setattr(http_connection, "REFUSED_S", 30.0)
    server._server.config.limit_concurrency = 2
    request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    first, second = connect(), connect()
    for one in (first, second):
        one.sendall(request)
        assert len(answers(one, 1)) == 1
    refused = connect()
    refused.sendall(request)
    assert whole(refused).startswith(b"HTTP/1.1 503 ")
    monkeypatch.setattr(http_connection, "REFUSED_S", 0.2)
    first.sendall(request)
    assert len(answers(first, 1)) == 1
    # A connection that was refused is not counted; one that sends nothing is, for a short time.
    assert whole(connect()) == b""
    assert eventually(lambda: server.num_connections == 2)
    first.close()
    assert eventually(lambda: server.num_connections == 1)
    third = connect()
    third.sendall(request)
    assert len(answers(third, 1)) == 1


def test_a_client_that_reads_nothing_holds_neither_memory_nor_others(connect: Connect) -> None:
    greedy = connect()
    request = POST + b"Content-Length: 900\r\n\r\n" + b"a" * 900
    greedy.settimeout(0.5)
    sent = 0
    with pytest.raises(OSError):  # It can send no more, or was cut off.
        while sent < 1 << 28:
            sent += greedy.send(request * 100)
    assert sent < 1 << 26
    other = connect()
    other.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert len(answers(other, 1)) == 1


def test_a_head_or_a_body_that_does_not_come_ends_the_connection(
    monkeypatch: Any, connect: Connect, echo: Echo
) -> None:
    monkeypatch.setattr(asgi, "BODY_S", 0.5)
    busy, late = connect(), connect()
    busy.sendall(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
    assert echo.entered.acquire(timeout=120)
    late.sendall(POST + b"Content-Length: 2\r\n\r\na")
    # The answer does not wait for the rest of the body, and the connection ends.
    assert whole(late).startswith(b"HTTP/1.1 408 ")
    monkeypatch.setattr(http_connection, "HEAD_S", 1.0)
    slow, silent = connect(), connect()
    slow.sendall(b"POST / HTTP/1.1\r\nContent-Len")
    assert whole(silent) == whole(slow) == b""
    echo.opened.set()
    assert len(answers(busy, 1)) == 1


def test_a_slow_reader_gets_the_whole_answer(monkeypatch: Any, echo: Echo) -> None:
    """Also when it takes longer than connections without a request are kept."""
    bound = listen("127.0.0.1", 0)  # With the usual limit for a client that reads nothing.
    monkeypatch.setattr(http_server, "IDLE_S", 1)
    server = HttpServer(bound, MAX_BODY)
    server.start(echo)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    connection.connect(server._socket.getsockname())
    connection.settimeout(120)
    connection.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
    begun, num_bytes = time.monotonic(), 0
    while data := connection.recv(1 << 20):
        num_bytes += len(data)
        if time.monotonic() - begun < 2.5:
            time.sleep(0.1)
    connection.close()
    server.close()
    assert num_bytes > LARGE


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="it is Linux that does it")
def test_a_client_that_never_reads_is_cut_off(monkeypatch: Any, echo: Echo) -> None:
    monkeypatch.setattr(sockets, "IDLE_S", 1)
    server = HttpServer(listen("127.0.0.1", 0), MAX_BODY)
    server.start(echo)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        connection.connect(server._socket.getsockname())
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        assert eventually(lambda: server._server.server_state.total_requests == 1)
        assert eventually(lambda: server.num_connections == 0)
    server.close()


def test_the_end_answers_what_has_come_and_refuses_what_comes(
    monkeypatch: Any, connect: Connect, server: HttpServer, echo: Echo
) -> None:
    monkeypatch.setattr(http_server, "LAST_REQUEST_S", 0.5)
    monkeypatch.setattr(http_server, "LAST_BODY_S", 120.0)
    busy, idle, partial = connect(), connect(), connect()
    busy.sendall(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
    idle.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert len(answers(idle, 1)) == 1
    partial.sendall(POST.replace(b"/ ", b"/wait ") + b"Content-Length: 2\r\n\r\na")
    assert echo.entered.acquire(timeout=120)
    drained = threading.Thread(target=server.drain, args=(120.0,))
    drained.start()
    address = busy.getpeername()

    def is_refused() -> bool:
        try:
            socket.create_connection(address).close()
        except ConnectionRefusedError:
            return True
        return False

    assert eventually(is_refused)
    assert whole(idle) == b""
    partial.sendall(b"b")
    echo.opened.set()
    for connection in (busy, partial):
        text = whole(connection)
        assert text.startswith(b"HTTP/1.1 200 OK") and b"connection: close" in text.lower()
    drained.join(240)
    assert not drained.is_alive()


def test_the_end_answers_requests_that_are_on_their_way(
    monkeypatch: Any, connect: Connect, server: HttpServer
) -> None:
    monkeypatch.setattr(http_server, "LAST_REQUEST_S", 120.0)
    idle = connect()
    idle.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert len(answers(idle, 1)) == 1
    drained = threading.Thread(target=server.drain, args=(120.0,))
    drained.start()
    assert eventually(lambda: server._asgi.is_draining)
    idle.sendall(b"GET /late HTTP/1.1\r\nHost: a\r\n\r\n")
    text = whole(idle)
    assert b"/late" in text and b"connection: close" in text.lower()
    drained.join(240)
    assert not drained.is_alive()


def test_the_end_answers_connections_that_the_server_has_not_taken(
    connect: Connect, server: HttpServer, echo: Echo
) -> None:
    holding = connect()
    holding.sendall(b"GET /hold HTTP/1.1\r\nHost: a\r\n\r\n")
    assert echo.entered.acquire(timeout=120)
    fresh = [connect() for _ in range(200)]
    for one in fresh:
        one.sendall(b"GET /busy HTTP/1.1\r\nHost: a\r\n\r\n")
    drained = threading.Thread(target=server.drain, args=(120.0,))
    drained.start()
    echo.opened.set()
    for one in fresh:
        assert whole(one).startswith(b"HTTP/1.1 200 ")
    drained.join(240)
    assert not drained.is_alive()


def test_heads_and_bodies_that_do_not_come_do_not_hold_the_end(
    monkeypatch: Any, connect: Connect, server: HttpServer
) -> None:
    monkeypatch.setattr(http_server, "LAST_BODY_S", 0.2)
    head, body = connect(), connect()
    head.sendall(b"POST / HTT")
    body.sendall(POST + b"Content-Length: 2\r\n\r\na")
    assert eventually(lambda: server.num_open == 1 and server.num_connections == 2)
    begun = time.monotonic()
    server.drain(600.0)
    assert time.monotonic() - begun < 300
    assert whole(head) == b""
    assert whole(body).startswith(b"HTTP/1.1 503 ")


def test_a_request_that_was_given_up_does_not_hold_the_end_of_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", GIVEN_UP], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "503\n"


def test_the_log_and_the_signals_of_the_program_stay_as_they_are(echo: Echo, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    access = logging.getLogger("uvicorn.access")
    signals = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    server = HttpServer(listen("127.0.0.1", 0), MAX_BODY)
    server.start(echo)
    with socket.create_connection(server._socket.getsockname(), timeout=120) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert len(answers(connection, 1)) == 1
        assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == signals
    server.close()
    assert access.propagate and not access.handlers and not logging.getLogger("uvicorn").handlers
    assert not [record for record in caplog.records if record.name == "uvicorn.access"]


def test_the_end_gives_up_what_takes_too_long(connect: Connect, server: HttpServer) -> None:
    busy = connect()
    busy.sendall(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
    assert eventually(lambda: server.num_open == 1)
    begun = time.monotonic()
    server.drain(0.3)
    assert time.monotonic() - begun >= 0.3  # The request waits for ever.


def test_an_address_is_taken_by_one_server_only() -> None:
    """Also while the first one loads its models, and does not answer."""
    with listen("127.0.0.1", 0) as bound, pytest.raises(ConfigError, match="cannot be used"):
        listen("127.0.0.1", bound.getsockname()[1])


def test_the_threads_end_with_the_server(echo: Echo) -> None:
    def own_threads() -> set[threading.Thread]:
        return {t for t in threading.enumerate() if t.name.startswith("sparkdl-serving")}

    before = own_threads()
    server = HttpServer(listen("127.0.0.1", 0), MAX_BODY)
    server.start(echo)
    assert own_threads() - before
    server.drain(1.0)
    server.close()
    assert eventually(lambda: own_threads() <= before), own_threads() - before
