"""Runs in a Spark task and in the training process. Invite a training process to join a ring.

A task sends its training process an invitation over a private socket, together with the listening
socket that the task has held since the ranks met. The secret of the run stays in memory: no file,
environment variable or log contains it. The training processes of an elastic gang request one
invitation after another.
"""

import json
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

PACKET_BYTES = 1 << 20


@dataclass(frozen=True)
class Endpoint:
    """The place where a rank listens.

    Attributes:
        address: IP address of the TCP socket.
        port: port of the TCP socket.
        node: name of the network namespace, equal only for ranks that share it.
    """

    address: str
    port: int
    node: str


def channel() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a new channel: the task's end, and the training process's end."""
    task_end, process_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    task_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PACKET_BYTES)
    # The training process may not read yet, so a packet must fit into the buffer.
    task_end.setblocking(False)
    return task_end, process_end


@dataclass(frozen=True)
class Invitation:
    """The information that a process needs to join a ring.

    The field names are also the keys of the JSON packet.

    Attributes:
        rank: rank in the ring of the invited process.
        endpoints: endpoints of all ranks of the ring, by rank.
        secret: bytes known only to the ranks of this gang.
        generation: number of the ring; connections of other generations are refused.
        join_s: seconds to wait until the other ranks have joined.
        timeout_s: seconds to wait for data that a neighbour is expected to send.
        members: ranks in the gang of the ranks of the ring, by rank; empty if they are equal.
        is_calm: all ranks that were in the previous ring left it between two steps.
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
        """Send the invitation with the listening socket of the rank, which is closed here.

        Args:
            task_end: the task's end of a channel.
            listener: the listening socket of the rank.
        """
        packet = json.dumps({**asdict(self), "secret": self.secret.hex()}).encode()
        with listener:
            socket.send_fds(task_end, [packet], [listener.fileno()])

    @classmethod
    def receive(cls, end: socket.socket) -> "tuple[Invitation, socket.socket]":
        """Return the next invitation of a channel, and the listening socket of the rank.

        Args:
            end: the training process's end of a channel.

        Raises:
            EOFError: if the channel has no further invitation.
        """
        packet, descriptors, _, _ = socket.recv_fds(end, PACKET_BYTES, 1)
        if not descriptors:
            raise EOFError("the task of this rank has no invitation")
        return cls.parse(packet, descriptors[0])

    @classmethod
    def parse(cls, packet: bytes, descriptor: int) -> "tuple[Invitation, socket.socket]":
        """Return the invitation of a packet, and the listening socket of the rank.

        Args:
            packet: JSON, as `send` writes it.
            descriptor: the file descriptor of the listening socket.
        """
        fields = json.loads(packet)
        endpoints = tuple(Endpoint(**endpoint) for endpoint in fields.pop("endpoints"))
        secret = bytes.fromhex(fields.pop("secret"))
        invitation = cls(endpoints=endpoints, secret=secret, **fields)
        return invitation, socket.socket(fileno=descriptor)
