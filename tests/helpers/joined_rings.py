"""Rings in one process whose ranks have joined by their invitations, on hosts with given names."""

from typing import Any

from sparkdl.distribute.handshake import join
from sparkdl.distribute.invitation import Invitation
from sparkdl.distribute.ring import Ring
from tests.helpers.gang import invitations
from tests.helpers.rings import on_all


class Gangs:
    """Rings that are closed after a test."""

    def __init__(self) -> None:
        self._opened: list[Any] = []

    def ring(self, nodes: str, **options: Any) -> list[Ring]:
        channels = invitations(len(nodes), nodes, **options)
        received = [Invitation.receive(channel) for channel in channels]
        rings = on_all(received, lambda one, rank: join(*one))
        self._opened += [*channels, *(listener for _, listener in received), *rings]
        return rings

    def close(self) -> None:
        for one in self._opened:
            one.close()
