"""Several hosts on one machine: Linux namespaces on a bridge, with a Spark cluster in them.

A host has a network, a process table, a name, `/tmp` and `/dev/shm` of its own. The names of hosts
are unknown to each other; no host reaches the machine's loopback or the outside. All hosts share
the disk, and the machine itself has an address on the bridge, for servers of the tests.
"""

import contextlib
import itertools
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.helpers.processes import eventually

__all__ = ["Host", "Network", "network"]

SETUP = """
set -e
hostname "$1"
mount --bind "$2/hosts" /etc/hosts
mount --bind "$2/resolv.conf" /etc/resolv.conf
mount -t tmpfs tmpfs /dev/shm
if [ -n "$3" ]; then mount -t tmpfs -o "size=$3,mode=1777" tmpfs /tmp; fi
trap '' CHLD  # The kernel then removes processes that lose their parent, and end.
touch "$2/ready"
exec sleep infinity
"""


@dataclass
class Host:
    """One host.

    Attributes:
        name: its name, which no other host can resolve.
        address: its IP address.
        folder: a folder on the shared disk for the files of this host.
        namespace: the name of its network namespace.
        first: the process id of its first process, as the machine counts.
    """

    name: str
    address: str
    folder: Path
    namespace: str
    first: int = 0
    _outer: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    def create(self, bridge: str, tmp_size: str, own_pids: bool) -> None:
        """Make the namespaces, and start the first process in them."""
        link = f"{self.namespace}v"
        _ip("netns", "add", self.namespace)
        _ip("link", "add", link, "type", "veth", "peer", "name", "e0", "netns", self.namespace)
        _ip("link", "set", link, "master", bridge, "up")
        for arguments in (
            ("addr", "add", f"{self.address}/24", "dev", "e0"),
            ("link", "set", "e0", "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", self.namespace, *arguments)
        self.folder.mkdir()
        own = f"127.0.0.1 localhost\n{self.address} {self.name}\n"
        (self.folder / "hosts").write_text(own)
        (self.folder / "resolv.conf").write_text("options timeout:1 attempts:1\n")
        unshare = ["unshare", "--mount", "--uts"]
        unshare += ["--pid", "--fork", "--kill-child", "--mount-proc"] if own_pids else []
        command = ["ip", "netns", "exec", self.namespace, *unshare, "bash", "-c", SETUP, "host"]
        command += [self.name, str(self.folder), tmp_size]
        log = self.folder / "setup.log"
        with log.open("wb") as output:
            self._outer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=output)
        assert eventually((self.folder / "ready").exists), log.read_text()
        self.first = _children(self._outer.pid)[0] if own_pids else self._outer.pid

    def command(self, *command: str, user: int = 0) -> list[str]:
        """Return a command that runs another one on this host.

        Args:
            command: the program and its arguments.
            user: the user id of the program, which is its group id too.
        """
        enter = ["nsenter", f"--target={self.first}", "--mount", "--uts", "--net", "--pid"]
        enter += [f"--wd={os.getcwd()}", "--"]
        if user:
            enter += ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]
        return [*enter, *command]

    def processes(self) -> dict[int, str]:
        """Return the command lines of the processes of this host, without the first one."""
        found = {}
        mine = os.stat(f"/var/run/netns/{self.namespace}").st_ino
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in (self.first, self._outer_pid):
                continue
            with contextlib.suppress(OSError):
                if os.stat(entry / "ns/net").st_ino == mine:
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    if words:  # Not a zombie.
                        found[int(entry.name)] = words.decode(errors="replace")
        return found

    @property
    def _outer_pid(self) -> int:
        return self._outer.pid if self._outer else 0

    def remove(self) -> None:
        """End all processes of this host, and remove its namespaces."""
        try:
            if self.first:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.first, signal.SIGKILL)  # Its whole process table ends with it.
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self._outer:
                self._outer.wait(20)
            assert eventually(lambda: not self.processes()), self.processes()
        finally:
            _ip("link", "del", f"{self.namespace}v", check=False)
            _ip("netns", "del", self.namespace, check=False)


class Network:
    """Hosts on a bridge.

    Args:
        folder: a folder on the shared disk.
        num_hosts: the number of hosts.
        tmp_size: the size of `/tmp` of each host; empty for hosts that share the machine's.
        own_pids: give each host a process table of its own.

    Attributes:
        hosts: the hosts.
        folder: the folder on the shared disk, at the same path on each host.
        address: the address of the machine itself on the bridge.
    """

    def __init__(
        self, folder: Path, num_hosts: int, tmp_size: str = "2g", own_pids: bool = True
    ) -> None:
        self.folder = folder
        self._id = f"h{secrets.token_hex(3)}"
        self._bridge = f"{self._id}br"
        self._tmp_size, self._own_pids = tmp_size, own_pids
        self._range = f"10.{100 + secrets.randbelow(100)}.{secrets.randbelow(250)}"
        self.address = f"{self._range}.254"
        self.hosts = [
            Host(f"node{n}", f"{self._range}.{n}", folder / f"node{n}", f"{self._id}n{n}")
            for n in range(1, num_hosts + 1)
        ]
        self._numbers = itertools.count(num_hosts + 1)

    def create(self) -> None:
        """Make the bridge and all hosts."""
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self.address}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for host in self.hosts:
            host.create(self._bridge, self._tmp_size, self._own_pids)

    def add(self, name: str) -> Host:
        """Make one more host, with an address of its own."""
        number = next(self._numbers)
        host = Host(name, f"{self._range}.{number}", self.folder / name, f"{self._id}n{number}")
        self.hosts.append(host)
        host.create(self._bridge, self._tmp_size, self._own_pids)
        return host

    def discard(self, host: Host) -> None:
        """End all processes of a host, and remove it."""
        host.remove()
        self.hosts.remove(host)

    def remove(self) -> None:
        """End all processes, and remove hosts and bridge."""
        with contextlib.ExitStack() as stack:
            stack.callback(_ip, "link", "del", self._bridge, check=False)
            for host in self.hosts:
                stack.callback(host.remove)

    def cut(self, host: Host) -> None:
        """Drop all packets to and from a host; neither side is told."""
        _ip("link", "set", f"{host.namespace}v", "nomaster")

    def mend(self, host: Host) -> None:
        """Connect a host that was cut off."""
        _ip("link", "set", f"{host.namespace}v", "master", self._bridge)

    @contextlib.contextmanager
    def cut_off(self, host: Host) -> Iterator[None]:
        """Cut a host off for the block."""
        self.cut(host)
        try:
            yield
        finally:
            self.mend(host)


@contextlib.contextmanager
def network(
    folder: Path, num_hosts: int, tmp_size: str = "2g", own_pids: bool = True
) -> Iterator[Network]:
    """Yield hosts; the test is skipped where they cannot be made. See `Network`."""
    skip_unless_possible(folder)
    hosts = Network(folder, num_hosts, tmp_size, own_pids)
    try:
        try:
            hosts.create()
        except subprocess.CalledProcessError as exc:
            pytest.skip(f"hosts cannot be made of namespaces here: {exc.stderr.strip()}")
        yield hosts
    finally:
        hosts.remove()


def skip_unless_possible(folder: Path) -> None:
    """Skip the test where no hosts can be made, with the reason."""
    missing = [name for name in ("ip", "nsenter", "unshare") if not shutil.which(name)]
    if os.getuid() or missing:
        pytest.skip(
            "hosts are made of Linux namespaces, which needs root, and the commands ip, nsenter "
            "and unshare of iproute2 and util-linux"
        )
    for path in (folder, Path(sys.prefix)):
        if path.resolve().is_relative_to("/tmp"):
            pytest.skip(f"{path} is below /tmp, which hosts do not share; set TMPDIR elsewhere")


def _children(pid: int) -> list[int]:
    eventually(lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text())
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _ip(*arguments: str, check: bool = True) -> None:
    subprocess.run(["ip", *arguments], check=check, capture_output=True, text=True)
