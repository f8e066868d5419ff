"""Runs in a Spark task. The place of a rank in its gang, and of its process in the ring."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sparkdl.cluster.gang.rendezvous import Peer
from sparkdl.cluster.plan import Member
from sparkdl.files.layout import TrialPaths, work_of
from sparkdl.files.rank_files import RankFiles


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A rank whose gang has met.

    Attributes:
        member: the rank and its role.
        attempt: the number of the attempt.
        peers: the ranks of the gang that have met at first, by rank, and this one.
        paths: the files of the trial.
        port_socket: a socket bound to the rank's port, on which no process listens yet.
        listener: a socket that listens for the ring; None for a rank outside the ring.
        incarnation: the number of the first process of its task among those of its rank, if the
            task was started while the gang trained, see `StandbyPolicy`; -1 for any other.
    """

    member: Member
    attempt: int
    peers: Sequence[Peer]
    paths: TrialPaths
    port_socket: socket.socket | None = None
    listener: socket.socket | None = None
    incarnation: int = -1

    def is_member(self) -> bool:
        """Return False for a further process that waits to be let in.

        Raises:
            OSError: if the store cannot be reached.
        """
        return self.incarnation < 0 or self.files.has_numbered("began", self.rank, self.incarnation)

    @property
    def work(self) -> str:
        """The name of the working directory of its process, which no other process uses."""
        name = work_of(self.member.role.name, self.member.index)
        return name if self.incarnation < 0 else f"{name}-{self.incarnation}"

    @property
    def rank(self) -> int:
        return self.member.rank

    @property
    def place(self) -> int:
        """The place of this rank among `peers`: a rank that was not among the first comes last."""
        return min(self.rank, len(self.peers) - 1)

    @property
    def peer(self) -> Peer:
        """This rank, as the others know it."""
        return self.peers[self.place]

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
