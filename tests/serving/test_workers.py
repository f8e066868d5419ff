"""One or two processes that answer on the same port: the same for every client."""

import contextlib
import http.client
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sparkdl import models, serving
from sparkdl.errors import ConfigError, ModelDamagedError
from sparkdl.serving import Log, LogSink, Server, model_set
from sparkdl.serving import workers as workers_module
from sparkdl.serving.channel import Channel
from tests.helpers.processes import eventually, is_alive
from tests.serving.numbered import GATE, NAME, WAITS, add_version

pytestmark = pytest.mark.slow

TOKEN = "0123456789abcdef"
PREDICT = f"/v1/models/{NAME}:predict"
SERVE = "from sparkdl.cli.main import main; import sys; sys.exit(main(sys.argv[1:]))"


def ask(server: Any, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """The status and the content of an answer, on a connection of its own."""
    address = getattr(server, "url", server).removeprefix("http://").replace("0.0.0.0", "127.0.0.1")
    connection = http.client.HTTPConnection(address, timeout=120)
    with contextlib.closing(connection):
        data = None if body is None else json.dumps(body)
        headers = {"Authorization": f"Bearer {TOKEN}", **headers}
        connection.request("GET" if body is None else "POST", path, data, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
    return answer.status, json.loads(text) if text[:1] == "{" else text


def predict(server: Any, row: Sequence[float] = (0.5, 0.5), path: str = PREDICT) -> Any:
    status, answer = ask(server, path, {"instances": [row]})
    return answer["predictions"][0][0] if status == 200 else (status, answer)


def children(pid: int, module: str) -> list[int]:
    """The processes that a process has started and that run a module."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in task.read_text().split():
                if (
                    f"from sparkdl.{module} ".encode()
                    in Path(f"/proc/{child}/cmdline").read_bytes()
                ):
                    found.append(int(child))
    return sorted(found)


def workers_of(pid: int | None = None) -> list[int]:
    return children(pid or os.getpid(), "serving.worker")


def metric(page: str, name: str, *labels: str) -> float:
    """The sum of the values of a metric that has these labels."""
    lines = re.findall(rf"^sparkdl_serving_{name}(\{{.*\}})? (\S+)$", page, re.MULTILINE)
    return sum(float(value) for text, value in lines if all(label in text for label in labels))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: Any) -> str:
    """A registry with two versions; the alias `live` names the first one."""
    monkeypatch.setattr(model_set, "LOCAL_POLL_S", 0.05)
    monkeypatch.setenv(GATE, str(tmp_path / "gate"))
    root = str(tmp_path / "registry")
    for number in (1, 2):
        add_version(root, number, tmp_path)
    models.alias(NAME, "live", 1, root=root)
    return root


# One worker is what other tests serve with: only some tests compare both.
MOSTLY_WORKERS = pytest.mark.parametrize(
    "workers", [pytest.param(1, marks=pytest.mark.thorough), 2], indirect=True
)


@pytest.fixture(params=[1, 2])
def workers(request: Any) -> int:
    number: int = request.param
    return number


def has_changed(server: Server, version: int, workers: int) -> bool:
    """All workers have taken up a version, and given up the one before."""
    page = ask(server, "/metrics")[1]
    now, before = (metric(page, "version_loaded", f'version="{v}"') for v in (version, 3 - version))
    return (now, before) == (workers, 0)


def records_of(log: Path) -> list[Any]:
    """The records of the inference log, each of which is a whole line."""
    texts = [path.read_text() for path in log.rglob("*.jsonl")]
    assert all(text.endswith("\n") for text in texts)
    return [json.loads(line) for text in texts for line in text.splitlines()]


# ---- the same as one process


def test_rest_metrics_and_log_are_those_of_one_server(
    root: str, tmp_path: Path, workers: int
) -> None:
    num_requests = 40
    log = tmp_path / "log"
    with serving.start(
        NAME, root=root, alias="live", port=0, workers=workers, log=str(log)
    ) as server:
        ids = {f"request-{number}" for number in range(num_requests)}
        for name in ids:
            status, answer = ask(server, PREDICT, {"instances": [[0, 0]]}, **{"X-Request-Id": name})
            assert (status, answer) == (200, {"predictions": [[1.0, 1.0]]})
        assert ask(server, PREDICT, {"instances": [["a"]]}, **{"X-Request-Id": "bad"})[0] == 400
        for path in ("/v2/health/live", "/v2/health/ready", f"/v2/models/{NAME}/ready"):
            assert ask(server, path)[0] == 200
        status, states = ask(server, f"/v1/models/{NAME}")
        assert [s["state"] for s in states["model_version_status"]] == ["AVAILABLE"]
        for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
            assert ask(server, PREDICT, {"instances": []}, **headers)[0] == 403
        for _ in range(6):
            page = ask(server, "/metrics")[1]
            assert metric(page, "requests_total", 'status="200"') == num_requests
            assert metric(page, "requests_total", 'status="400"') == 1
            assert metric(page, "latency_seconds_count", 'version="1"') == num_requests + 1
            assert metric(page, "latency_seconds_bucket", 'le="+Inf"') == num_requests + 1
            assert metric(page, "rows_total") == num_requests
            assert metric(page, "version_loaded") == workers
            assert metric(page, "open_requests") == 1
    records = records_of(log)
    assert sorted(record["id"] for record in records) == sorted({*ids, "bad"})
    assert workers_of() == []


def test_grpc_is_answered_by_all(root: str) -> None:
    grpc = pytest.importorskip("grpc")
    pytest.importorskip("tensorflow_serving")
    from tests.serving.test_grpc import predict_request

    options: Any = {"port": 0, "grpc_port": 0, "workers": 2, "batching": True}
    with serving.start(NAME, root=root, token=TOKEN, **options) as server:
        method = "/tensorflow.serving.PredictionService/Predict"
        request = predict_request({"inputs": np.zeros((1, 2))}, name=NAME).SerializeToString()
        for number in range(12):
            # Channels to the same address share a connection unless their options differ.
            own = [("grpc.use_local_subchannel_pool", 1), ("grpc.channel_id", number)]
            with grpc.insecure_channel(server.grpc_address, own) as channel:
                call = channel.unary_unary(method)
                with pytest.raises(grpc.RpcError) as caught:
                    call(request, timeout=60)
                assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
                metadata = [("authorization", f"Bearer {TOKEN}")]
                assert call(request, metadata=metadata, timeout=60)
        assert {ask(server, "/metrics", Authorization="Bearer x")[0] for _ in range(6)} == {401}
        page = ask(server, "/metrics")[1]
        assert metric(page, "requests_total", 'method="predict"') == 12


@MOSTLY_WORKERS
def test_versions_move_forward_and_back_while_clients_ask(root: str, workers: int) -> None:
    """Each answer is one of a whole version, and the versions of a connection never go back."""
    failed: list[Any] = []
    is_ended = threading.Event()
    moves = [1]

    def client() -> None:
        address = server.url.removeprefix("http://")
        with contextlib.closing(http.client.HTTPConnection(address, timeout=120)) as connection:
            place = 0
            while not is_ended.wait(0.01):
                known = len(moves)
                connection.request("POST", PREDICT, '{"instances": [[0, 0], [0, 0]]}')
                answer = connection.getresponse()
                text = answer.read()
                values = {v for row in json.loads(text).get("predictions", []) for v in row}
                # The places in the list of moves that the answer can stand for.
                places = [n for n in range(place, len(moves)) if {moves[n]} == values]
                if answer.status != 200 or not places:
                    failed.append((answer.status, text, place, known, moves))
                    return
                place = places[0]

    options: Any = {"port": 0, "workers": workers, "batching": True}
    with serving.start(NAME, root=root, alias="live", **options) as server:
        threads = [threading.Thread(target=client) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(4):
            version = 2 - number % 2
            moves.append(version)
            models.alias(NAME, "live", version, root=root)
            assert eventually(lambda v=version: failed or has_changed(server, v, workers))
            # Whoever asks now gets the new version.
            assert {predict(server) for _ in range(4)} == {version}
        is_ended.set()
        for thread in threads:
            thread.join()
    assert not failed


@MOSTLY_WORKERS
def test_a_share_of_the_requests_goes_to_a_canary(root: str, workers: int) -> None:
    models.alias(NAME, "canary", 2, root=root)
    options: Any = {"weights": {"canary": 50}, "alias": "live", "port": 0, "workers": workers}
    with serving.start(NAME, root=root, **options) as server:
        answers = [predict(server) for _ in range(100)]
        # By chance; less than one time in a million outside.
        assert 25 < answers.count(2.0) < 75 and {*answers} == {1.0, 2.0}
        assert predict(server, path=f"/v1/models/{NAME}/labels/canary:predict") == 2.0


@MOSTLY_WORKERS
def test_models_are_loaded_on_demand_and_unloaded(root: str, tmp_path: Path, workers: int) -> None:
    folder = Path(models.get(NAME, 1, root=root).path)
    other = tmp_path / "other"
    other.mkdir()
    os.symlink(folder, other / "1")
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken / "1")
    (file,) = broken.rglob("number.txt")
    file.write_text("torn")
    # There is room for one of both, in all workers together.
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    limit = 1.5 * workers * size / (1 << 20)
    options: Any = {"port": 0, "workers": workers, "memory_limit_mb": limit}
    with serving.start([NAME, str(other), str(broken)], root=root, **options) as server:
        page = ask(server, "/metrics")[1]
        assert metric(page, "version_loaded") == 0
        for _ in range(2):
            assert predict(server) == 2.0
            assert predict(server, path="/v1/models/broken:predict")[0] == 503
            assert predict(server, path="/v1/models/other:predict") == 1.0
            page = ask(server, "/metrics")[1]
            assert metric(page, "version_loaded", 'model="other"') == workers
            assert metric(page, "version_loaded", f'model="{NAME}"') == 0
        assert ask(server, "/v1/models/none:predict", {})[0] == 404


# ---- ends


@contextlib.contextmanager
def command(root: str, *options: str) -> Iterator[tuple[Any, str]]:
    """`sparkdl serve` in a process of its own, and its address."""
    words = ["serve", NAME, "--root", root, "--port", "0", *options]
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        try:
            line = process.stdout.readline()
            yield process, line.strip().rsplit(" ", 1)[-1]
        finally:
            process.kill()


def waiting(folder: Path) -> list[Path]:
    """The processes of models that wait at the gate."""
    return [*folder.glob("waits-*")]


def both_wait(folder: Path, url: str, pool: ThreadPoolExecutor, workers: int) -> list[Any]:
    """Requests of which each worker has one that waits."""
    answers = []
    while len(waiting(folder)) < workers:
        answers.append(pool.submit(predict, url, (WAITS, 0.0)))
        num = len(answers)
        assert eventually(lambda n=num: metric(ask(url, "/metrics")[1], "open_requests") == n + 1)
    return answers


def test_no_other_server_listens_on_the_port_of_workers(root: str) -> None:
    with serving.start(NAME, root=root, port=0, workers=2) as server:
        port = int(server.url.rsplit(":", 1)[1])
        for options in ({"port": port}, {"port": 0, "grpc_port": port}):
            for workers in (1, 2):
                with pytest.raises(ConfigError, match="cannot be used"):
                    serving.start(NAME, root=root, workers=workers, **options)
        assert {predict(server) for _ in range(10)} == {2.0}


@MOSTLY_WORKERS
def test_sigterm_answers_what_has_come(root: str, tmp_path: Path, workers: int) -> None:
    with command(root, "--workers", str(workers)) as (process, url), ThreadPoolExecutor(64) as pool:
        answers = both_wait(tmp_path, url, pool, workers)
        process.terminate()
        port = int(url.rsplit(":", 1)[1])
        assert eventually(lambda: not _takes_connections(port))
        (tmp_path / "gate").touch()
        assert [answer.result() for answer in answers] == [2.0] * len(answers)
        assert process.wait(120) == 0, process.stderr.read()


def _takes_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    except OSError:
        return False
    return True


def test_a_worker_that_is_killed_fails_only_its_own_requests(
    root: str, tmp_path: Path, caplog: Any
) -> None:
    log = tmp_path / "log"
    options: Any = {"alias": "live", "port": 0, "workers": 2, "log": str(log)}
    with serving.start(NAME, root=root, **options) as server, ThreadPoolExecutor(64) as pool:
        answers = both_wait(tmp_path, server.url, pool, 2)
        before = workers_of()
        os.kill(before[0], signal.SIGKILL)
        assert eventually(lambda: len({*workers_of()} - {*before}) == 1)
        (tmp_path / "gate").touch()
        outcomes = []
        for answer in answers:
            try:
                outcomes.append(answer.result())
            except OSError:
                outcomes.append(None)
        assert {*outcomes} == {1.0, None}
        assert eventually(lambda: metric(ask(server, "/metrics")[1], "version_loaded") == 2)
        # The new one follows the others.
        models.alias(NAME, "live", 2, root=root)
        assert eventually(lambda: has_changed(server, 2, 2))
        assert {predict(server) for _ in range(10)} == {2.0}
        page = ask(server, "/metrics")[1]
        assert metric(page, "requests_total") == outcomes.count(1.0) + 10
        assert metric(page, "open_requests") == 1
        new = workers_of()
        os.kill(new[0], signal.SIGTERM)  # It is drained, and then replaced.
        while new[0] in workers_of():
            # A connection that comes while the worker closes its socket is reset.
            with contextlib.suppress(ConnectionResetError, http.client.RemoteDisconnected):
                assert predict(server) == 2.0
    assert "has ended with the code -9; it is started again" in caplog.text
    records = records_of(log)
    assert len(records) >= outcomes.count(1.0) + 10


def test_a_worker_that_hangs_is_replaced(root: str, monkeypatch: Any, caplog: Any) -> None:
    with serving.start(NAME, root=root, alias="live", port=0, workers=2) as server:
        monkeypatch.setattr(workers_module, "LOOK_S", 0.1)
        monkeypatch.setattr(workers_module, "HUNG_S", 30.0)
        hung, other = workers_of()
        os.kill(hung, signal.SIGSTOP)
        assert eventually(lambda: {*workers_of()} - {hung, other})
        assert eventually(lambda: metric(ask(server, "/metrics")[1], "version_loaded") == 2)
        assert {predict(server) for _ in range(10)} == {1.0}
        assert other in workers_of()
    assert f"(process {hung}) has not answered for 30 s, and is ended" in caplog.text


def test_a_worker_that_hangs_while_it_is_started_again_is_replaced(
    root: str, tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr(workers_module, "LOOK_S", 0.1)
    with serving.start(NAME, root=root, alias="live", port=0, workers=2) as server:
        (path,) = Path(models.get(NAME, 1, root=root).path).rglob("number.txt")
        path.write_text("wait 1")
        before = workers_of()
        os.kill(before[0], signal.SIGKILL)
        assert eventually(lambda: [*tmp_path.glob("loads-*")])
        (hung,) = {*workers_of()} - {*before}
        monkeypatch.setattr(workers_module, "HUNG_S", 10.0)
        os.kill(hung, signal.SIGSTOP)
        ended = f"(process {hung}) has not answered for 10 s, and is ended"
        assert eventually(lambda: ended in caplog.text)
        (tmp_path / "gate").touch()
        assert eventually(lambda: metric(ask(server, "/metrics")[1], "version_loaded") == 2)
        assert {predict(server) for _ in range(10)} == {1.0}


def test_a_worker_that_hangs_at_the_start_is_ended(
    root: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(workers_module, "LOOK_S", 0.1)
    monkeypatch.setattr(workers_module, "HUNG_S", 10.0)
    (path,) = Path(models.get(NAME, 1, root=root).path).rglob("number.txt")
    path.write_text("wait 1")

    def hang() -> None:
        assert eventually(lambda: len([*tmp_path.glob("loads-*")]) == 2)
        os.kill(workers_of()[0], signal.SIGSTOP)
        (tmp_path / "gate").touch()

    with ThreadPoolExecutor(1) as pool:
        hung = pool.submit(hang)
        with pytest.raises(ModelDamagedError, match="has ended while it loaded the version"):
            serving.start(NAME, root=root, alias="live", port=0, workers=2)
        hung.result()
    assert not workers_of()


@pytest.mark.parametrize("has_unread", [False, True])
def test_only_a_worker_without_an_answer_is_ended(has_unread: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(workers_module, "HUNG_S", 0.05)
    one, other = socket.socketpair()
    channel = Channel(Connection(one.detach()), {}, "test-channel")  # Nothing reads.
    process = SimpleNamespace(channel=channel, has_answered=True, end=channel.close)
    if has_unread:
        other.send(b"an answer")
    workers = workers_module.Workers(1, Any)
    with other:
        workers._look_at(process)  # type: ignore[arg-type]
        assert channel.is_closed.is_set() is not has_unread
        channel.close()
    workers.stop(0)


def test_nothing_stays_when_the_server_is_killed(root: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    with (
        command(root, "--workers", "2", "--token-file", str(token)) as (process, url),
        ThreadPoolExecutor(64) as pool,
    ):
        both_wait(tmp_path, url, pool, 2)
        pids = workers_of(process.pid)
        words = [Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in pids]
        assert TOKEN not in f"{words} {[*map(_environment, pids)]}"
        pids += [child for pid in pids for child in children(pid, "inference.model_worker")]
        (folder,) = {_environment(pid)["PROMETHEUS_MULTIPROC_DIR"] for pid in pids[:2]}
        assert len(pids) >= 4 and os.stat(folder).st_mode & 0o777 == 0o700
        process.kill()
        assert eventually(lambda: not any(map(is_alive, pids)))
        assert not Path(folder).exists()
        (tmp_path / "gate").touch()
    with serving.start(NAME, root=root, port=int(url.rsplit(":", 1)[1])):
        pass


def _environment(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/environ").read_bytes().decode()
    return dict(item.split("=", 1) for item in text.split("\0") if "=" in item)


# ---- versions that cannot be loaded


@pytest.mark.parametrize("text", ["torn", "kill"])
def test_a_model_that_cannot_be_loaded_is_told_once(
    root: str, tmp_path: Path, text: str, caplog: Any
) -> None:
    add_version(root, 3, tmp_path, text)
    reason = "worker . .process .* has ended while" if text == "kill" else "the loader .* 'torn'"
    with pytest.raises(ModelDamagedError, match=reason):
        serving.start(NAME, root=root, version=3, port=0, workers=2)
    assert len([r for r in caplog.records if r.levelno >= logging.ERROR]) == 1
    assert workers_of() == []


def test_a_version_that_ends_a_worker_takes_no_requests_and_spares_the_others(
    root: str, tmp_path: Path, caplog: Any
) -> None:
    with serving.start(NAME, root=root, alias="live", port=0, workers=2) as server:
        before = workers_of()
        add_version(root, 3, tmp_path, "kill")
        models.alias(NAME, "live", 3, root=root)
        assert eventually(lambda: "has ended while it loaded the version" in caplog.text)
        # The worker that is started again answers with the version of before, too.
        assert eventually(lambda: {*workers_of()} - {*before})
        models.alias(NAME, "live", 2, root=root)
        assert eventually(lambda: has_changed(server, 2, 2))
        assert {predict(server) for _ in range(10)} == {2.0}
        assert {*workers_of()} & {*before}


def test_a_worker_that_cannot_start_is_told_once_while_the_others_answer(
    root: str, tmp_path: Path, caplog: Any, monkeypatch: Any
) -> None:
    def kill_late(pid: int, number: int) -> None:
        time.sleep(0.5)  # What the worker does before it is killed is not at the others' cost.
        killpg(pid, number)

    killpg = os.killpg
    monkeypatch.setattr(os, "killpg", kill_late)
    with serving.start(NAME, root=root, alias="live", port=0, workers=2) as server:
        (path,) = Path(models.get(NAME, 1, root=root).path).rglob("number.txt")
        path.write_text("torn")
        os.kill(workers_of()[0], signal.SIGKILL)
        assert eventually(lambda: "cannot be started: the loader" in caplog.text)
        assert {predict(server) for _ in range(10)} == {1.0}
        path.write_text("1")
        assert eventually(lambda: metric(ask(server, "/metrics")[1], "version_loaded") == 2)
    assert caplog.text.count("cannot be started") == 1


# ---- arguments


class Unsendable(LogSink):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def write(self, records: Sequence[Any]) -> None:
        pass


def test_wrong_arguments_are_refused(root: str) -> None:
    for workers in (0, -1, True, 1.5, "2", None):
        with pytest.raises(ConfigError, match="expected a whole number of at least 1"):
            serving.start(NAME, root=root, port=0, workers=workers)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the log cannot be sent to a worker"):
        serving.start(NAME, root=root, port=0, workers=2, log=Log(Unsendable()))
    assert workers_of() == []


def test_a_sink_of_kafka_is_copied_with_its_settings() -> None:
    pytest.importorskip("confluent_kafka")
    import pickle

    sink = serving.KafkaSink("kafka://127.0.0.1:1/requests", {"test.mock.num.brokers": 1})
    copy = pickle.loads(pickle.dumps(sink))
    copy.write([{"id": "a"}])
    assert copy.num_left_out == 0
