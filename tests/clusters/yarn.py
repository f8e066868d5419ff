"""A YARN cluster over several hosts, and programs that are submitted to it."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clusters.environment import pack_environment
from tests.clusters.hadoop import Hadoop, jars, write_settings
from tests.clusters.hosts import Host, Network, network, skip_unless_possible
from tests.helpers.processes import eventually
from tests.helpers.spark import JAVA_OPTIONS
from tests.helpers.standalone import SPARK

__all__ = ["Application", "Yarn", "yarn_cluster"]

PROGRAM = Path(__file__).parent / "programs" / "submitted.py"
# Spark's jars at a path of the hosts that is not below the environment of the tests.
JARS = "/dev/shm/jars"
# Each node has room for one executor beside an ApplicationMaster.
NODE_MB = 2560
ANSWER_S = 300.0
# Each node unpacks the environment: 1.9 GB in all, and HDFS takes no block on a full disk.
DISK_BYTES = 3 << 30
FULLEST_DISK = "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage"


@dataclass
class Application:
    """A program that was submitted.

    Attributes:
        folder: the folder in which it and the test meet.
        process: the process of `spark-submit`.
    """

    folder: Path
    process: "subprocess.Popen[bytes]"

    @property
    def output(self) -> str:
        """The output of `spark-submit`, and so of the driver in client mode."""
        return (self.folder / "submit.log").read_text(errors="replace")

    def started(self, number: int | str = "*") -> dict[str, dict[str, Any]]:
        """Return the facts of the trials that have started, by the name of their file."""
        files = sorted(self.folder.glob(f"trial-{number}-*"))
        return {path.name: json.loads(path.read_text()) for path in files}

    def wait_for_trials(self, count: int) -> dict[str, dict[str, Any]]:
        """Wait until `count` trials have started, and return their facts."""
        ended = self.process.poll
        eventually(lambda: len(self.started()) >= count or ended() is not None, ANSWER_S)
        found = self.started()
        assert len(found) >= count, self.output[-8000:]
        return found

    def go_on(self) -> None:
        """Let all trials end."""
        (self.folder / "go").touch()

    def wait(self, timeout_s: float = ANSWER_S) -> int:
        """Wait for the end; return the exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended:\n{self.output[-8000:]}") from None

    def summary(self) -> dict[str, Any]:
        """Wait for the end; return what the program has told."""
        self.wait()
        summary = self.folder / "summary.json"
        assert summary.exists(), self.output[-8000:]
        found: dict[str, Any] = json.loads(summary.read_text())
        return found


class Yarn(Hadoop):
    """A ResourceManager on the first host, a NodeManager on each other one, and HDFS.

    Args:
        net: the hosts.
        lib: the folder of Hadoop's jars.

    Attributes:
        archive: the environment, on HDFS.
    """

    def __init__(self, net: Network, lib: Path) -> None:
        super().__init__(net, lib)
        self._applications: list[Application] = []
        self.archive = f"{self.url}/apps/environment.tar.gz"
        self._write_yarn_settings()

    def _write_yarn_settings(self) -> None:
        settings = {
            "yarn.resourcemanager.hostname": self.head.address,
            "yarn.scheduler.minimum-allocation-mb": 128,
            "yarn.nodemanager.resource.memory-mb": NODE_MB,
            "yarn.nodemanager.resource.cpu-vcores": 8,
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "true",
            # By default Hadoop 3.5 leaves limits to cgroups, also where it uses none.
            "yarn.nodemanager.resource.memory.enforced": "false",
            "yarn.nodemanager.container-monitor.interval-ms": 500,
            "yarn.nodemanager.disk-health-checker.enable": "false",
            # Read at the start all the same: by default a NodeManager takes no container when less
            # than a tenth of its disk is free, whatever that is in bytes.
            FULLEST_DISK: 100,
            "yarn.nodemanager.delete.debug-delay-sec": 3600,
            # A NodeManager that was killed is lost after this time. A busy machine may stop a JVM
            # for some seconds, and an ApplicationMaster starts only after the archive is unpacked:
            # its own limit stays at ten minutes.
            "yarn.nm.liveness-monitor.expiry-interval-ms": 30000,
            "yarn.resourcemanager.am.max-attempts": 2,
        }
        write_settings(self.conf / "yarn-site.xml", settings)
        queue = "yarn.scheduler.capacity"
        resources = "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator"
        settings = {
            f"{queue}.root.queues": "default",
            f"{queue}.root.default.capacity": 100,
            # Otherwise applications wait for ever on small clusters: 0.1 is the default.
            f"{queue}.maximum-am-resource-percent": 1.0,
            f"{queue}.resource-calculator": resources,
        }
        write_settings(self.conf / "capacity-scheduler.xml", settings)
        gpus = {"yarn.resource-types": "yarn.io/gpu"}
        write_settings(self.conf / "resource-types.xml", gpus)
        for host in self.nodes:
            (folder := host.folder / "conf").mkdir()
            settings = {
                # With a port of its own choice, a NodeManager that comes back is another node.
                "yarn.nodemanager.address": f"{host.name}:45454",
                "yarn.nodemanager.local-dirs": host.folder / "local",
                "yarn.nodemanager.log-dirs": host.folder / "logs",
            }
            base = (self.conf / "yarn-site.xml").read_text()
            write_settings(folder / "yarn-site.xml", settings)
            own = (folder / "yarn-site.xml").read_text().removeprefix("<configuration>\n")
            merged = base.replace("</configuration>\n", own)
            (folder / "yarn-site.xml").write_text(merged)
            gpus = {"yarn.nodemanager.resource-type.yarn.io/gpu": 2}
            write_settings(folder / "node-resources.xml", gpus)

    def start_all(self) -> None:
        """Start all daemons, and put the environment on HDFS."""
        for host in self.net.hosts:
            self._hide_environment(host)
        self.start("resourcemanager", self.head)
        self.start_hdfs()
        for host in self.nodes:
            self.start_nodemanager(host)
        self.wait_for_nodes(len(self.nodes))
        with tempfile.TemporaryDirectory(dir=self.net.folder) as folder:
            archive = pack_environment(Path(folder, "environment.tar.gz"))
            self.put(archive, self.archive)
            with tarfile.open(archive) as tar:  # For drivers in client mode.
                tar.extractall(self.head.folder / "environment", filter="fully_trusted")

    def _hide_environment(self, host: Host) -> None:
        """Leave a host nothing but Java, Spark's jars, and a Python without packages."""
        command = f"mkdir {JARS} && mount --bind {SPARK}/jars {JARS}"
        if host is not self.head:  # Programs are submitted there.
            command += f" && mount -t tmpfs tmpfs {sys.prefix}"
        subprocess.run(host.command("sh", "-c", command), check=True)

    def start_nodemanager(self, host: Host) -> None:
        """Start the NodeManager of a host."""
        self.start("nodemanager", host, host.folder / "conf")

    def wait_for_nodes(self, count: int) -> None:
        """Wait until `count` NodeManagers run."""

        def is_ready() -> bool:
            return f'"activeNodes":{count},' in self.rest("metrics")

        self.wait(is_ready, "resourcemanager", self.head)

    def rest(self, path: str) -> str:
        """Return an answer of the ResourceManager."""
        return self._get(f"http://{self.head.address}:8088/ws/v1/cluster/{path}")

    def applications(self, *states: str) -> list[dict[str, Any]]:
        """Return the applications, of these states or of all, the newest first."""
        found = json.loads(self.rest("apps") or "{}").get("apps") or {}
        chosen = [a for a in found.get("app", []) if not states or a["state"] in states]
        return sorted(chosen, key=lambda application: application["id"], reverse=True)

    def put(self, file: Path, url: str) -> None:
        """Copy a file to HDFS."""
        main = "org.apache.hadoop.fs.FsShell"
        for command in (["-mkdir", "-p", os.path.dirname(url)], ["-put", str(file), url]):
            done = subprocess.run(
                self.java(self.head, main, *command), capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr

    def kill_application(self, application: str) -> None:
        """Kill an application, as `yarn application -kill` does."""
        main = "org.apache.hadoop.yarn.client.cli.ApplicationCLI"
        command = self.java(self.head, main, "application", "-kill", application)
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def submit(
        self,
        folder: Path,
        mode: str,
        *arguments: str,
        conf: Mapping[str, str] | None = None,
    ) -> Application:
        """Submit the program `submitted.py` from the first host.

        Args:
            folder: the folder in which the program and the test meet.
            mode: `client` or `cluster`.
            arguments: further arguments of the program.
            conf: further settings of Spark.
        """
        own = self.head.folder / "environment"
        settings = {
            "spark.yarn.jars": f"local:{JARS}/*",
            "spark.yarn.dist.archives": f"{self.archive}#environment",
            "spark.pyspark.python": "./environment/bin/python",
            "spark.executor.instances": "3",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.executor.memoryOverhead": "1g",
            "spark.driver.memory": "512m",
            "spark.executor.extraJavaOptions": JAVA_OPTIONS.split(" -XX:Shared")[0],
            "spark.yarn.am.waitTime": "200s",
            "spark.rpc.io.maxRetries": "10",
            "spark.rpc.io.retryWait": "2s",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            **({"spark.pyspark.driver.python": f"{own}/bin/python"} if mode == "client" else {}),
            **(conf or {}),
        }
        command = [f"{SPARK}/bin/spark-submit", "--master", "yarn", "--deploy-mode", mode]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        with (folder / "submit.log").open("wb") as output:
            process = subprocess.Popen(
                self.head.command(*command, str(PROGRAM), str(folder), *arguments),
                env=self._client_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
            )
        self._applications.append(Application(folder, process))
        return self._applications[-1]

    def _client_environment(self) -> dict[str, str]:
        return {
            **self.environment(self.head),
            "SPARK_HOME": str(SPARK),
            "SPARK_LOCAL_IP": self.head.address,
            "SPARK_SUBMIT_OPTS": JAVA_OPTIONS,
        }

    def container_logs(self, name: str = "stderr") -> str:
        """Return the output of all containers so far."""
        files = [path for host in self.nodes for path in (host.folder / "logs").rglob(name)]
        return "\n".join(path.read_text(errors="replace") for path in files)

    def pids(self, text: str) -> dict[int, Host]:
        """Return the processes on all nodes whose command line contains a text."""
        return {
            pid: host
            for host in self.nodes
            for pid, line in host.processes().items()
            if text in line
        }

    def tidy(self) -> None:
        """End all applications, wait for the processes of their containers, restart lost nodes."""
        for application in self.applications("ACCEPTED", "RUNNING", "SUBMITTED"):
            self.kill_application(application["id"])
        for submitted in self._applications:
            with contextlib.suppress(subprocess.TimeoutExpired):
                submitted.process.wait(30)
            submitted.process.kill()
            submitted.process.wait()
        self._applications.clear()
        for host in self.nodes:
            if ("nodemanager", host.name) not in self._daemons:
                self.start_nodemanager(host)
        self.wait_for_nodes(len(self.nodes))
        assert eventually(lambda: not self.others(), 60), self.others()

    def others(self) -> list[str]:
        """Return the processes on the nodes that are no NodeManager."""
        lines = [line for host in self.nodes for line in host.processes().values()]
        return [line for line in lines if ".NodeManager" not in line]


def kill(pid: int) -> None:
    """Kill a process with SIGKILL."""
    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def yarn_cluster(folder: Path, num_nodes: int = 3) -> Iterator[Yarn]:
    """Yield a cluster; no process of it is left afterwards."""
    skip_unless_possible(folder)
    if (free := shutil.disk_usage(folder).free) < DISK_BYTES:
        pytest.skip(f"{folder} has {free >> 20} MiB free; the nodes need {DISK_BYTES >> 20} MiB")
    lib = jars()
    with network(folder, num_nodes + 1) as net:
        yarn = Yarn(net, lib)
        try:
            yarn.start_all()
            yield yarn
        finally:
            yarn.end()
