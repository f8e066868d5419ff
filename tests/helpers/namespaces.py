"""Two hosts on one machine: network namespaces on a bridge, whose link a test can cut."""

import ctypes
import os
import secrets
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CLONE_NEWNET = 0x40000000


class Hosts:
    """Two network namespaces.

    Attributes:
        addresses: the IP address in each.
    """

    def __init__(self) -> None:
        self._id = f"sdl{secrets.token_hex(3)}"  # Linux removes namespaces some time later.
        self.names = [f"{self._id}a", f"{self._id}b"]
        self.addresses = ["10.177.0.1", "10.177.0.2"]

    def create(self) -> None:
        bridge = f"{self._id}br"
        _ip("link", "add", bridge, "type", "bridge")
        _ip("link", "set", bridge, "up")
        for name, address in zip(self.names, self.addresses, strict=True):
            _ip("netns", "add", name)
            _ip("link", "add", f"{name}v", "type", "veth", "peer", "name", "e0", "netns", name)
            _ip("link", "set", f"{name}v", "master", bridge)
            _ip("link", "set", f"{name}v", "up")
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "e0")
            _ip("-n", name, "link", "set", "e0", "up")
            _ip("-n", name, "link", "set", "lo", "up")

    def remove(self) -> None:
        for name in self.names:
            _ip("link", "del", f"{name}v", check=False)
            _ip("netns", "del", name, check=False)
        _ip("link", "del", f"{self._id}br", check=False)

    def cut(self) -> None:
        """Drop all packets between the hosts, without a word to either."""
        _ip("link", "set", f"{self.names[1]}v", "nomaster")

    def on(self, host: int, call: Callable[[], Any]) -> Any:
        """Call a function in a thread that is on a host: its sockets are those of the host."""
        results: list[Any] = []

        def run() -> None:
            self.enter(host)
            results.append(call())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(120)
        return results[0]

    def enter(self, host: int) -> None:
        """Move the calling thread to a host."""
        descriptor = os.open(f"/var/run/netns/{self.names[host]}", os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(descriptor)


@contextmanager
def two_hosts() -> Iterator[Hosts]:
    """Two hosts; the test is skipped where they cannot be made."""
    if os.getuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root and the ip command of iproute2")
    hosts = Hosts()
    try:
        try:
            hosts.create()
        except subprocess.CalledProcessError as exc:
            pytest.skip(f"network namespaces cannot be made here: {exc.stderr.strip()}")
        yield hosts
    finally:
        hosts.remove()


def _ip(*arguments: str, check: bool = True) -> None:
    subprocess.run(["ip", *arguments], check=check, capture_output=True, text=True)
