"""Access to a model server: tokens, and clients that hold what others need."""

import asyncio
import hmac
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sparkdl.serving import slow_messages
from sparkdl.serving.application import PROBES, Application
from sparkdl.serving.calls import Call
from sparkdl.serving.messages import HttpRequest
from sparkdl.serving.request_checks import check_token
from sparkdl.serving.request_error import RequestError
from sparkdl.serving.request_threads import RequestThreads
from tests.helpers.processes import eventually
from tests.serving.fakes import Client, FakeCatalog, FakeModel, half_plus_three

TOKEN = "0123456789-the-token"
PREDICT = "/v1/models/half_plus_three:predict"
METHOD = "/tensorflow.serving.PredictionService/Predict"


def test_a_token_is_compared_in_constant_time(monkeypatch: Any) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def noted(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", noted)
    check_token(f"Bearer {TOKEN}", TOKEN)
    for guess in (TOKEN[:-1], f"{TOKEN}x", "", "ü"):
        with pytest.raises(RequestError):
            check_token(f"Bearer {guess}", TOKEN)
    assert [a for a, _ in compared] == [
        guess.encode() for guess in (TOKEN, TOKEN[:-1], f"{TOKEN}x", "", "ü")
    ]
    assert {b for _, b in compared} == {TOKEN.encode()}


def test_a_token_is_in_no_log_no_answer_and_no_note(caplog: Any) -> None:
    """Neither the right one nor a guess, also where a model or an address fails."""
    caplog.set_level(logging.DEBUG)
    calls: list[Call] = []

    def fail(x: Any) -> Any:
        raise RuntimeError("no")

    signature = half_plus_three().signatures["serving_default"]
    broken = FakeModel("broken", 1, {"serving_default": (signature, fail)})
    catalog = FakeCatalog([half_plus_three(), broken])
    client = Client(Application(catalog, token=TOKEN, observers=[calls.append]))
    guess = "a-guess-that-is-wrong"
    statuses = []
    for secret in (TOKEN, guess):
        headers = {"Host": "localhost", "Authorization": f"Bearer {secret}"}
        for path in (PREDICT, "/v1/models/broken:predict", "/v1/models/none:predict", "/nothing"):
            answer = client.post(path, json={"instances": [1]}, headers=headers)
            statuses.append(answer.status_code)
            said = f"{answer.text} {answer.headers}"
            assert TOKEN not in said and guess not in said
    assert statuses == [200, 500, 404, 404, 401, 401, 401, 401]
    assert "RuntimeError: no" in caplog.text
    noted = f"{caplog.text} {[vars(call) for call in calls]}"
    assert len(calls) == 3 and TOKEN not in noted and guess not in noted


def test_a_token_in_the_address_is_not_taken() -> None:
    client = Client(Application(FakeCatalog([half_plus_three()]), token=TOKEN))
    for headers in ({}, {"Token": TOKEN}, {"Cookie": f"token={TOKEN}"}):
        path = f"{PREDICT}?token={TOKEN}"
        assert client.post(path, headers={"Host": "localhost", **headers}).status_code == 401


@pytest.mark.parametrize(
    "name", ["..", "../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%2e%2e", "/etc/passwd", "a\0b"]
)
def test_the_name_of_a_model_leads_to_no_file(name: str) -> None:
    client = Client(Application(FakeCatalog([half_plus_three()])))
    for path in (
        *(f"/v1/models/{name}", f"/v1/models/{name}/metadata", f"/v1/models/{name}:predict"),
        *(f"/v2/models/{name}", f"/v1/models/half_plus_three/versions/{name}", f"/v1/{name}"),
        f"/v1/models/half_plus_three/labels/{name}",
    ):
        for method in ("GET", "POST"):
            answer = client.ask(method, path, b"{}", {"Host": "localhost"})
            assert answer.status_code in (400, 404), path
            assert [*answer.json] == ["error"] and "root:" not in answer.text


@pytest.mark.parametrize("token", [None, TOKEN])
def test_what_is_sent_with_a_probe_is_not_kept(token: str | None) -> None:
    """Anyone may ask it, also who has no token: bodies would fill the memory."""
    application = Application(FakeCatalog([half_plus_three()]), token=token)

    async def read() -> bytes:
        raise AssertionError("the body is read")

    with RequestThreads(1, "probe") as pool:
        for path in PROBES:
            head = HttpRequest("POST", path, {"host": "localhost", "content-encoding": "gzip"})
            answer = asyncio.run(application.answer_soon(head, read, pool))
            assert answer.status != 500, answer.body


# ---- gRPC


@pytest.fixture
def server() -> Iterator[Any]:
    """A server by gRPC that needs a token."""
    pytest.importorskip("grpc")
    pytest.importorskip("tensorflow_serving")
    from sparkdl.serving.grpc_server import GrpcServer
    from sparkdl.serving.grpc_services import GrpcServices

    server = GrpcServer("127.0.0.1", 0, 1 << 20)
    server.start(GrpcServices(FakeCatalog([half_plus_three()]), token=TOKEN).handlers())
    yield server
    server.close()


def silent_call(channel: Any, end: threading.Event, method: str = METHOD, **metadata: str) -> Any:
    """Begin a request, and send no message."""

    def messages() -> Iterator[bytes]:
        end.wait(240)
        yield from ()

    return channel.stream_unary(method).future(
        messages(), metadata=tuple(metadata.items()), timeout=200
    )


def test_a_client_by_grpc_without_a_token_holds_no_thread(server: Any) -> None:
    import grpc

    end = threading.Event()
    with grpc.insecure_channel(server.address) as channel:
        for call in [silent_call(channel, end) for _ in range(20)]:
            # It is answered although its message never comes.
            assert call.exception().code() == grpc.StatusCode.UNAUTHENTICATED
        end.set()


def test_what_is_sent_with_a_probe_by_grpc_is_not_read(server: Any) -> None:
    """Of a client without the token: each message may have the size of a request."""
    import grpc

    end = threading.Event()
    with grpc.insecure_channel(server.address) as channel:
        for method in ("inference.GRPCInferenceService/ServerLive", "grpc.health.v1.Health/Check"):
            # It is answered although its message never comes.
            assert silent_call(channel, end, f"/{method}").result() == b"\x08\x01"
        end.set()


def test_a_request_by_grpc_whose_message_does_not_come_is_ended(
    server: Any, monkeypatch: Any, caplog: Any
) -> None:
    import grpc

    monkeypatch.setattr(slow_messages, "MESSAGE_S", 0.2)
    monkeypatch.setattr(slow_messages, "PAUSE_S", 0.05)
    end = threading.Event()
    with grpc.insecure_channel(server.address) as channel:
        call = silent_call(channel, end, authorization=f"Bearer {TOKEN}")
        assert call.exception().code() == grpc.StatusCode.CANCELLED
        end.set()
        empty = silent_call(channel, end, authorization=f"Bearer {TOKEN}")
        assert empty.exception().code() == grpc.StatusCode.INVALID_ARGUMENT
    assert caplog.records == []


def test_headers_by_grpc_have_a_limit(server: Any) -> None:
    import grpc

    with grpc.insecure_channel(server.address) as channel:
        predict = channel.unary_unary(METHOD)
        with pytest.raises(grpc.RpcError) as caught:
            predict(b"", metadata=(("x-much", "a" * (1 << 17)),), timeout=60)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_nothing_watches_when_no_message_is_awaited(monkeypatch: Any) -> None:
    monkeypatch.setattr(slow_messages, "PAUSE_S", 0.01)
    reader = slow_messages.SlowMessages()
    for _ in range(2):
        assert reader.read(iter([b"message"]), object()) == b"message"
        assert eventually(lambda: not reader._is_watched)
