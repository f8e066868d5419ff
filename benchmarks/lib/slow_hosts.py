"""Hosts on one machine whose network has a set delay, a set rate, or both: network namespaces.

Not every kernel has `netem`: a switch in Python, a process of its own, delays packets. It takes a
core at some gigabits per second. Without a delay, `tc` limits the rate, on a bridge of the kernel.
Needs root and the commands `ip` and `tc`.
"""

import contextlib
import ctypes
import fcntl
import heapq
import multiprocessing
import os
import secrets
import select
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MTU = 65_000


def enter(namespace: str) -> None:
    """Move this process into a network namespace."""
    descriptor = os.open(f"/var/run/netns/{namespace}", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(descriptor)


def address_of(host: int) -> str:
    """Return the IP address of a host, by its number."""
    return f"10.178.0.{host + 1}"


@contextlib.contextmanager
def slow_hosts(count: int, delay_s: float, rate_mbit: float) -> Iterator[list[str]]:
    """Make hosts; yield their namespaces.

    Args:
        count: number of hosts.
        delay_s: seconds from a host to another, one way.
        rate_mbit: megabits per second that each host sends at most; 0 for no limit, with a delay.
    """
    name = f"sl{secrets.token_hex(3)}"
    namespaces = [f"{name}n{host}" for host in range(count)]
    with contextlib.ExitStack() as stack:
        for namespace in namespaces:
            _ip("netns", "add", namespace)
            stack.callback(_ip, "netns", "del", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
        if delay_s:
            _start_switch(namespaces, delay_s, rate_mbit, stack)
        else:
            _make_bridge(name, namespaces, rate_mbit, stack)
        for host, namespace in enumerate(namespaces):
            _ip("-n", namespace, "addr", "add", f"{address_of(host)}/24", "dev", "e0")
            _ip("-n", namespace, "link", "set", "e0", "up")
        yield namespaces


def _make_bridge(
    name: str, namespaces: Sequence[str], rate_mbit: float, stack: contextlib.ExitStack
) -> None:
    _ip("link", "add", name, "type", "bridge")
    stack.callback(_ip, "link", "del", name)
    _ip("link", "set", name, "up")
    for namespace in namespaces:
        link = f"{namespace}v"
        _ip("link", "add", link, "type", "veth", "peer", "name", "e0", "netns", namespace)
        _ip("link", "set", link, "master", name, "up")
        limit = ["tbf", "rate", f"{rate_mbit}mbit", "burst", "256kb", "latency", "100ms"]
        tc = ["tc", "-n", namespace, "qdisc", "add", "dev", "e0", "root", *limit]
        subprocess.run(tc, check=True)


def _start_switch(
    namespaces: Sequence[str], delay_s: float, rate_mbit: float, stack: contextlib.ExitStack
) -> None:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    switch = multiprocessing.Process(target=_switch, args=(namespaces, delay_s, rate_mbit, sender))
    switch.start()
    stack.callback(switch.join)
    stack.callback(switch.kill)
    receiver.recv()
    for namespace in namespaces:
        _ip("-n", namespace, "link", "set", "e0", "mtu", str(MTU))


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _switch(
    namespaces: Sequence[str],
    delay_s: float,
    rate_mbit: float,
    ready: "multiprocessing.connection.Connection",
) -> None:
    """Pass the packets of each host on, some time after they have come."""
    ports = []
    for namespace in namespaces:
        enter(namespace)
        port = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(port, TUNSETIFF, struct.pack("16sH22x", b"e0", IFF_TUN | IFF_NO_PI))
        ports.append(port)
    by_address = {socket.inet_aton(address_of(host)): port for host, port in enumerate(ports)}
    ready.send(True)
    held: list[tuple[float, int, int, bytes]] = []
    number = 0
    byte_s = 8 / (1e6 * rate_mbit) if rate_mbit else 0.0
    free_s = dict.fromkeys(ports, 0.0)  # When a host has sent all that it had to send.
    while True:
        wait_s = max(0.0, held[0][0] - time.monotonic()) if held else None
        for port in select.select(ports, [], [], wait_s)[0]:
            with contextlib.suppress(BlockingIOError):
                while True:
                    packet = os.read(port, MTU + 100)
                    target = by_address.get(packet[16:20]) if packet[0] >> 4 == 4 else None
                    if target is not None:
                        number += 1
                        free_s[port] = max(time.monotonic(), free_s[port]) + len(packet) * byte_s
                        heapq.heappush(held, (free_s[port] + delay_s, number, target, packet))
        while held and held[0][0] <= time.monotonic():
            _, _, target, packet = heapq.heappop(held)
            with contextlib.suppress(BlockingIOError):  # A full host drops it, as hosts do.
                os.write(target, packet)
