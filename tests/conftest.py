"""Fixtures: real Spark sessions, a root folder with a nasty name, and what a run leaves behind."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["PYSPARK_PYTHON"] = sys.executable
# Executors import the test modules' helpers from memory, but sparkdl itself must be installed.

from pyspark.sql import SparkSession

from sparkdl.processes import process_start


def start_session(master: str, **conf: str) -> SparkSession:
    """A session of this master, after the one before has ended."""
    if active := SparkSession.getActiveSession():
        active.stop()
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    for key, value in conf.items():
        builder = builder.config(key.replace("__", "."), value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Embedded Spark with two slots."""
    session = start_session("local[2]")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def lc() -> Iterator[SparkSession]:
    """Three executor processes with one slot each."""
    session = start_session("local-cluster[3,1,1024]", spark__executor__memory="1g")
    yield session
    session.stop()


def start_gpu_session(master: str, gpus: int, folder: Path) -> SparkSession:
    """Executors that each think that they have so many GPUs, and give each task one of them."""
    script = folder / "discover.sh"
    found = json.dumps({"name": "gpu", "addresses": [str(i) for i in range(gpus)]})
    script.write_text(f"#!/bin/sh\necho '{found}'\n")
    script.chmod(0o755)
    return start_session(
        master,
        spark__executor__memory="1g",
        spark__worker__resource__gpu__amount=str(gpus),
        spark__worker__resource__gpu__discoveryScript=str(script),
        spark__executor__resource__gpu__amount=str(gpus),
        spark__task__resource__gpu__amount="1",
    )


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Where runs go: a path with a space, quotes and a letter that is not ASCII."""
    path = tmp_path / 'it\'s a "röot"'
    path.mkdir()
    return str(path)


def quiet(root: str, **options: Any) -> dict[str, Any]:
    """The options of a run that says nothing."""
    return {"root": root, "progress": False, **options}


def is_alive(pid: int) -> bool:
    return process_start(pid) is not None


def jvm_of(worker: int) -> int:
    """The executor above a Python worker: worker, daemon, executor."""
    for _ in range(2):
        worker = int(Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return worker


def processes_of(run_id: str) -> list[int]:
    """The processes that carry a run's id in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            variables = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
            if f"SPARKDL_RUN={run_id}".encode() in variables.split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def eventually(condition: Callable[[], object], seconds: float = 30.0) -> object:
    """Wait for a condition; its last value is asserted on by the caller."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return value


@pytest.fixture(autouse=True)
def leave_the_slots_free() -> Iterator[None]:
    """A test that fails must not leave trials behind that hold the slots of those after it."""
    yield
    if active := SparkSession.getActiveSession():
        active.sparkContext.cancelAllJobs()


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """A bucket of a real S3 protocol server on loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
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
        assert eventually(answers)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in keys.items():
                patch.setenv(name, value)
            import s3fs

            s3fs.S3FileSystem().mkdir("bucket")
            yield "s3://bucket"
    finally:
        server.terminate()
        server.wait()
