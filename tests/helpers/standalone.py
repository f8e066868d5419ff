"""A standalone Spark cluster on loopback: a master and workers of one core each."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from tests.helpers.spark import JAVA_OPTIONS

__all__ = ["SPARK", "standalone_cluster"]

SPARK = Path(pyspark.__file__).parent
READY_S = 240.0


@contextmanager
def standalone_cluster(folder: Path, workers: int = 2) -> Iterator[str]:
    """Run a master and workers of one core until the end of the block; yield the master's URL."""
    # Port 0 is any free one; the master's log says which.
    anywhere = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    leads = r"Starting Spark master at (spark://\S+)[\s\S]*New state: ALIVE"
    with ExitStack() as stack:
        log = folder / "master.log"
        process = stack.enter_context(_daemon(log, "master.Master", *anywhere))
        master = _wait_for(leads, log, process)[1]
        logs = [folder / f"worker-{number}.log" for number in range(workers)]
        started = []
        for number, log in enumerate(logs):
            size = ("--cores", "1", "--memory", "2g", "--work-dir", str(folder / str(number)))
            daemon = _daemon(log, "worker.Worker", *anywhere, *size, master)
            started.append(stack.enter_context(daemon))
        for log, process in zip(logs, started, strict=True):
            _wait_for("Successfully registered with master", log, process)
        yield master


@contextmanager
def _daemon(log: Path, kind: str, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    command = [SPARK / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}", *arguments]
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(SPARK)}
    # Not on a fixed port: the REST server, which nothing here uses.
    env["SPARK_MASTER_OPTS"] = "-Dspark.master.rest.enabled=false"
    env["SPARK_DAEMON_JAVA_OPTS"] = JAVA_OPTIONS
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(ready: str, log: Path, process: "subprocess.Popen[bytes]") -> re.Match[str]:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if match := re.search(ready, log.read_text()):
            return match
        assert process.poll() is None, f"it ended by itself:\n{log.read_text()}"
        time.sleep(0.05)
    raise TimeoutError(f"not ready after {READY_S:g} s:\n{log.read_text()}")
