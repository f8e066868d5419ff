"""Where it runs: T and P. What a training process is told to join the ring of its gang.

Its task sends one packet over a private socket, with the listening socket that the task has held
since the ranks met. The secret of the run is in memory only: no file, variable or log has it.
"""

import contextlib
import json
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

__all__ = ["Endpoint", "Invitation"]

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


@dataclass(frozen=True)
class Invitation:
    """How to join.

    Attributes:
        rank: of the process that is invited.
        endpoints: of all ranks, by rank.
        secret: what only the ranks of this gang know.
        generation: of the ring; who belongs to another one is a stranger.
        join_s: how long the others may take to come.
        timeout_s: how long a neighbour may be silent when something of it is due.
    """

    rank: int
    endpoints: Sequence[Endpoint]
    secret: bytes = field(repr=False)
    generation: int = 0
    join_s: float = 300.0
    timeout_s: float = 600.0

    def send(self, listener: socket.socket) -> socket.socket:
        """A socket from which it can be received, once, with the listening socket of the rank.

        The listener is closed here: it lives on inside the other.
        """
        told = json.dumps({**asdict(self), "secret": self.secret.hex()}).encode()
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PACKET_BYTES)
        with mine, listener:
            mine.setblocking(False)  # It must fit into the buffer: nobody reads yet.
            if socket.send_fds(mine, [told], [listener.fileno()]) < len(told):
                raise OSError(f"{len(told)} bytes for {len(self.endpoints)} ranks are too many")
        return theirs

    @classmethod
    def receive(cls, descriptor: int) -> "tuple[Invitation, socket.socket]":
        """What was sent, and the rank's listening socket.

        The descriptor stays open: in a process that is forked later its number is no other file's.

        Raises:
            RuntimeError: it was received before, or not by this process.
        """
        text, listeners = b"", list[int]()
        with contextlib.suppress(OSError):
            channel = socket.socket(fileno=descriptor)
            try:
                more, listeners, _, _ = socket.recv_fds(channel, PACKET_BYTES, 1)
                while more:
                    text += more
                    more = channel.recv(PACKET_BYTES)
            finally:
                channel.detach()
        if not listeners:
            raise RuntimeError(
                "a process that the training function has started cannot call collectives: only "
                "the training process itself is in the ring."
            )
        told = json.loads(text)
        endpoints = tuple(Endpoint(**one) for one in told.pop("endpoints"))
        secret = bytes.fromhex(told.pop("secret"))
        invitation = cls(endpoints=endpoints, secret=secret, **told)
        return invitation, socket.socket(fileno=listeners[0])
