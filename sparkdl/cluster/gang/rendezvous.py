"""Runs in a Spark task. The tasks of a gang meet: each holds a port, all learn of all."""

import contextlib
import fcntl
import ipaddress
import json
import os
import signal
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

from pyspark import BarrierTaskContext

__all__ = [
    "Peer",
    "deadline",
    "hold_port",
    "listen",
    "local_places",
    "meet",
    "own_address",
]

_SIOCGIFADDR = 0x8915  # netdevice(7)


@dataclass(frozen=True)
class Peer:
    """What the others know of one rank.

    Attributes:
        address, port: where its training process may listen.
        host: the name of its host, for the person.
        node: the same for ranks that share a host, and for no others.
        ring_port: where it listens for the ring; 0 for one that is not in it.
        secret: what it would have the ranks of the ring know each other by; that of rank 0 counts.
        problem: what keeps it from starting, None if nothing.
        checkpoint: the newest committed checkpoint's number that it saw.
    """

    address: str
    port: int
    host: str
    node: str
    ring_port: int = 0
    secret: str = field(default="", repr=False)
    problem: str | None = None
    checkpoint: int | None = None

    @property
    def endpoint(self) -> str:
        """`address:port`, the address in brackets where it has colons itself."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self.port}"


@contextlib.contextmanager
def deadline(timeout_s: float) -> Iterator[None]:
    """Raise where this thread is when it takes longer: Spark would let tasks wait for a year.

    Only for the main thread of a process, which the tasks of Spark's Python workers run in.

    Raises:
        TimeoutError: it took longer.
    """

    def late(*_: object) -> None:
        raise TimeoutError(
            f"not all ranks had met after {timeout_s:g} s; look at the executors that are slow or "
            "cannot read the run directory, or raise SPARKDL_START_TIMEOUT_S"
        )

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, timeout_s, 1.0)  # Again, should somebody swallow it.
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def meet(context: BarrierTaskContext, mine: Peer) -> list[Peer]:
    """Tell all tasks of this barrier stage about `mine`; return what all told, by rank.

    One `allGather`: each costs a second, however few the tasks.
    """
    told = context.allGather(json.dumps(asdict(mine)))
    return [Peer(**json.loads(text)) for text in told]


def local_places(peers: Sequence[Peer], rank: int) -> tuple[int, int]:
    """The local rank and local world size of a rank: its place among those of its host.

    Example:
        >>> here, there = Peer("10.0.0.1", 1, "a", "a"), Peer("10.0.0.2", 1, "b", "b")
        >>> local_places([here, there, here], 2)
        (1, 2)
    """
    same = [i for i, peer in enumerate(peers) if peer.node == peers[rank].node]
    return same.index(rank), len(same)


def hold_port(address: str) -> socket.socket:
    """A free port of this host that nobody else is given while the socket is open.

    It is bound and never listens. Both ways of sharing are set: the server that a framework
    starts on it sets one of them too, so that it can listen while we hold the port.

    Raises:
        OSError: the address is not this host's.
    """
    held = socket.socket(_family(address), socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((address, 0))
    except OSError:
        held.close()
        raise
    return held


def listen(address: str) -> socket.socket:
    """A socket that listens on a free port, and goes on doing so in whoever it is handed to.

    Raises:
        OSError: the address is not this host's.
    """
    return socket.create_server((address, 0), family=_family(address), backlog=128)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def own_address(interface: str | None, hosts: Iterable[str]) -> str:
    """The IP address at which the other ranks reach this host: an address, never a name.

    Args:
        interface: the person's choice: an interface such as `eth1`, or an address of this host.
        hosts: the executors' hosts as Spark knows them, with or without a port.

    Raises:
        ValueError: there is no such interface here.

    Example:
        >>> own_address("127.0.0.1", []), own_address("lo", [])
        ('127.0.0.1', '127.0.0.1')
    """
    if interface:
        return interface if _is_address(interface) else _address_of(interface)
    if local := os.environ.get("SPARK_LOCAL_IP"):
        return local
    names = dict.fromkeys(host.rsplit(":", 1)[0].strip("[]") for host in hosts)
    for name in names:
        # The way to a host that is not this one leaves by the interface that all use.
        if (address := _address_towards(name)) and not address.startswith("127."):
            return address
    return "127.0.0.1"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _address_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        asked = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, asked)
        except OSError as exc:
            have = ", ".join(name for _, name in socket.if_nameindex())
            raise ValueError(
                f"host {socket.gethostname()} has no network interface {interface!r} with an IPv4 "
                f"address; it has {have}. Set SPARKDL_INTERFACE (or spark.sparkdl.interface) to "
                "one that all executors have."
            ) from exc
    return socket.inet_ntoa(answer[20:24])


def _address_towards(host: str) -> str | None:
    """The address with which this host talks to another; no packet is sent."""
    try:
        family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return None  # A name that nobody here can resolve, such as a pod's.
