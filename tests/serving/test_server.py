"""The model server with real models, over HTTP."""

import contextlib
import http.client
import json
import logging
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparkdl import models, serving
from sparkdl.errors import ConfigError, ModelDamagedError, ModelNotFoundError
from sparkdl.files import storage
from sparkdl.serving import Server
from tests.helpers.models import dense
from tests.helpers.processes import eventually
from tests.helpers.saved_models import write_saved_model
from tests.serving.functions import save_functions

pytestmark = pytest.mark.slow


def ask(url: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        url, data, {name.replace("_", "-"): v for name, v in headers.items()}
    )
    try:
        with urllib.request.urlopen(request, timeout=240) as answer:
            status, text = answer.status, answer.read()
    except urllib.error.HTTPError as exc:
        status, text = exc.code, exc.read()
    assert b"Traceback" not in text and b'.py"' not in text
    return status, json.loads(text) if text[:1] in b"{[" else text.decode()


def predict(server: Server, name: str, **body: Any) -> Any:
    return ask(f"{server.url}/v1/models/{name}:predict", body)


def constant(value: float) -> Any:
    """A model that adds a constant to its only input."""
    import keras

    layer = keras.layers.Dense(1, kernel_initializer="ones")
    model = keras.Sequential([keras.layers.Input((1,), name="x"), layer])
    layer.bias.assign([value])
    return model


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A registry with the model `plus`: version 1 adds 1."""
    root = str(tmp_path_factory.mktemp("registry"))
    models.export(constant(1.0), "plus", root=root, alias="stable")
    return root


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the SavedModel of `save_functions`, with batching."""
    folder = tmp_path_factory.mktemp("functions") / "functions"
    save_functions(str(folder))
    with serving.start(str(folder), port=0, batching={"max_batch_size": 8}) as server:
        yield server


def test_strings_and_several_inputs_are_served(functions: Server) -> None:
    rows = [{"tag": "a", "x": 1.0}, {"tag": {"b64": "w7w="}, "x": float("nan")}]
    status, answer = predict(functions, "functions", instances=rows)
    assert status == 200
    first, second = answer["predictions"]
    assert first == {"raw_bytes": {"b64": "YQ=="}, "text": "a!", "x": 2.0}
    assert second["text"] == "ü!" and np.isnan(second["x"])


def test_ragged_rows_are_served(functions: Server) -> None:
    rows = [[1.0, 2.0], [], [3.0]]
    ragged = {"signature_name": "ragged"}
    expected = [
        {"double": [2.0, 4.0], "sum": 3.0},
        {"double": [], "sum": 0.0},
        {"double": [6.0], "sum": 3.0},
    ]
    assert predict(functions, "functions", instances=rows, **ragged) == (
        200,
        {"predictions": expected},
    )
    flat = {"x": [1.0, 2.0, 3.0], "x_1": [0, 2, 2, 3]}
    status, answer = predict(functions, "functions", inputs=flat, **ragged)
    assert (status, answer["outputs"]["sum"]) == (200, [3.0, 0.0, 3.0])


def test_two_inputs_are_no_ragged_input_because_of_their_names(functions: Server) -> None:
    """A ragged input `item` would be stored as `item` and `item_1`."""
    pair = {"signature_name": "pair"}
    rows = [{"item": 1.0, "item_1": 5}, {"item": 2.0, "item_1": 3}]
    assert predict(functions, "functions", instances=rows, **pair) == (
        200,
        {"predictions": [6.0, 5.0]},
    )
    status, answer = predict(functions, "functions", instances=[[1.0], [2.0]], **pair)
    assert status == 400 and "item, item_1" in answer["error"]


def test_examples_are_classified(functions: Server) -> None:
    url = f"{functions.url}/v1/models/functions:classify"
    body = {"signature_name": "classify", "examples": [{"x": [0.25, 1.0]}, {"x": [0.0, 2.0]}]}
    results = [[["a", 0.5], ["b", 2.0]], [["a", 0.0], ["b", 4.0]]]
    assert ask(url, body) == (200, {"results": results})
    status, answer = ask(url, {**body, "examples": [{"y": 1.0}]})
    assert status == 400 and "Feature: x" in answer["error"]


def test_a_bad_row_fails_its_own_request_only(functions: Server) -> None:
    def one(number: int) -> tuple[int, Any]:
        rows = [-1] if number % 7 == 3 else [number]
        return predict(functions, "functions", instances=rows, signature_name="picky")

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(one, range(70)))
    for number, (status, answer) in enumerate(answers):
        if number % 7 == 3:
            assert status == 400 and "below zero" in answer["error"]
        else:
            assert (status, answer) == (200, {"predictions": [number + 1]})


def test_rows_beyond_a_batch_and_metrics_are_counted(functions: Server) -> None:
    status, answer = predict(functions, "functions", instances=[*range(50)], signature_name="picky")
    assert (status, answer) == (200, {"predictions": [*range(1, 51)]})
    status, text = ask(f"{functions.url}/monitoring/prometheus/metrics")
    assert status == 200
    labels = 'method="predict",model="functions",status="200",version="1"'
    assert f"sparkdl_serving_requests_total{{{labels}}}" in text
    assert 'sparkdl_serving_batch_rows_bucket{le="8.0",model="functions"}' in text


def test_metadata_is_that_of_the_saved_model(functions: Server) -> None:
    status, answer = ask(f"{functions.url}/v1/models/functions/metadata")
    definition = answer["metadata"]["signature_def"]["signature_def"]["picky"]
    assert (status, definition["method_name"]) == (200, "tensorflow/serving/predict")
    assert definition["inputs"]["x"]["dtype"] == "DT_INT32"
    assert definition["inputs"]["x"]["tensor_shape"] == {
        "dim": [{"size": "-1", "name": ""}],
        "unknown_rank": False,
    }


def test_a_slow_client_holds_no_thread(functions: Server) -> None:
    host, port = functions.url.removeprefix("http://").split(":")
    slow = [socket.create_connection((host, int(port))) for _ in range(100)]
    try:
        for connection in slow:
            connection.sendall(
                b"POST /v1/models/functions:predict HTTP/1.1\r\nContent-Length: 9\r\n"
            )
        assert predict(functions, "functions", instances=[1], signature_name="picky")[0] == 200
    finally:
        for connection in slow:
            connection.close()


def test_wrong_http_gets_a_code_and_no_traceback(functions: Server) -> None:
    host = functions.url.removeprefix("http://")
    for lines, status in (
        (b"POST / HTTP/1.1\r\nContent-Length: x", b"400"),
        (b"\x00\x01", b"400"),
        (
            b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Content-Length: 999999999999",
            b"413",
        ),
    ):
        with socket.create_connection(tuple(host.split(":"))) as connection:
            connection.sendall(lines + b"\r\n\r\n")
            answer = connection.makefile("rb").read()
            assert answer.split(b" ")[1] == status, (lines[:40], answer[:200])
            assert b"Traceback" not in answer


def test_versions_change_under_load_without_a_failed_request(root: str) -> None:
    """One of them is broken. Each answer is that of a whole version."""
    failed: list[Any] = []
    seen: set[float] = set()
    is_ended = threading.Event()

    def client() -> None:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=240)
        while not is_ended.is_set():
            body = json.dumps({"instances": [[1.0]] * 3})
            connection.request("POST", "/v1/models/plus:predict", body)
            answer = connection.getresponse()
            text = answer.read()
            values = {v for (v,) in json.loads(text).get("predictions", [])}
            if answer.status != 200 or len(values) != 1:
                failed.append((answer.status, text))
            seen.update(values)
        connection.close()

    def newest() -> int:
        states = ask(f"{server.url}/v1/models/plus")[1]["model_version_status"]
        return max(int(s["version"]) for s in states if s["state"] == "AVAILABLE")

    own = _own_threads()
    with serving.start("plus", root=root, port=0, batching=True) as server:
        threads = [threading.Thread(target=client) for _ in range(4)]
        for thread in threads:
            thread.start()
        folder = storage.local_path(f"{root}/models/plus")
        try:
            for number in (2, 3, 4):
                if number == 3:
                    broken = write_saved_model(folder / ".broken")
                    models.export(broken, "plus", root=root)
                    url = f"{server.url}/v1/models/plus/versions/3"
                    assert eventually(lambda url=url: "cannot be loaded" in str(ask(url)))
                    hidden = folder.rename(folder.with_name("hidden"))
                    time.sleep(1.2)  # The store is away for longer than a look at it.
                    hidden.rename(folder)
                    continue
                models.export(constant(float(number)), "plus", root=root)
                assert eventually(lambda n=number: newest() == n)
                assert eventually(lambda n=number: 1.0 + n in seen)
        finally:
            is_ended.set()
            for thread in threads:
                thread.join()
    assert failed == []
    assert seen == {2.0, 3.0, 5.0}
    # The queues of versions that were unloaded are gone, too.
    assert eventually(lambda: _own_threads() <= own), _own_threads() - own


def _own_threads() -> set[str]:
    """The threads of servers and of their queues."""
    names = (f"{t.name} {t.ident}" for t in threading.enumerate())
    return {name for name in names if name.startswith(("sparkdl-serving", "waitress"))}


def test_sigterm_answers_the_requests_that_have_come(root: str) -> None:
    """With a share for another version, which the command takes as well."""
    command = [sys.executable, "-m", "sparkdl.cli.main", "serve", "plus", "--root", root]
    options = ["--alias", "stable", "--port", "0", "--batching", "--batch-timeout-ms", "6000"]
    program = "from sparkdl.cli.main import main; import sys; sys.exit(main(sys.argv[1:]))"
    with subprocess.Popen(
        [command[0], "-c", program, *command[3:], *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout and process.stderr
        line = process.stdout.readline()
        url = line.strip().rsplit(" ", 1)[-1]
        assert line.startswith("plus is served at http://127.0.0.1:")
        with contextlib.ExitStack() as stack:
            # It sends nothing, so that the others wait for it until the timeout.
            address = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
            stack.enter_context(socket.create_connection(address))
            pool = stack.enter_context(ThreadPoolExecutor(4))
            stack.callback(process.terminate)
            body = {"instances": [[1.0]]}
            answers = [pool.submit(ask, f"{url}/v1/models/plus:predict", body) for _ in range(4)]
            assert eventually(lambda: _num_open(url) == 4)
            process.terminate()
            for answer in answers:
                assert answer.result() == (200, {"predictions": [[2.0]]})
        assert process.wait(240) == 0, process.stderr.read()


def _num_open(url: str) -> int:
    """Number of requests that are not answered, without the one that asks."""
    page = ask(f"{url}/monitoring/prometheus/metrics")[1]
    (number,) = re.findall(r"^sparkdl_serving_open_requests (\S+)$", page, re.MULTILINE)
    return int(float(number)) - 1


def test_a_keras_file_is_served_under_its_own_name(tmp_path: Path) -> None:
    dense(4, 3).save(tmp_path / "small.keras")
    with serving.start(tmp_path / "small.keras", port=0) as server:
        status, answer = predict(server, "small", instances=[[0.0] * 4])
        assert status == 200 and np.shape(answer["predictions"]) == (1, 3)
        body = {
            "inputs": [{"name": "inputs", "shape": [1, 4], "datatype": "FP32", "data": [0] * 4}]
        }
        status, answer = ask(f"{server.url}/v2/models/small/versions/1/infer", body)
        assert (status, answer["outputs"][0]["shape"]) == (200, [1, 3])


def test_another_address_needs_a_token(root: str) -> None:
    with serving.start("plus", root=root, host="0.0.0.0", port=0) as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert ask(f"{url}/v2/health/ready") == (200, {"ready": True})
        assert ask(f"{url}/v1/models/plus")[0] == 401
        header = {"Authorization": f"Bearer {server.token}"}
        assert ask(f"{url}/v1/models/plus", **header)[0] == 200


def test_wrong_arguments_are_refused(root: str, tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.CRITICAL)
    for error, match, options in (
        (ModelNotFoundError, "there is no model 'minus'.*It has plus", {"name_or_path": "minus"}),
        (ModelNotFoundError, "no model at", {"name_or_path": str(tmp_path)}),
        (ModelNotFoundError, "no version or alias 77", {"version": 77}),
        (ModelNotFoundError, "no version or alias 'prod'", {"alias": "prod"}),
        (ModelNotFoundError, "no version or alias 'prod'", {"weights": {"prod": 10}}),
        (ConfigError, "expected the name of a model", {"name_or_path": 3}),
        (ConfigError, "at least one model", {"name_or_path": []}),
        (ConfigError, "for 2 models", {"name_or_path": ["plus", "plus"], "version": 1}),
        (ConfigError, "expected names that differ", {"name_or_path": ["plus", "plus"]}),
        (ConfigError, "at least 16 ASCII", {"token": "short"}),
        (ConfigError, "expected megabytes", {"max_body_mb": 0}),
        (ConfigError, "timeout_s is 0; expected seconds", {"timeout_s": 0}),
        (ConfigError, "timeout_s is nan; expected seconds", {"timeout_s": float("nan")}),
        (ConfigError, "cannot be used", {"port": 1 << 20}),
        (ConfigError, "cannot be used", {"host": "no.such.host.invalid", "token": "x" * 16}),
        (ModelDamagedError, "can be loaded", {"name_or_path": write_saved_model(tmp_path / "bad")}),
    ):
        arguments = {"name_or_path": "plus", "root": root, "port": 0, **options}
        with pytest.raises(error, match=match):
            serving.start(arguments.pop("name_or_path"), **arguments)
