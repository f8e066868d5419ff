"""A server of Spark Connect on loopback, and clients that have no Java."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pyspark

from tests.clusters.standalone import REPOSITORY, Driver
from tests.helpers.processes import eventually
from tests.helpers.spark import DEFAULTS, JAVA_OPTIONS
from tests.helpers.standalone import SPARK

__all__ = ["ConnectServer", "connect_server", "missing_package"]

READY_S = 120.0
CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
READY = r"Spark Connect server started at: \S*?:(\d+)"

# The parts of pyspark that pyspark-client lacks.
JAVA_PARTS = ("core", "jars", "bin", "sbin", "java_gateway.py", "work", "__pycache__")


def missing_package() -> str | None:
    """Return the name of a package that clients of this pyspark need and that is not installed."""
    for line in metadata.requires("pyspark") or ():
        if "connect" in line.partition(";")[2]:
            (name,) = re.findall(r"^[\w.-]+", line)
            if not _is_installed(name):
                return name
    return None


def _is_installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


class ConnectServer:
    """A server.

    Args:
        port: its port on loopback.
        process: its process, which leads a process group.
        folder: the folder of its log and of its clients.
    """

    def __init__(self, port: int, process: "subprocess.Popen[bytes]", folder: Path) -> None:
        self.url = f"sc://127.0.0.1:{port}"
        self.process = process
        self.folder = folder
        self._num_clients = 0

    @contextmanager
    def client(self, **env: str) -> Iterator[Driver]:
        """Run a client until the end of the block, and close its session there."""
        log = self.folder / f"client-{self._num_clients}.log"
        self._num_clients += 1
        site = _pyspark_without_java(self.folder)
        path = [str(site), str(REPOSITORY), str(REPOSITORY / "examples")]
        path += filter(None, [os.environ.get("PYTHONPATH")])
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.clusters.connect_client", self.url],
                env={
                    **{k: v for k, v in os.environ.items() if not k.startswith("SPARK_")},
                    "JAVA_HOME": "/nonexistent",
                    "PYTHONPATH": os.pathsep.join(path),
                    # What lies there is an installed package, and none of the program.
                    "PYTHONUSERBASE": str(self.folder),
                    "SPARKDL_ROOT": str(self.folder / "runs"),
                    **env,
                },
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        driver = Driver(process, log)
        try:
            yield driver
        finally:
            driver.end()


@contextmanager
def connect_server(folder: Path, master: str, **conf: str) -> Iterator[ConnectServer]:
    """Run a server until the end of the block; all that it has started ends with it.

    Args:
        folder: an empty folder.
        master: the master of its application.
        conf: settings; a double underscore in a name stands for a dot.
    """
    log = folder / "server.log"
    settings = {
        **DEFAULTS,
        "spark.local.dir": str(folder / "local"),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.executorEnv.PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'examples'}",
        **{name.replace("__", "."): value for name, value in conf.items()},
    }
    command = [str(SPARK / "bin" / "spark-submit"), "--class", CLASS, "--master", master]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    env = {**os.environ, "SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1"}
    env |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(REPOSITORY)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=env,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield ConnectServer(_port(log, process), process, folder)
    finally:
        _end(process)
    assert not [*folder.rglob("sparkdl-rows")]


def _port(log: Path, process: "subprocess.Popen[bytes]") -> int:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if match := re.search(READY, log.read_text()):
            return int(match[1])
        assert process.poll() is None, f"the server has ended:\n{log.read_text()}"
        time.sleep(0.1)
    raise TimeoutError(f"no server after {READY_S:g} s:\n{log.read_text()}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Stop the server with its whole session: executors, Python workers and what they started."""
    session = process.pid
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)
    process.wait()
    assert eventually(lambda: not _has_members(session), 20)


def _has_members(session: int) -> bool:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, number = stat.read_text().rpartition(")")[2].split()[:4]
            if int(number) == session and state != "Z":
                return True
    return False


def _pyspark_without_java(folder: Path) -> Path:
    """Return a folder with pyspark as pyspark-client has it, made of links."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    source, target = Path(pyspark.__file__).parent, site / "pyspark"
    if site.exists():
        return site
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.name not in JAVA_PARTS:
            (target / path.name).symlink_to(path)
    (site / "py4j.py").write_text("raise ImportError('this client has no Py4J')\n")
    return site
