"""The HTTP server itself: connections, limits, and its end; no model is asked."""

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any

import pytest

from sparkdl.errors import ConfigError
from sparkdl.serving import http_server
from sparkdl.serving.http_server import HttpServer, listen
from sparkdl.serving.messages import Answer, HttpRequest
from tests.helpers.processes import eventually

MAX_BODY = 1000


class Echo:
    """Answers with the request; `/wait` waits until `opened` is set, and holds no thread."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.entered = threading.Semaphore(0)

    async def __call__(self, request: HttpRequest, pool: Executor) -> Answer:
        if request.path == "/wait":
            self.entered.release()
            while not self.opened.is_set():
                await asyncio.sleep(0.005)
        said = {"method": request.method, "path": request.path, "body": request.body.decode()}
        return Answer(json.dumps(said).encode(), headers={"X-Id": request.headers.get("x-id", "")})


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def server(echo: Echo) -> Iterator[HttpServer]:
    server = HttpServer(echo, listen("127.0.0.1", 0), MAX_BODY)
    yield server
    server.close()


@pytest.fixture
def connect(server: HttpServer) -> Iterator[Callable[[], socket.socket]]:
    """Opens connections, which are closed at the end."""
    address, opened = server._socket.getsockname(), []

    def connect() -> socket.socket:
        opened.append(socket.create_connection(address, timeout=30))
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
        connection.sendall(f"POST /{number} HTTP/1.1\r\nContent-Length: 1\r\n\r\nx".encode())
    assert echo.entered.acquire(timeout=30)
    echo.opened.set()
    paths = [answer["path"] for answer in answers(connection, 52)]
    assert paths == ["/wait", "/wait", *(f"/{number}" for number in range(50))]


def test_a_request_may_come_byte_by_byte_and_in_chunks(connect: Connect) -> None:
    connection = connect()
    head = b"POST http://localhost:1/a%5Fb%C3%BC?x=1#y HTTP/1.1\r\nX-Id: 7\r\n"
    body = b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    for byte in head + body:
        connection.sendall(bytes([byte]))
    status, answer, headers = answer_of(connection.makefile("rb"))
    assert (status, headers["x-id"]) == (200, "7")
    assert answer == {"method": "POST", "path": "/a_bü", "body": "abcde"}


def test_head_has_no_body_and_old_clients_keep_their_connection(connect: Connect) -> None:
    connection = connect()
    connection.sendall(b"HEAD / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
    first, second = whole(connection).split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert b"Connection: keep-alive" in first and first.endswith(b"\r\n\r\n")
    assert b"Connection: close" in second and second.endswith(b"}")
    assert b"Content-Length: 42" in first.replace(b"Content-Length: 43", b"Content-Length: 42")


def test_a_client_that_waits_is_told_to_continue(connect: Connect) -> None:
    connection = connect()
    connection.sendall(b"PUT / HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(b"ab")
    assert answers(connection, 1)[0]["body"] == "ab"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x00\x01\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1001\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3E9\r\n" + b"a" * 1001, 413),
        (
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            + (b"1;" + b"x" * 9000 + b"\r\na\r\n") * 60,
            413,
        ),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * (1 << 19), 431),
        (b"GET /" + b"a" * (1 << 19), 431),
        (b"GET / HTTP/1.1\r\n" + b"X: abcdefgh\r\n" * 10_000, 431),
    ],
)
def test_what_is_no_request_or_too_large_is_refused_after_the_requests_before_it(
    connect: Connect, echo: Echo, sent: bytes, status: int
) -> None:
    connection = connect()
    connection.sendall(b"GET /wait HTTP/1.1\r\n\r\n" + sent)
    assert echo.entered.acquire(timeout=30)
    echo.opened.set()
    file = connection.makefile("rb")
    assert answer_of(file)[0] == 200
    refused, answer, headers = answer_of(file)
    assert (refused, [*answer], headers["connection"]) == (status, ["error"], "close")
    assert file.read() == b""


def test_a_client_that_goes_on_sending_sees_why_it_was_refused(server: HttpServer) -> None:
    host, port = server._socket.getsockname()
    connection = http.client.HTTPConnection(host, port, timeout=30)
    connection.request("POST", "/", b"a" * (1 << 22))
    assert connection.getresponse().status == 413
    connection.close()


def test_a_request_for_another_protocol_is_answered_in_this_one(connect: Connect) -> None:
    connection = connect()
    connection.sendall(b"GET /x HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nmore")
    text = whole(connection)
    assert b'"path": "/x"' in text and b"Connection: close" in text


def test_connections_beyond_the_limit_are_refused(
    monkeypatch: Any, connect: Connect, server: HttpServer
) -> None:
    monkeypatch.setattr(server._shared, "max_connections", 2)
    first, second = connect(), connect()
    for one in (first, second):
        one.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert len(answers(one, 1)) == 1
    refused = connect()
    assert whole(refused).startswith(b"HTTP/1.1 503 ")
    for one in (first, refused):
        one.close()
    assert eventually(lambda: len(server._shared.connections) == 1)


def test_a_client_that_reads_nothing_holds_neither_memory_nor_others(
    connect: Connect, server: HttpServer
) -> None:
    greedy = connect()
    greedy.setblocking(False)
    request = b"POST / HTTP/1.1\r\nContent-Length: 900\r\n\r\n" + b"a" * 900
    sent = 0
    while True:
        try:
            sent += greedy.send(request * 100)
        except BlockingIOError:
            time.sleep(0.1)
            try:
                sent += greedy.send(request)
            except BlockingIOError:
                break
    assert sent < 1 << 26
    other = connect()
    other.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert len(answers(other, 1)) == 1


def test_connections_on_which_nothing_happens_are_closed(
    monkeypatch: Any, connect: Connect, echo: Echo
) -> None:
    monkeypatch.setattr(http_server, "IDLE_S", 0.5)
    idle, slow, busy = connect(), connect(), connect()
    slow.sendall(b"POST / HTTP/1.1\r\nContent-Len")
    busy.sendall(b"GET /wait HTTP/1.1\r\n\r\n")
    assert echo.entered.acquire(timeout=30)
    assert whole(idle) == whole(slow) == b""
    echo.opened.set()
    assert len(answers(busy, 1)) == 1


def test_the_end_answers_what_has_come_and_refuses_what_comes(
    connect: Connect, server: HttpServer, echo: Echo
) -> None:
    busy, idle, partial = connect(), connect(), connect()
    busy.sendall(b"GET /wait HTTP/1.1\r\n\r\n")
    partial.sendall(b"POST /wait HTTP/1.1\r\nContent-Length: 2\r\n\r\na")
    assert echo.entered.acquire(timeout=30)
    drained = threading.Thread(target=server.drain, args=(30.0,))
    drained.start()
    address = busy.getpeername()

    def is_refused() -> bool:
        try:
            socket.create_connection(address).close()
        except ConnectionRefusedError:
            return True
        return False

    assert eventually(is_refused)
    idle.sendall(b"GET /late HTTP/1.1\r\n\r\n")
    partial.sendall(b"b")
    echo.opened.set()
    for connection in (busy, idle, partial):
        text = whole(connection)
        assert text.startswith(b"HTTP/1.1 200 OK") and b"Connection: close" in text
    drained.join(30)
    assert not drained.is_alive()


def test_the_end_gives_up_what_takes_too_long(connect: Connect, server: HttpServer) -> None:
    busy = connect()
    busy.sendall(b"GET /wait HTTP/1.1\r\n\r\n")
    assert eventually(lambda: server.num_open == 1)
    begun = time.monotonic()
    server.drain(0.3)
    assert 0.3 <= time.monotonic() - begun < 5


def test_an_address_is_taken_by_one_server_only() -> None:
    """Also while the first one loads its models, and does not answer."""
    with listen("127.0.0.1", 0) as bound, pytest.raises(ConfigError, match="cannot be used"):
        listen("127.0.0.1", bound.getsockname()[1])


def test_the_threads_end_with_the_server(echo: Echo) -> None:
    def names() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.startswith("sparkdl-serving")]

    before = names()
    server = HttpServer(echo, listen("127.0.0.1", 0), MAX_BODY)
    assert len(names()) > len(before)
    server.drain(1.0)
    server.close()
    assert eventually(lambda: names() == before)
