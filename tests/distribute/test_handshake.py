"""Joining a ring beside strangers, late processes, lost ranks and other rings."""

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sparkdl.distribute import handshake, world
from sparkdl.distribute.handshake import join
from sparkdl.distribute.invitation import Endpoint, Invitation
from sparkdl.errors import PeerLostError
from tests.helpers.gang import invitations
from tests.helpers.rings import on_all


@pytest.fixture
def opened() -> Iterator[list[Any]]:
    """Sockets and rings that are closed after the test."""
    made: list[Any] = []
    yield made
    for resource in reversed(made):
        resource.close()


def invited(opened: list[Any], nodes: str, **options: Any) -> list[tuple[Invitation, Any]]:
    channels = invitations(len(nodes), nodes, **options)
    opened += channels
    received = [Invitation.receive(channel) for channel in channels]
    opened += [listener for _, listener in received]
    return received


def join_all(received: list[Any], opened: list[Any]) -> list[Any]:
    rings = on_all(received, lambda invited, rank: join(*invited))
    opened += [ring for ring in rings if not isinstance(ring, Exception)]
    return rings


def test_strangers_that_hold_all_places_keep_no_rank_out(
    opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_TIMEOUT_S", 1e6)
    received = invited(opened, "ab", join_s=1e6)
    address = received[0][1].getsockname()
    for _ in range(handshake.MAX_CANDIDATES + 8):
        opened.append(socket.create_connection(address))
    rings = join_all(received, opened)
    results = on_all(rings, lambda ring, rank: float(ring.allreduce(np.float64(rank), "sum")))
    assert results == [1.0, 1.0]


def test_a_stranger_that_sends_drop_by_drop_is_refused_in_time(
    opened: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_TIMEOUT_S", 0.5)
    received = invited(opened, "ab", join_s=1e6)
    stranger = socket.create_connection(received[0][1].getsockname())
    opened.append(stranger)
    lost = threading.Event()
    waiting = threading.Thread(
        target=lambda: on_all(received[:1], lambda invited, _: join(*invited, lost.is_set))
    )
    waiting.start()
    begun = time.monotonic()
    try:
        with pytest.raises(OSError):
            while time.monotonic() - begun < 100:  # Before `on_all` gives up.
                stranger.send(b"s")
                time.sleep(0.1)
    finally:
        lost.set()
        waiting.join()
    assert "did not answer in time" in caplog.text


@pytest.mark.parametrize("nodes", ["aa", "ab"], ids=["unix", "tcp"])
def test_a_rank_that_waits_for_a_late_process_hears_of_a_loss(
    opened: list[Any], nodes: str
) -> None:
    """The kernel accepts connections to the socket of a process that has not come yet."""
    received = invited(opened, nodes)
    lost = threading.Event()
    threading.Timer(0.3, lost.set).start()
    with pytest.raises(PeerLostError, match="was lost"):
        join(*received[0], lost.is_set)


def test_two_rings_with_one_secret_meet_on_one_host(opened: list[Any]) -> None:
    first, second = invited(opened, "aa"), invited(opened, "aa")
    secret = first[0][0].secret
    second = [
        (Invitation(invitation.rank, invitation.endpoints, secret, join_s=100.0), listener)
        for invitation, listener in second
    ]
    rings = join_all([*first, *second], opened)
    sums = on_all(rings, lambda ring, number: float(ring.allreduce(np.float64(number), "sum")))
    assert sums == [1.0, 1.0, 5.0, 5.0]


def test_connections_to_other_hosts_are_kept_alive(opened: list[Any]) -> None:
    for ring in join_all(invited(opened, "ab"), opened):
        for link in (ring._links._predecessor, ring._links._successor):
            options = [link.socket.getsockopt(socket.IPPROTO_TCP, o) for o in handshake.KEEPALIVE]
            assert options == [10, 5, 3]
            assert link.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def test_a_process_that_could_not_join_is_told_so_again(
    opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    channels = invitations(2, "aa", join_s=0.3)
    opened += channels
    monkeypatch.setenv("SPARKDL_CONTEXT", f'{{"world_size": 2, "ring": {channels[0].fileno()}}}')
    world._ring_of.cache_clear()
    try:
        for _ in range(2):
            with pytest.raises(PeerLostError, match="rank 1"):
                world.ring()
        assert not world.is_joined()
    finally:
        world._ring_of.cache_clear()


def test_names_of_sockets_differ_between_rings() -> None:
    names = {
        handshake._unix_name(Invitation(0, [Endpoint("127.0.0.1", port, "a")], b"secret"), 0)
        for port in (1, 2)
    }
    assert len(names) == 2
    assert not any("secret" in name for name in names)
