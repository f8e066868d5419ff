"""Runs in a Spark task and in the training process.

What a training process is told to join the ring of its gang.

Its task sends a packet over a private socket, with the listening socket that the task has held
since the ranks met. The secret of the run is in memory only: no file, variable or log has it.
The processes of an elastic gang ask for one packet after the other.
"""

import json
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

__all__ = ["Endpoint", "Invitation", "channel"]

PACKET_BYTES = 1 << 20


@dataclass(frozen=True)
class Endpoint:
    """Where a rank listens.

    Attributes:
        address, port: of its TCP socket.
        node: the same for ranks that share a network namespace, and for no others.
    """

    address: str
    port: int
    node: str


def channel() -> tuple[socket.socket, socket.socket]:
    """The ends of a task, and of its training process."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PACKET_BYTES)
    mine.setblocking(False)  # A packet must fit into the buffer: perhaps nobody reads yet.
    return mine, theirs


@dataclass(frozen=True)
class Invitation:
    """How to join.

    Attributes:
        rank: in the ring, of the process that is invited.
        endpoints: of all ranks, by rank.
        secret: what only the ranks of this gang know.
        generation: of the ring; who belongs to another one is a stranger.
        join_s: how long the others may take to come.
        timeout_s: how long a neighbour may be silent when something of it is due.
        members: the ranks in the gang of those in the ring; empty if they are the same.
        is_calm: all who come from the ring before left it between two steps.
    """

    rank: int
    endpoints: Sequence[Endpoint]
    secret: bytes = field(repr=False)
    generation: int = 0
    join_s: float = 300.0
    timeout_s: float = 600.0
    members: Sequence[int] = ()
    is_calm: bool = True

    def send(self, task_end: socket.socket, listener: socket.socket) -> None:
        """Put it into a channel, with the listening socket of the rank, which is closed here."""
        told = json.dumps({**asdict(self), "secret": self.secret.hex()}).encode()
        with listener:
            socket.send_fds(task_end, [told], [listener.fileno()])

    @classmethod
    def receive(cls, end: socket.socket) -> "tuple[Invitation, socket.socket]":
        """The next that was sent, and the rank's listening socket.

        Raises:
            EOFError: none will come any more.
        """
        packet, listeners, _, _ = socket.recv_fds(end, PACKET_BYTES, 1)
        if not listeners:
            raise EOFError("the task of this rank has no invitation")
        return cls.parse(packet, listeners[0])

    @classmethod
    def parse(cls, packet: bytes, listener: int) -> "tuple[Invitation, socket.socket]":
        """What came: a packet, and the descriptor of the rank's listening socket."""
        told = json.loads(packet)
        endpoints = tuple(Endpoint(**one) for one in told.pop("endpoints"))
        secret = bytes.fromhex(told.pop("secret"))
        return cls(endpoints=endpoints, secret=secret, **told), socket.socket(fileno=listener)
