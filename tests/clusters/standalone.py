"""A standalone Spark cluster over several hosts, and drivers on its first host."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkdl.host.os_processes import parent
from tests.clusters.hosts import Host, Network, network
from tests.helpers.processes import eventually
from tests.helpers.spark import DEFAULTS, JAVA_OPTIONS
from tests.helpers.standalone import SPARK

__all__ = ["Call", "Cluster", "Driver", "DriverError", "hosts_cluster"]

REPOSITORY = Path(__file__).parents[2]
PORT = 7077
READY_S = 120.0


class DriverError(Exception):
    """A function on the driver has raised an exception."""


@dataclass
class Call:
    """A function that runs on the driver.

    Attributes:
        number: the number of the call.
        began_s: the time of the call, on the monotonic clock.
    """

    number: int
    began_s: float
    _answers: dict[int, Any] = field(repr=False)
    _arrived: threading.Condition = field(repr=False)

    def wait(self, timeout_s: float = 200.0) -> Any:
        """Return the value of the function.

        Raises:
            DriverError: if the function raised.
        """
        with self._arrived:
            came = self._arrived.wait_for(lambda: self.number in self._answers, timeout_s)
        assert came, f"call {self.number} has not ended after {timeout_s:g} s"
        answer = self._answers[self.number]
        if answer is None:
            raise DriverError("the driver has ended")
        if "error" in answer:
            raise DriverError(f"{answer['error']}\n{answer['trace']}")
        return answer["value"]

    def error(self, timeout_s: float = 200.0) -> str:
        """Return the error of a function that must raise."""
        try:
            value = self.wait(timeout_s)
        except DriverError as exc:
            return str(exc)
        raise AssertionError(f"no error, but {value!r}")


class Driver:
    """A driver's process on a host.

    Args:
        process: the process.
        log: the file of its standard error.

    Attributes:
        pid: the id of the process.
    """

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self.log = log
        self.pid = process.pid
        self._process = process
        self._answers: dict[int, Any] = {}
        self._arrived = threading.Condition()
        self._number = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        Call(-1, time.monotonic(), self._answers, self._arrived).wait(READY_S)

    def start(self, call: str, **kwargs: Any) -> Call:
        """Start a function `<module>:<function>` on the driver."""
        begun = Call(self._number, time.monotonic(), self._answers, self._arrived)
        self._number += 1
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"call": call, "kwargs": kwargs}) + "\n")
        self._process.stdin.flush()
        return begun

    def call(self, call: str, timeout_s: float = 200.0, **kwargs: Any) -> Any:
        """Call a function on the driver, and return its value."""
        return self.start(call, **kwargs).wait(timeout_s)

    def end(self) -> None:
        """Stop Spark and the driver."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        self._process.kill()
        self._process.wait()
        self._reader.join(10)
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            record = json.loads(line)
            with self._arrived:
                self._answers[record["number"]] = record
                self._arrived.notify_all()
        with self._arrived:
            for number in range(-1, self._number):
                self._answers.setdefault(number, None)
            self._arrived.notify_all()


class Cluster:
    """A master on the first host, and a worker on each other one.

    Args:
        net: the hosts.
        cores: the cores of each worker.
        daemon_options: Java properties of master and workers.

    Attributes:
        net: the hosts.
        nodes: the hosts with workers.
    """

    def __init__(
        self, net: Network, cores: int = 1, daemon_options: Mapping[str, str] | None = None
    ) -> None:
        self.net = net
        self.head, *self.nodes = net.hosts
        self._cores = cores
        self._options = dict(daemon_options or {})
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._drivers: list[Driver] = []
        self._number = 0

    @property
    def folder(self) -> Path:
        """The folder on the shared disk."""
        return self.net.folder

    @property
    def url(self) -> str:
        """The URL of the master."""
        return f"spark://{self.head.address}:{PORT}"

    def start_master(self) -> None:
        """Start the master, which recovers the applications of an earlier one."""
        options = {
            "spark.master.rest.enabled": "false",
            "spark.deploy.recoveryMode": "FILESYSTEM",
            "spark.deploy.recoveryDirectory": str(self.folder / "recovery"),
        }
        log = self._daemon(self.head, "master.Master", ["--port", str(PORT)], options)
        ready = re.compile("New state: ALIVE|Recovery complete")
        assert eventually(lambda: ready.search(log.read_text()), READY_S), log.read_text()

    def start_workers(self) -> None:
        """Start a worker on each host, and wait until the master knows them."""
        logs = [self._start_worker(host) for host in self.nodes]
        ready = "Successfully registered with master"
        for log in logs:
            assert eventually(lambda: ready in log.read_text(), READY_S), log.read_text()

    def start_worker(self, host: Host, user: int = 0, env: Mapping[str, str] | None = None) -> Path:
        """Start the worker of a host, and wait until the master knows it.

        Args:
            host: the host.
            user: the user id of the worker and its executors.
            env: more variables for them.
        """
        log = self._start_worker(host, user, env)
        ready = "Successfully registered with master"
        assert eventually(lambda: ready in log.read_text(), READY_S), log.read_text()
        return log

    def _start_worker(
        self, host: Host, user: int = 0, env: Mapping[str, str] | None = None
    ) -> Path:
        arguments = ["--cores", str(self._cores), "--memory", "3g"]
        arguments += ["--work-dir", str(host.folder / "work"), self.url]
        return self._daemon(host, "worker.Worker", arguments, {}, user, env)

    def kill_daemon(self, host: Host) -> None:
        """Kill the master or worker of a host with SIGKILL; its executors are not touched."""
        kind = "Master" if host is self.head else "Worker"
        pids = [p for p, line in host.processes().items() if f"{kind} --host" in line]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self._daemons.pop(host.name).wait(20)

    def start_driver(self, env: Mapping[str, str] | None = None, **conf: str) -> Driver:
        """Start a driver on the first host.

        Args:
            env: variables for the driver and its executors.
            conf: settings; a double underscore in a name stands for a dot.
        """
        settings = self.settings(env, **conf)
        self._number += 1
        log = self.folder / f"driver-{self._number}.log"
        command = [sys.executable, "-m", "tests.clusters.driver", json.dumps(settings)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.head.command(*command),
                env={**self.environment(self.head), **(env or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                cwd=REPOSITORY,
            )
        try:
            self._drivers.append(driver := Driver(process, log))
        except (AssertionError, DriverError) as exc:
            raise AssertionError(log.read_text()[-5000:]) from exc
        return driver

    def settings(self, env: Mapping[str, str] | None = None, **conf: str) -> dict[str, str]:
        """Return the settings of an application of this cluster, see `start_driver`."""
        return {
            **DEFAULTS,
            "spark.master": self.url,
            "spark.executor.memory": "1g",
            "spark.driver.host": self.head.address,
            "spark.sparkdl.root": str(self.folder / "runs"),
            **{f"spark.executorEnv.{name}": value for name, value in (env or {}).items()},
            **{name.replace("__", "."): value for name, value in conf.items()},
        }

    def training_processes(self) -> dict[str, list[int]]:
        """Return the training processes, and their monitors, on each host that has any."""
        found = {}
        for host in self.net.hosts:
            servers = {p for p, line in host.processes().items() if "fork_server" in line}
            if pids := [pid for pid in servers if parent(pid) in servers]:
                found[host.name] = pids
        return found

    def assert_no_training(self, seconds: float = 20.0) -> None:
        """Assert that all training processes on all hosts end soon."""
        assert eventually(lambda: not self.training_processes(), seconds), self.training_processes()

    def end(self, spare: str = "") -> None:
        """End drivers, workers and master; no other process may be left on any host.

        Args:
            spare: a part of the command lines of processes that are left alone.
        """
        try:
            for driver in self._drivers:
                driver.end()
            assert eventually(lambda: not self._others(spare), 30), self._others(spare)
        finally:
            for host in self.net.hosts:
                for pid, line in host.processes().items():
                    if spare and spare in line:
                        continue
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            for daemon in self._daemons.values():
                daemon.wait(20)

    def _others(self, spare: str) -> list[str]:
        """Return the processes on all hosts that are neither master nor worker."""
        lines = [line for host in self.net.hosts for line in host.processes().values()]
        lines = [line for line in lines if "org.apache.spark.deploy." not in line]
        return [line for line in lines if not (spare and spare in line)]

    def _daemon(
        self,
        host: Host,
        kind: str,
        arguments: list[str],
        options: Mapping[str, str],
        user: int = 0,
        env: Mapping[str, str] | None = None,
    ) -> Path:
        main = f"org.apache.spark.deploy.{kind}"
        listen = ["--host", host.address, "--webui-port", "0"]
        # Only the program itself gets the variables, not the commands that bring it there.
        given = ["env", *(f"{name}={value}" for name, value in (env or {}).items())]
        program = [*given, str(SPARK / "bin/spark-class"), main, *listen, *arguments]
        command = host.command(*program, user=user)
        properties = {**self._options, **options}
        java = " ".join([JAVA_OPTIONS, *(f'"-D{k}={v}"' for k, v in properties.items())])
        env = {**self.environment(host), "SPARK_DAEMON_JAVA_OPTS": java}
        log = host.folder / f"{kind}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=REPOSITORY,
            )
        self._daemons[host.name] = process
        return log

    def environment(self, host: Host) -> dict[str, str]:
        """Return the variables of programs on a host."""
        kept = {k: v for k, v in os.environ.items() if k not in ("TMPDIR", "SPARK_LOCAL_DIRS")}
        folders = [str(REPOSITORY), str(REPOSITORY / "examples"), kept.get("PYTHONPATH", "")]
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join(folders),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(SPARK),
            "SPARK_LOCAL_IP": host.address,
            "SPARK_NO_DAEMONIZE": "1",
        }


@contextlib.contextmanager
def hosts_cluster(
    folder: Path,
    num_workers: int = 3,
    cores: int = 1,
    tmp_size: str = "2g",
    own_pids: bool = True,
    daemon_options: Mapping[str, str] | None = None,
) -> Iterator[Cluster]:
    """Yield a cluster of workers on hosts of their own; no process of it is left afterwards."""
    with network(folder, num_workers + 1, tmp_size, own_pids) as net:
        cluster = Cluster(net, cores, daemon_options)
        try:
            cluster.start_master()
            cluster.start_workers()
            yield cluster
        finally:
            cluster.end()
