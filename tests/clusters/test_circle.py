"""The circle on a cluster, with Kafka and S3, whose programs are killed once in each stage."""

import collections
import contextlib
import hashlib
import http.server
import json
import os
import runpy
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

from sparkdl.host.os_processes import parent
from tests.clusters.kafka import kafka_broker, records_of, spark_jars
from tests.clusters.s3 import s3_bucket
from tests.clusters.standalone import REPOSITORY, SPARK, Cluster, hosts_cluster
from tests.helpers.processes import eventually

pytestmark = pytest.mark.slow

EXAMPLE = REPOSITORY / "examples" / "circle_on_cluster.py"
STORE = "s3://bucket/bikes"
# Seconds that a stage may take on a busy machine; they only end a hang.
STAGE_S = 500.0
# Requests in a second, and the seconds of a window.
RATE, WINDOW_S = 5.0, 5.0


class Program:
    """A step of the example, on the first host of a cluster.

    Args:
        cluster: the cluster.
        step: the step and its arguments.
        command: what comes before the example.
        env: variables of the program.
    """

    def __init__(
        self, cluster: Cluster, step: list[str], command: list[str], env: dict[str, str]
    ) -> None:
        self.step = step[0]
        self.log = cluster.folder / f"{self.step}.log"
        self._host = cluster.head
        self._command = [*command, str(EXAMPLE), *step]
        self._env = {**cluster.environment(cluster.head), **env}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._host.command(*self._command),
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=REPOSITORY,
            )

    def until(self, event: Callable[[], object], what: str) -> None:
        """Wait for an event, while the program goes on."""
        assert self._process
        over = lambda: self._process.poll() is not None  # noqa: E731
        eventually(lambda: over() or event(), STAGE_S)
        assert event(), f"{self.step}, {what}: {self.log.read_text()[-6000:]}"
        assert not over(), f"{self.step} has ended before {what}: {self.log.read_text()[-6000:]}"

    def kill(self, sig: int = signal.SIGKILL) -> None:
        """Kill the Python of the program, on which Java and other children depend."""
        words = f"{EXAMPLE} {self.step}"
        found = {
            pid
            for pid, line in self._host.processes().items()
            if words in line and line.startswith(sys.executable)
        }
        # A child has the same words until it becomes another program.
        (pid,) = (pid for pid in found if parent(pid) not in found)
        os.kill(pid, sig)

    def wait(self) -> int:
        assert self._process
        return self._process.wait(STAGE_S)

    def end(self) -> None:
        if self._process and self._process.poll() is None:
            with contextlib.suppress(ValueError):
                self.kill()
            self._process.wait(60)


class Circle:
    """The circle, its programs, and what can be seen of it from outside.

    Args:
        cluster: the cluster.
        env: variables for clients of the S3 server.
        brokers: the address of Kafka.
    """

    def __init__(self, cluster: Cluster, env: dict[str, str], brokers: str) -> None:
        import s3fs

        self.cluster, self.brokers = cluster, brokers
        self.files = s3fs.S3FileSystem(
            key=env["AWS_ACCESS_KEY_ID"],
            secret=env["AWS_SECRET_ACCESS_KEY"],
            client_kwargs={"endpoint_url": env["AWS_ENDPOINT_URL"]},
            use_listings_cache=False,
        )
        token = cluster.folder / "token"
        token.write_text(secrets.token_hex(16))
        python = [sys.executable]
        submit = [str(SPARK / "bin" / "spark-submit")]
        for name, value in cluster.settings(env, spark__jars=spark_jars()).items():
            submit += ["--conf", f"{name}={value}"]
        common = ["--store", STORE, "--brokers", brokers]
        host = cluster.head.address
        serve = ["--host", host, "--token-file", str(token)]
        answer = ["--url", f"http://{host}:8501", "--token-file", str(token)]
        times = ["--window-s", str(WINDOW_S), "--late-s", str(WINDOW_S)]
        folder = ["--folder", str(cluster.folder / "shared")]
        self.topics = Program(cluster, ["topics", *common], python, env)
        self.server = Program(cluster, ["serve", *common, *serve], python, env)
        self.answers = Program(cluster, ["answer", *common, *answer], python, env)
        self.driver = Program(cluster, ["circle", *common, *times, *folder], submit, env)
        self.module = runpy.run_path(str(EXAMPLE))
        self.place = self.module["ClusterPlace"](cluster.folder, STORE, brokers, WINDOW_S, WINDOW_S)
        self._season = ""
        self._stop = threading.Event()
        self._world = threading.Thread(target=self._send)

    def names(self, pattern: str) -> list[str]:
        """Return the files on the store that a pattern fits."""
        return sorted(self.files.glob(f"{STORE.removeprefix('s3://')}/{pattern}"))

    def has(self, name: str) -> bool:
        """Return True if a file is on the store; faster than `names`."""
        return bool(self.files.exists(f"{STORE.removeprefix('s3://')}/{name}"))

    def read(self, name: str) -> Any:
        return json.loads(self.files.cat_file(name))

    def topic(self, name: str) -> list[tuple[str, dict[str, Any]]]:
        return records_of(self.brokers, f"bikes-{name}")

    def windows(self) -> pd.DataFrame:
        """Return the windows with enough rows that watches have told of so far."""
        tables = [pd.DataFrame({"rows": [], "window": [], "window_end": [], "status": []})]
        for name in self.names("runs/monitoring/bikes/*/drift/*.parquet"):
            with self.files.open(name) as file:
                tables.append(pd.read_parquet(file))
        table = pd.concat(tables[1:] or tables)
        return table[table["rows"] >= 200]

    # ---- the world

    def send(self, season: str) -> None:
        """Let the world send the hours of a season from now on; of none with an empty name."""
        self._season = season
        if not self._world.ident:
            self._world.start()

    def _send(self) -> None:
        while not self._stop.wait(1 / RATE):
            if season := self._season:
                self.module["world"](self.place, season, 1)

    def end(self) -> None:
        self._stop.set()
        if self._world.ident:
            self._world.join()
        for program in (self.driver, self.answers, self.server):
            program.end()


@pytest.fixture
def circle(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Circle]:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    folder = tmp_path_factory.mktemp("circle")
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(hosts_cluster(folder, num_workers=2))
        env = stack.enter_context(s3_bucket(cluster.net))
        brokers = stack.enter_context(kafka_broker(folder, cluster.net.address))
        circle = Circle(cluster, env, brokers)
        stack.callback(circle.end)
        yield circle


@pytest.mark.thorough
@pytest.mark.timeout(2400)
def test_a_circle_that_is_killed_in_each_stage_loses_nothing(circle: Circle) -> None:
    circle.topics.start()
    assert circle.topics.wait() == 0
    for program in (circle.server, circle.answers, circle.driver):
        program.start()

    def kill(program: Program, what: str, event: Callable[[], object]) -> None:
        program.until(event, what)
        program.kill()
        program.wait()
        program.start()

    has, driver = circle.has, circle.driver
    kill(driver, "a trial", lambda: circle.names("runs/bikes-1-search/trials/*/outputs.json"))
    kill(driver, "training", lambda: training_of(circle, "bikes-1-train"))
    kill(driver, "an export", lambda: has("runs/models/bikes/claims/1.json"))
    kill(driver, "an alias", lambda: has("runs/models/bikes/aliases/stable/1.json"))
    circle.send("summer")
    kill(circle.server, "forecasts", lambda: len(circle.topic("forecasts")) > 20)
    killed_after = len(circle.topic("forecasts"))
    more = lambda: len(circle.topic("forecasts")) > killed_after + 20  # noqa: E731
    kill(circle.answers, "more forecasts", more)
    driver.until(lambda: circle.windows()["window"].nunique() >= 2, "summer windows")
    assert not circle.topic("alarms")
    assert set(circle.windows()["status"]) == {"ok"}
    winter_ms = time.time() * 1000
    circle.send("winter")
    kill(driver, "an alarm", lambda: circle.topic("alarms"))
    kill(driver, "rows", lambda: has("data/2/recent/_SUCCESS"))
    circle.send("")
    kill(driver, "training again", lambda: training_of(circle, "bikes-2-train"))
    kill(driver, "a canary", lambda: has("runs/models/bikes/aliases/canary/2.json"))
    circle.send("winter")
    assert driver.wait() == 0, driver.log.read_text()[-6000:]
    circle.send("")

    assert_versions(circle)
    assert_answers(circle)
    circle.server.kill(signal.SIGTERM)
    circle.server.wait()
    assert_log(circle)
    assert_alarms(circle, winter_ms)
    circle.answers.end()
    circle.cluster.assert_no_training()


def training_of(circle: Circle, run: str) -> bool:
    """Return True while processes of a run train."""
    return bool(circle.has(f"runs/{run}/run.json") and circle.cluster.training_processes())


def assert_versions(circle: Circle) -> None:
    """Each round has one whole version; the second one is stable. Nothing was done twice."""
    folder = "runs/models/bikes"
    records = [circle.read(name) for name in circle.names(f"{folder}/*/model.json")]
    assert [record["run"] for record in records] == ["bikes-1-train", "bikes-2-train"]
    for record in records:
        base = f"bucket/bikes/{folder}/{record['version']}"
        for name, about in record["files"].items():
            content = circle.files.cat_file(f"{base}/{name}")
            assert hashlib.sha256(content).hexdigest() == about["sha256"]
    last = records[-1]["version"]
    for alias in ("stable", "canary"):
        moves = circle.names(f"{folder}/aliases/{alias}/*")
        assert [circle.read(name)["version"] for name in moves] == [records[0]["version"], last]
    assert len(circle.names("data/*/done")) == 2


def assert_answers(circle: Circle) -> None:
    """Each request in Kafka has one answer, which is that of one version's Keras model."""
    import keras

    asked = dict(circle.topic("hours"))
    assert eventually(lambda: len(circle.topic("forecasts")) >= len(asked), STAGE_S)
    answers = circle.topic("forecasts")
    assert sorted(key for key, _ in answers) == sorted(asked)
    served: dict[str, Any] = collections.defaultdict(list)
    for key, forecast in answers:
        served[forecast["version"]].append((asked[key]["rows"], forecast["bikes"]))
    assert len(served) == 2
    for version, pairs in served.items():
        path = circle.cluster.folder / f"{version}.keras"
        circle.files.get_file(f"bucket/bikes/runs/models/bikes/{version}/model.keras", str(path))
        model = keras.models.load_model(path)
        rows = pd.DataFrame([row for some, _ in pairs for row in some]).astype("float32")
        expected = model.predict({name: rows[name].to_numpy() for name in rows}, verbose=0)
        found = np.array([value for _, values in pairs for value in values])
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-2)


def assert_log(circle: Circle) -> None:
    """The log of the server has all answers but the last ones before the server was killed."""
    logged = {key for key, _ in circle.topic("requests")}
    answers = [key for key, _ in circle.topic("forecasts")]
    assert logged <= set(answers)
    missing = [number for number, key in enumerate(answers) if key not in logged]
    assert not missing or missing == [*range(missing[0], missing[0] + len(missing))]


def assert_alarms(circle: Circle, winter_ms: float) -> None:
    """Alarms tell of the temperature, in windows that have not ended before winter came."""
    alarms = dict(circle.topic("alarms"))
    assert alarms
    for alarm in alarms.values():
        assert "temperature" in alarm["text"]
        assert pd.Timestamp(alarm["window"][1]).timestamp() * 1000 > winter_ms


class Echo(http.server.ThreadingHTTPServer):
    """A model server whose forecasts are the temperatures; one request hangs until it is released.

    Args:
        num_answers: the number of requests before the one that hangs.

    Attributes:
        asked: the ids of all requests.
        released: set when the request may be answered.
    """

    daemon_threads = True

    def __init__(self, num_answers: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.num_answers = num_answers
        self.asked: list[str] = []
        self.released = threading.Event()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Echo

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(request["id"])
        if len(self.server.asked) > self.server.num_answers:
            self.server.released.wait(STAGE_S)
        values = {column["name"]: column["data"] for column in request["inputs"]}
        answer = {"model_version": "1", "outputs": [{"data": values["temperature"]}]}
        body = json.dumps(answer).encode()
        with contextlib.suppress(OSError):  # The client was killed.
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


# The step, which is killed when forecasts are in Kafka, and their transaction has not ended.
KILLED_IN_A_TRANSACTION = f"""
import os, signal, sys
sys.path.insert(0, {str(EXAMPLE.parent)!r})
import circle_on_cluster as example

class Producer(example.Producer):
    def commit_transaction(self):
        self.flush()
        os.kill(os.getpid(), signal.SIGKILL)

example.Producer = Producer
sys.exit(example.main())
"""


@contextlib.contextmanager
def killed_at_the_end(*arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run Python in the block, and kill it at the end of the block."""
    with subprocess.Popen([sys.executable, *arguments]) as program:
        try:
            yield program
        finally:
            program.kill()


@pytest.mark.parametrize("moment", ["a request", "a transaction"])
def test_hours_have_one_forecast_each_though_the_program_that_asks_is_killed(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    module = runpy.run_path(str(EXAMPLE))
    in_request = moment == "a request"
    with kafka_broker(tmp_path) as brokers, Echo(25 if in_request else 1000) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = module["ClusterPlace"](tmp_path, STORE, brokers, WINDOW_S, WINDOW_S)
        assert module["topics"](place) == "5 topics were created"
        assert module["topics"](place) == "0 topics were created"
        module["world"](place, "summer", 40)
        url = f"http://127.0.0.1:{server.server_address[1]}"
        step = ["answer", "--store", STORE, "--brokers", brokers, "--url", url]
        program = [str(EXAMPLE)] if in_request else ["-c", KILLED_IN_A_TRANSACTION]
        with killed_at_the_end(*program, *step) as first:
            over = lambda: first.poll() is not None  # noqa: E731
            eventually(lambda: over() or len(server.asked) > 25)
            assert over() is not in_request
        assert first.returncode == -signal.SIGKILL
        server.released.set()
        answers = lambda: records_of(brokers, "bikes-forecasts")  # noqa: E731
        assert in_request or not answers()
        with killed_at_the_end(str(EXAMPLE), *step):
            eventually(lambda: len(answers()) >= 40)
        server.shutdown()
        hours = dict(records_of(brokers, "bikes-hours"))
        found = answers()
    assert len(server.asked) > 40  # Those of the transaction that was killed were asked again.
    assert sorted(key for key, _ in found) == sorted(hours)
    for key, forecast in found:
        assert forecast["bikes"] == [row["temperature"] for row in hours[key]["rows"]]


def test_a_program_begins_where_its_group_was_though_the_coordinator_answers_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

    class Late:
        """A consumer whose group has read one of two partitions."""

        errors: ClassVar = [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS]

        def list_topics(self, name: str, _: float) -> Any:
            return SimpleNamespace(topics={name: SimpleNamespace(partitions=[0, 1])})

        def committed(self, places: list[Any], _: float) -> list[Any]:
            if self.errors:
                raise KafkaException(KafkaError(self.errors.pop()))
            return [TopicPartition("hours", 0, 7), TopicPartition("hours", 1)]

    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    places = runpy.run_path(str(EXAMPLE))["next_places"](Late(), "hours")
    assert [(p.partition, p.offset) for p in places] == [(0, 7), (1, OFFSET_BEGINNING)]
