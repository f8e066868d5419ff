"""Start Spark sessions for tests."""

import fcntl
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from sparkdl.cluster import worker_daemon

__all__ = [
    "JAVA_OPTIONS",
    "Applications",
    "gpu_settings",
    "start_gpu_session",
    "start_session",
    "submit_options",
]

# The tests' JVMs live for minutes: compile with the fast compiler only, collect in one thread, and
# take Spark's classes from the archive that `make test` writes, see scripts/spark_classes.py.
JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable "
    f"-XX:SharedArchiveFile={sys.prefix}/spark-classes.jsa"
)

DEFAULTS = {
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Tests count the jobs of an application, which many tests share.
    "spark.ui.retainedJobs": "1000000",
    # By default 200, each of which is a file that a task of a shuffle opens.
    "spark.sql.shuffle.partitions": "3",
}


def submit_options() -> str:
    """Return the options of all drivers' JVMs, which include Spark's settings for the tests.

    With a `spark-defaults.conf` on its class path, Java would not use the archive of classes.
    """
    return " ".join([JAVA_OPTIONS, *(f'"-D{name}={value}"' for name, value in DEFAULTS.items())])


def start_session(master: str, **conf: str) -> SparkSession:
    """Stop the active application and start a new one on this master.

    Args:
        master: URL of the master.
        conf: settings; a double underscore in a name stands for a dot.
    """
    if active := SparkSession.getActiveSession():
        active.stop()
    if "spark__jars" not in conf:
        # The settings with which a JVM starts hold for all applications after this one, too.
        SparkContext._ensure_initialized()
    builder = SparkSession.builder.master(master)
    for key, value in conf.items():
        builder = builder.config(key.replace("__", "."), value)
    with _own_second(), _lasting_folder():
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def _lasting_folder() -> Iterator[None]:
    """Start Spark in the repository: the folder of a test goes with the test, Spark stays."""
    before = os.getcwd()
    os.chdir(Path(__file__).parents[2])
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _own_second() -> Iterator[None]:
    """Let no other process of these tests start a cluster in the same second.

    The ids of applications on local clusters are made of the second in which they start, and
    Spark writes below its own folder by these ids.
    """
    with Path(tempfile.gettempdir()).parent.joinpath("sparkdl-tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def gpu_settings(gpus: int, folder: Path, addresses: Sequence[str] = ()) -> dict[str, str]:
    """The settings of executors that each report this number of GPUs and give one to each task.

    The addresses are 0, 1, ..., or those given.
    """
    script = folder / "discover.sh"
    found = json.dumps({"name": "gpu", "addresses": list(addresses or map(str, range(gpus)))})
    script.write_text(f"#!/bin/sh\necho '{found}'\n")
    script.chmod(0o755)
    return {
        "spark__executor__memory": "1g",
        "spark__worker__resource__gpu__amount": str(gpus),
        "spark__worker__resource__gpu__discoveryScript": str(script),
        "spark__executor__resource__gpu__amount": str(gpus),
        "spark__task__resource__gpu__amount": "1",
    }


def start_gpu_session(master: str, gpus: int, folder: Path) -> SparkSession:
    """Start an application whose executors each report this number of GPUs."""
    return start_session(master, **gpu_settings(gpus, folder))


def sql_settings(session: SparkSession) -> dict[str, str]:
    """Return the settings of a session; `conf.getAll` is newer than Spark 3.5."""
    return dict(session.sql("SET").collect())  # type: ignore[arg-type]


class Applications:
    """Keep one Spark application alive as long as tests ask for the same kind.

    A process has one SparkContext: asking for another kind stops the current application. Tests
    are sorted by kind, see `pytest_collection_modifyitems` in tests/conftest.py.
    """

    def __init__(self) -> None:
        self._kind: Any = None
        self._session: SparkSession | None = None

    def get(self, master: str, **conf: str) -> SparkSession:
        """Return the running session of this kind, or start one.

        Its Python workers start as in the sessions that sparkdl makes, which takes less CPU time.
        """
        kind = (master, conf)
        if self._session is None or kind != self._kind or not self._is_running():
            daemon = worker_daemon.settings({"spark.master": master}.get)
            settings = {name.replace(".", "__"): value for name, value in daemon.items()}
            self._session = start_session(master, **settings, **conf)
            self._kind = kind
        return self._session

    def lend(self, master: str, **conf: str) -> Iterator[SparkSession]:
        """Yield the session of this kind; afterwards restore the SQL settings it had before."""
        session = self.get(master, **conf)
        before = sql_settings(session)
        yield session
        if session.sparkContext._jsc is None:
            return
        after = sql_settings(session)
        for name in after.keys() - before.keys():
            session.conf.unset(name)
        for name, value in before.items():
            if after.get(name) != value:
                session.conf.set(name, value)

    def stop(self) -> None:
        """Stop the current application, if one runs."""
        if self._session is not None and self._is_running():
            self._session.stop()
        self._session = None

    def end_jvm(self) -> None:
        """Stop the application, and the JVM of this process: the next one has other jars."""
        self.stop()
        if gateway := SparkContext._gateway:
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(120)
            SparkContext._gateway = SparkContext._jvm = None

    def _is_running(self) -> bool:
        session = self._session
        return session is not None and session.sparkContext._jsc is not None
