"""A webhook posts events as JSON, and shows nothing of its URL but the host."""

import contextlib
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sparkdl.callbacks import Webhook
from sparkdl.errors import ConfigError
from sparkdl.runner.pipeline.execute import execute
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, Outcome, raised, returned
from tests.helpers.loops import request_of
from tests.helpers.receiver import Receiver

SECRET = "T0/B0/s3cr3tpath"


def run_with(root: str, *hooks: Webhook) -> None:
    def outcome(attempt: Attempt) -> Outcome:
        return (
            raised("ValueError: no")
            if attempt.number == 2
            else returned(accuracy=attempt.number + 0.5)
        )

    request = request_of(3, root=root, callbacks=list(hooks), metric="accuracy")
    execute(request, InMemoryCluster(outcome, num_slots=1))


def test_posts_tell_best_trials_and_the_end(root: str, receiver: Receiver) -> None:
    run_with(root, Webhook(f"{receiver.address}/{SECRET}"))
    assert {path for path, _, _ in receiver.posts} == {f"/{SECRET}"}
    bodies = [body for _, _, body in receiver.posts]
    assert [body["event"] for body in bodies] == ["best", "best", "run_end"]
    assert bodies[1]["text"] == "Best of run run so far: trial 1, accuracy 1.5, x=1.0"
    assert bodies[1]["trial"]["params"] == {"x": 1.0}
    assert bodies[1]["trial"]["value"] == 1.5
    end = bodies[2]
    text = "Run run ended COMPLETE: 2 of 3 trials complete, 1 failed. "
    assert end["text"] == f"{text}Best: trial 1, accuracy 1.5, x=1.0"
    assert end["run"]["counts"] == {"COMPLETE": 2, "FAILED": 1}
    assert (end["run"]["state"], end["run"]["best"]) == ("COMPLETE", 1)
    assert abs(end["time"] - time.time()) < 60


def test_user_chooses_events_body_and_headers(root: str, receiver: Receiver) -> None:
    chat = Webhook(
        receiver.address.replace("//", "//ann:pa%2Fss@"),
        events=["trial_start", "trial_end"],
        body=lambda content: {"content": content["text"]},
        headers={"X-Team": "vision"},
    )
    run_with(root, chat)
    texts = [body["content"] for _, _, body in receiver.posts]
    assert texts[:2] == [
        "Trial 0 of run run has started",
        "Trial 0 of run run: COMPLETE, accuracy 0.5",
    ]
    assert texts[-1] == "Trial 2 of run run: FAILED ValueError: no"
    headers = receiver.posts[0][1]
    assert headers["X-Team"] == "vision"
    assert headers["Authorization"] == "Basic YW5uOnBhL3Nz"


def test_post_is_tried_once_more(root: str, receiver: Receiver) -> None:
    receiver.codes = [503]
    run_with(root, Webhook(receiver.address, events="run_end"))
    assert [body["event"] for _, _, body in receiver.posts] == ["run_end", "run_end"]


def test_redirect_is_not_followed_with_the_headers(
    root: str, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.codes = [301]
    run_with(root, Webhook(receiver.address, events="run_end", headers={"X-Key": "k3y"}))
    assert [path for path, _, _ in receiver.posts] == ["/"]
    assert "did not take 'run_end': it answered 301, a redirect" in caplog.text


def test_an_answer_without_an_end_is_not_read() -> None:
    """It would fill the memory of the driver."""

    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                connection.sendall(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,), daemon=True)
        thread.start()
        Webhook(f"http://127.0.0.1:{server.getsockname()[1]}").post({"event": "best"})
        thread.join(60)
        assert not thread.is_alive()


def test_url_is_in_no_log_and_in_no_file(
    root: str, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.codes = [404, 401, 403]
    hooks = [Webhook(f"{receiver.address}/{SECRET}"), Webhook(f"http://127.0.0.1:1/{SECRET}?k=v1")]
    run_with(root, *hooks)
    texts = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(texts) == 2
    assert any(f"{receiver.address}/*** did not take 'best': it answered 404" in t for t in texts)
    assert any("http://127.0.0.1:1/*** did not take 'best'" in t and "refused" in t for t in texts)
    assert SECRET not in caplog.text
    assert SECRET not in f"{hooks}"
    files = [path for path in Path(root).rglob("*") if path.is_file()]
    assert not [path for path in files if b"s3cr3t" in path.read_bytes()]
    described = json.loads(Path(root, "run", "run.json").read_text())["callbacks"][0]
    assert described["url"] == f"{receiver.address}/***"


@pytest.mark.parametrize(
    ("url", "arguments", "message"),
    [
        ("ftp://host/s3cr3t", {}, "is no address to post to"),
        ("https:///s3cr3t", {}, "is no address to post to"),
        ("https://host:s3cr3t/", {}, "host or port is invalid"),
        ("https://host/s3cr3t with spaces", {}, "is no address to post to"),
        (7, {}, "it is an int"),
        ("https://host/", {"events": ["run_ended"]}, "Did you mean 'run_end'"),
        ("https://host/", {"headers": {"X-Key": f"{SECRET}\n"}}, "header 'X-Key' .* a line break"),
        ("https://host/", {"headers": {"X-Key": 7}}, "header 'X-Key' of a webhook has an invalid"),
    ],
)
def test_wrong_arguments_are_refused(url: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Webhook(url, **arguments)
    assert "s3cr3t" not in str(caught.value)
