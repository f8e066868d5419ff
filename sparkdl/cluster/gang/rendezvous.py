"""Runs in a Spark task. The rank as the others know it: its address, its ports, its deadline."""

import contextlib
import fcntl
import ipaddress
import os
import signal
import socket
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_SIOCGIFADDR = 0x8915  # netdevice(7)


@dataclass(frozen=True)
class Peer:
    """A rank, as the other ranks know it.

    Attributes:
        address: the IP address at which its training process may listen.
        port: the port at which its training process may listen.
        host: the name of its host, for messages.
        node: a name that is the same for all ranks of a host, and for no others.
        ring_port: the port at which it listens for the ring; 0 for a rank outside the ring.
        problem: the reason for which it cannot start; None if it can.
        checkpoint: the number of the newest committed checkpoint that it saw.
    """

    address: str
    port: int
    host: str
    node: str
    ring_port: int = 0
    problem: str | None = None
    checkpoint: int | None = None

    @property
    def endpoint(self) -> str:
        """`address:port`, with brackets around an address that has colons itself."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self.port}"


@contextlib.contextmanager
def deadline(timeout_s: float) -> Iterator[None]:
    """Raise in the block when it takes longer: Spark would let tasks wait for a year.

    Only the main thread of a process can be interrupted, in which Spark's Python workers run their
    tasks. In another thread there is no limit.

    Raises:
        TimeoutError: if the block takes longer than `timeout_s` seconds.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(*_: object) -> None:
        raise TimeoutError(
            f"not all ranks had met after {timeout_s:g} s; look at the executors that are slow or "
            "cannot read the run directory, or raise SPARKDL_START_TIMEOUT_S"
        )

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, timeout_s, 1.0)  # Repeated, in case it is caught.
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def local_places(peers: Sequence[Peer], rank: int) -> tuple[int, int]:
    """Return the local rank and local world size: the place of a rank among those of its host.

    Example:
        >>> a, b = Peer("10.0.0.1", 1, "a", "a"), Peer("10.0.0.2", 1, "b", "b")
        >>> local_places([a, b, a], 2)
        (1, 2)
    """
    same = [i for i, peer in enumerate(peers) if peer.node == peers[rank].node]
    return same.index(rank), len(same)


def hold_port(address: str) -> socket.socket:
    """Return a socket bound to a free port, which no other process is given while it is open.

    The socket never listens. Both options for sharing a port are set: the server that a framework
    starts on the port sets one of them too, so that it can listen while the task holds the port.

    Raises:
        OSError: if the address is not one of this host.
    """
    port_socket = socket.socket(_family(address), socket.SOCK_STREAM)
    try:
        port_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        port_socket.bind((address, 0))
    except OSError:
        port_socket.close()
        raise
    return port_socket


def listen(address: str) -> socket.socket:
    """Return a socket that listens on a free port, also in a process that it is handed to.

    Raises:
        OSError: if the address is not one of this host.
    """
    return socket.create_server((address, 0), family=_family(address), backlog=128)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def own_address(interface: str | None, hosts: Iterable[str]) -> str:
    """Return the IP address at which the other ranks reach this host.

    Args:
        interface: the user's choice: an interface such as `eth1`, or an address of this host.
        hosts: the hosts of the executors as Spark knows them, with or without a port.

    Raises:
        ValueError: if this host has no such interface, or other hosts cannot reach the address.

    Example:
        >>> own_address("127.0.0.1", []), own_address("lo", [])
        ('127.0.0.1', '127.0.0.1')
    """
    if interface:
        return interface if _is_address(interface) else _address_of(interface)
    names = list(dict.fromkeys(_name_of(host) for host in hosts))
    local = _ip_of(os.environ.get("SPARK_LOCAL_IP", ""))
    if local and not ipaddress.ip_address(local).is_unspecified:
        other_hosts = [name for name in names if not _is_here(name)] if _is_loopback(local) else []
        if other_hosts:
            raise ValueError(
                f"SPARK_LOCAL_IP is {os.environ['SPARK_LOCAL_IP']} on host {socket.gethostname()}, "
                "an address that only this host can reach, and the gang has processes on "
                f"{', '.join(other_hosts)}. Unset SPARK_LOCAL_IP there"
            )
        return local
    for name in names:
        # Packets to another host leave by the interface that all ranks use.
        if (address := _address_towards(name)) and not _is_loopback(address):
            return address
    return "127.0.0.1"


def _name_of(host: str) -> str:
    """Return a host without its port.

    Example:
        >>> [_name_of(host) for host in ("a:41", "10.0.0.1", "[fe80::1]:41", "fe80::1")]
        ['a', '10.0.0.1', 'fe80::1', 'fe80::1']
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host if host.count(":") > 1 else host.partition(":")[0]


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _ip_of(host: str) -> str | None:
    """Return the IP address of a host; None if the host is empty or unknown here."""
    if not host or _is_address(host):
        return host or None
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return None


def _is_here(host: str) -> bool:
    """Return True if a name or address is one of this host, or is unknown here."""
    address = _ip_of(host)
    if address is None or _is_loopback(address):
        return True
    with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _address_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError as exc:
            have = ", ".join(name for _, name in socket.if_nameindex())
            raise ValueError(
                f"host {socket.gethostname()} has no network interface {interface!r} with an IPv4 "
                f"address; it has {have}. Set SPARKDL_INTERFACE (or spark.sparkdl.interface) to "
                "one that all executors have."
            ) from exc
    return socket.inet_ntoa(answer[20:24])


def interface_of(address: str) -> str | None:
    """Return the network interface of this host that has an address; None if none has it.

    Example:
        >>> interface_of("127.0.0.1")
        'lo'
    """
    if ":" in address:
        return _interface_of_ipv6(ipaddress.IPv6Address(address.partition("%")[0]))
    for _, name in socket.if_nameindex():
        with contextlib.suppress(ValueError):
            if _address_of(name) == address:
                return name
    return None


def _interface_of_ipv6(address: ipaddress.IPv6Address) -> str | None:
    with contextlib.suppress(OSError):  # A host without IPv6 has no such file, see proc(5).
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            words = line.split()
            if bytes.fromhex(words[0]) == address.packed:
                return words[-1]
    return None


def _address_towards(host: str) -> str | None:
    """Return the address from which this host sends to another one; no packet is sent."""
    try:
        family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return None  # A name that this host cannot resolve, such as that of a pod.
