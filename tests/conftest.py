"""Fixtures: real Spark sessions, a root folder with a nasty name, and what a run leaves behind."""

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from pyspark.sql import SparkSession

from sparkdl.callbacks import webhook
from tests.helpers.groups import GROUPS, write_groups
from tests.helpers.joined_rings import Gangs
from tests.helpers.ports import held_port
from tests.helpers.processes import eventually
from tests.helpers.receiver import Receiver
from tests.helpers.spark import Applications, submit_options
from tests.helpers.standalone import standalone_cluster

os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["PYSPARK_PYTHON"] = sys.executable
# Executors import the test modules' helpers from memory, but sparkdl itself must be installed.

# Each pytest process has a temporary directory of its own: what another run has left behind is
# not found there, and the workers of pytest-xdist do not see each other's files. The folders of
# `tmp_path` stay where pytest puts them, to be looked at after a failure.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
TEMPORARY = tempfile.mkdtemp(prefix="sdl-", dir=os.environ["PYTEST_DEBUG_TEMPROOT"])
os.environ["TMPDIR"] = tempfile.tempdir = TEMPORARY
# Registered before multiprocessing registers the end of its folders, which so comes first.
atexit.register(shutil.rmtree, TEMPORARY, ignore_errors=True)
os.environ.setdefault(GROUPS, str(Path(TEMPORARY, "groups.json")))

# The time of an example depends on what else the machine does.
hypothesis.settings.register_profile(
    "any load", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any load")

# Python processes of the tests begin with its sitecustomize.py.
STARTUP = str(Path(__file__).with_name("startup"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (STARTUP, os.environ.get("PYTHONPATH"))))

# For the applications of this process, and those of the programs that tests start.
os.environ["SPARK_SUBMIT_OPTS"] = submit_options()
os.environ.pop("SPARK_CONF_DIR", None)  # A developer's own settings.

# The applications that tests share, by fixture, in the order in which they run. Others follow:
# tests of one file stay together.
APPLICATIONS = (
    "three_executors",
    "spark",
    "standalone_spark",
    "four_executors",
    "one_executor",
    "sixteen",
    "gpu_session",
)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Give `caplog` the messages of this test alone, as text: Spark's loggers make it JSON."""
    plugin = item.config.pluginmanager.getplugin("logging-plugin")
    plugin.caplog_handler.setFormatter(plugin.formatter)
    # A rank whose peers never come waits, and reminds, as long as its process lives: in a test of
    # that, this process.
    earlier = {t.ident for t in threading.enumerate() if t.name == "sparkdl-balance"}
    plugin.caplog_handler.filters = [lambda record: record.thread not in earlier]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by the Spark application that they need, so that each starts once."""

    def order(item: pytest.Item) -> tuple[int, bool]:
        names = getattr(item, "fixturenames", ())
        is_own = "own_application" in names or "half_blind" in names
        ends = is_own or item.get_closest_marker("ends_application") is not None
        if "standalone" in names:
            return APPLICATIONS.index("standalone_spark"), ends
        for number, name in enumerate(APPLICATIONS):
            if name in names and not is_own:
                return number, ends
        is_slow = item.get_closest_marker("slow") is not None
        return len(APPLICATIONS) + (not is_slow), False

    items.sort(key=order)
    groups = {}
    for item in items:
        number = order(item)[0]
        name = APPLICATIONS[number] if number < len(APPLICATIONS) else item.path.as_posix()
        groups[item.nodeid] = name
    if name := os.environ.get("PYTEST_XDIST_WORKER"):
        write_groups(name, groups)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n 3`, all tests of one application run in one of the processes."""
    from tests.helpers.lanes import ByApplication

    return ByApplication(config, log)


@pytest.fixture(scope="session")
def applications(request: pytest.FixtureRequest) -> Iterator[Applications]:
    """The Spark applications that tests share; one runs at a time."""
    if any("s3" in getattr(item, "fixturenames", ()) for item in request.session.items):
        # Executors know the store only if it is there when the JVM starts.
        request.getfixturevalue("s3")
    applications = Applications()
    yield applications
    applications.stop()


@pytest.fixture(scope="module")
def spark(applications: Applications) -> Iterator[SparkSession]:
    """Embedded Spark with two slots."""
    yield from applications.lend("local[2]")


@pytest.fixture(scope="module")
def three_executors(applications: Applications) -> Iterator[SparkSession]:
    """Three executor processes with one slot each."""
    yield from applications.lend("local-cluster[3,1,1024]", spark__executor__memory="1g")


@pytest.fixture(scope="module")
def four_executors(applications: Applications) -> Iterator[SparkSession]:
    """Four executor processes with one slot each."""
    yield from applications.lend("local-cluster[4,1,1024]", spark__executor__memory="1g")


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a standalone cluster of two workers with one core each."""
    with standalone_cluster(tmp_path_factory.mktemp("standalone")) as master:
        yield master


@pytest.fixture(scope="session")
def standalone_root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the runs on the standalone cluster."""
    return str(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def standalone_spark(
    applications: Applications, standalone: str, standalone_root: str
) -> Iterator[SparkSession]:
    """A session with both workers as executors of one core each."""
    settings = {"spark__executor__memory": "1g", "spark__sparkdl__root": standalone_root}
    yield from applications.lend(standalone, **settings)


@pytest.fixture
def own_application(applications: Applications) -> Iterator[None]:
    """For tests that start an application, or need the machine, for themselves."""
    applications.stop()
    yield
    if active := SparkSession.getActiveSession():
        active.stop()


@pytest.fixture
def gangs() -> Iterator[Gangs]:
    """Rings in this process, see `Gangs`, which are closed after the test."""
    made = Gangs()
    yield made
    made.close()


@pytest.fixture
def root(tmp_path: Path) -> str:
    """The root of runs: a path with a space, quotes and a letter that is not ASCII."""
    path = tmp_path / 'it\'s a "röot"'
    path.mkdir()
    return str(path)


@pytest.fixture(autouse=True)
def leave_the_slots_free() -> Iterator[None]:
    """A test that fails must not leave trials behind that hold the slots of those after it."""
    yield
    if active := SparkSession.getActiveSession():
        active.sparkContext.cancelAllJobs()


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """A bucket of a real S3 protocol server on loopback."""
    with held_port() as port:
        yield from _s3_server(port)


def _s3_server(port: int) -> Iterator[str]:
    """Run the server until the end of the session; yield the URL of its bucket."""
    program = str(Path(__file__).with_name("helpers") / "s3_server.py")
    command = [sys.executable, program, "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    keys = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        assert eventually(lambda: server.poll() is not None or answers())
        assert server.poll() is None
        with pytest.MonkeyPatch.context() as patch:
            for name, value in keys.items():
                patch.setenv(name, value)
            import s3fs

            s3fs.S3FileSystem().mkdir("bucket")
            yield "s3://bucket"
    finally:
        server.terminate()
        server.wait()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A server for what webhooks post; they try again after a short pause."""
    monkeypatch.setattr(webhook, "PAUSE_S", 0.01)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()
