"""Runs in a Spark task. The place of a rank in its gang, and of its process in the ring."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sparkdl.cluster.gang.rendezvous import Peer
from sparkdl.cluster.plan import Member
from sparkdl.files.layout import TrialPaths
from sparkdl.files.rank_files import RankFiles


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A rank whose gang has met.

    Attributes:
        member: the rank and its role.
        attempt: the number of the attempt.
        peers: all ranks of the gang, by rank.
        paths: the files of the trial.
        port_socket: a socket bound to the rank's port, on which no process listens yet.
        listener: a socket that listens for the ring; None for a rank outside the ring.
    """

    member: Member
    attempt: int
    peers: Sequence[Peer]
    paths: TrialPaths
    port_socket: socket.socket | None = None
    listener: socket.socket | None = None

    @property
    def rank(self) -> int:
        return self.member.rank

    @property
    def files(self) -> RankFiles:
        """The files by which the ranks of this attempt talk."""
        return RankFiles(self.paths.ranks(self.attempt))


class RingSeat:
    """The seat of a training process in the ring; a context manager while the process runs.

    Args:
        sockets: sockets for the process, by the names of fields of its `Context`.
        me: more fields of its `Context`.
    """

    def __init__(
        self,
        sockets: Mapping[str, socket.socket] = MappingProxyType({}),
        me: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.sockets = sockets
        self.me = me

    def watch(self) -> str | None:
        """Return the reason to end the process; None to let it go on."""
        return None

    def __enter__(self) -> "RingSeat":
        return self

    def __exit__(self, *_: object) -> None:
        pass
