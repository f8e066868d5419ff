"""Real daemons of Hadoop on hosts of their own: HDFS on the first host, YARN on all of them."""

import contextlib
import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from tests.clusters.hosts import Host, Network, network, skip_unless_possible
from tests.clusters.scripts import fetched
from tests.helpers.processes import eventually

__all__ = ["DAEMON_OPTIONS", "Hadoop", "hadoop_cluster", "write_settings"]

DAEMON_OPTIONS = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
CLASSES = {
    "namenode": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "datanode": "org.apache.hadoop.hdfs.server.datanode.DataNode",
    "resourcemanager": "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    "nodemanager": "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
}
LOG4J = """log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c{1}: %m%n
"""
READY_S = 120.0


def jars() -> Path:
    """Return the folder of Hadoop's jars; the test is skipped where they cannot be had."""
    (folder,) = fetched("hadoop.sh")
    return Path(folder)


def write_settings(path: Path, settings: Mapping[str, object]) -> None:
    """Write a file of settings of Hadoop."""
    lines = [
        f"<property><name>{name}</name><value>{escape(str(value))}</value></property>"
        for name, value in settings.items()
    ]
    path.write_text("\n".join(["<configuration>", *lines, "</configuration>", ""]))


class Hadoop:
    """The daemons of HDFS, on the first host; `tests.clusters.yarn` adds those of YARN.

    Args:
        net: the hosts. Their names become known to each other, as YARN needs.
        lib: the folder of Hadoop's jars.

    Attributes:
        net: the hosts.
        conf: the folder of the settings, for `HADOOP_CONF_DIR`.
    """

    def __init__(self, net: Network, lib: Path) -> None:
        self.net = net
        self.head, *self.nodes = net.hosts
        self.conf = net.folder / "hadoop-conf"
        self._lib = lib
        self._daemons: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
        names = "".join(f"{host.address} {host.name}\n" for host in net.hosts)
        for host in net.hosts:
            (host.folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        self._write_hdfs_settings()

    @property
    def url(self) -> str:
        """The URL of HDFS."""
        return f"hdfs://{self.head.address}:9000"

    def _write_hdfs_settings(self) -> None:
        for page in ("hdfs", "datanode"):  # Their pages are not on Maven Central.
            (self.conf / "webapps" / page).mkdir(parents=True)
        (self.conf / "log4j.properties").write_text(LOG4J)
        write_settings(self.conf / "core-site.xml", {"fs.defaultFS": self.url})
        settings = {
            "dfs.replication": 1,
            "dfs.namenode.name.dir": self.head.folder / "names",
            "dfs.datanode.data.dir": self.head.folder / "blocks",
            # So that a restart does not wait for 30 s.
            "dfs.namenode.safemode.extension": 0,
            "dfs.namenode.safemode.threshold-pct": 1.0,
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.heartbeat.interval": 1,
            # Small blocks, so that files have several.
            "dfs.namenode.fs-limits.min-block-size": 1024,
            "dfs.blocksize": 1 << 20,
        }
        write_settings(self.conf / "hdfs-site.xml", settings)

    def start_hdfs(self) -> None:
        """Format the NameNode, and start the NameNode and the DataNode."""
        format_it = self.java(self.head, CLASSES["namenode"], "-format", "-force")
        done = subprocess.run(format_it, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        self.start_namenode()
        self.start("datanode", self.head)
        self.wait_for_hdfs()

    def start_namenode(self) -> None:
        """Start the NameNode, with what an earlier one has written."""
        self.start("namenode", self.head)

    def wait_for_hdfs(self) -> None:
        """Wait until HDFS has its DataNode, and can be written to."""

        def is_ready() -> bool:
            beans = self._get(
                f"http://{self.head.address}:9870/jmx?qry=Hadoop:*,name=FSNamesystem*"
            )
            expected = ('"NumLiveDataNodes" : 1', '"FSState" : "Operational"')
            return all(line in beans for line in expected)

        self.wait(is_ready, "namenode", self.head)

    def wait(self, is_ready: Callable[[], bool], kind: str, host: Host) -> None:
        """Wait until a daemon is ready; fail with its output if it ends instead."""
        daemon = self._daemons[kind, host.name]
        eventually(lambda: daemon.poll() is not None or is_ready(), READY_S)
        assert daemon.poll() is None and is_ready(), self.log(kind, host)[-5000:]

    def start(self, kind: str, host: Host, *folders: Path) -> None:
        """Start a daemon.

        Args:
            kind: a key of `CLASSES`.
            host: the host.
            folders: folders with settings that come before those of the cluster.
        """
        with self._log(kind, host).open("ab") as output:
            process = subprocess.Popen(
                self.java(host, CLASSES[kind], folders=folders),
                env=self.environment(host),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=host.folder,
            )
        self._daemons[kind, host.name] = process

    def kill(self, kind: str, host: Host) -> None:
        """Kill a daemon with SIGKILL."""
        for pid, line in host.processes().items():
            if CLASSES[kind] in line:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._daemons.pop((kind, host.name)).wait(20)

    def java(
        self, host: Host, main: str, *arguments: str, folders: tuple[Path, ...] = ()
    ) -> list[str]:
        """Return a command that runs a class of Hadoop on a host."""
        path = ":".join([*map(str, folders), str(self.conf), f"{self._lib}/*"])
        return host.command("java", *DAEMON_OPTIONS, "-cp", path, main, *arguments)

    def environment(self, host: Host) -> dict[str, str]:
        """Return the variables of daemons and clients on a host: none of this program's own."""
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "JAVA_HOME")}
        return {**kept, "HADOOP_CONF_DIR": str(self.conf), "USER": "root", "HOME": "/root"}

    def log(self, kind: str, host: Host) -> str:
        """Return the output of a daemon."""
        return self._log(kind, host).read_text(errors="replace")

    def _log(self, kind: str, host: Host) -> Path:
        return host.folder / f"{kind}.log"

    def _get(self, url: str) -> str:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())
        return ""

    def end(self) -> None:
        """End all daemons."""
        for host in self.net.hosts:
            for pid in host.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for daemon in self._daemons.values():
            daemon.wait(20)


@contextlib.contextmanager
def hadoop_cluster(folder: Path, num_nodes: int = 1) -> Iterator[Hadoop]:
    """Yield HDFS on the first of several hosts."""
    skip_unless_possible(folder)
    lib = jars()
    with network(folder, num_nodes + 1) as net:
        hadoop = Hadoop(net, lib)
        try:
            hadoop.start_hdfs()
            yield hadoop
        finally:
            hadoop.end()
