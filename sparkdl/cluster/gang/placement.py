"""Runs in a Spark task. The place that a rank has in its gang, and its process in the ring."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sparkdl.cluster.gang.rendezvous import Peer
from sparkdl.cluster.plan import Member
from sparkdl.runs.layout import TrialPaths

__all__ = ["InRing", "Placed"]


@dataclass(frozen=True)
class Placed:
    """What is known of a rank once all have met.

    Attributes:
        listener, held: where it listens for the ring, and its port, which nobody listens on yet.
        inbox: where it is fed from, if its process is one that is fed.
    """

    member: Member
    attempt: int
    peers: Sequence[Peer]
    trial: TrialPaths
    folder: Path
    listener: socket.socket | None
    held: socket.socket | None = None
    inbox: socket.socket | None = None

    @property
    def rank(self) -> int:
        return self.member.rank


class InRing:
    """The place of a training process in the ring; a context manager while that process runs.

    Args:
        ends: the process's end of a channel, by its name in `Context`.
        who: more fields of its `Context`.
    """

    def __init__(
        self,
        ends: Mapping[str, socket.socket] = MappingProxyType({}),
        who: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.ends, self.who = ends, who

    def watch(self) -> str | None:
        """Why to end the process; None to let it go on."""
        return None

    def __enter__(self) -> "InRing":
        return self

    def __exit__(self, *_: object) -> None:
        pass
