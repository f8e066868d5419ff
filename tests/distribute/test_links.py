"""The connections of a rank to its neighbours: what a rank does while it waits."""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sparkdl.distribute.heartbeat import Heartbeat
from sparkdl.distribute.links import Link, Links
from sparkdl.errors import PeerLostError


class Neighbours:
    """The other ends of the connections of one rank, by which a test plays both neighbours."""

    def __init__(self) -> None:
        pairs = [socket.socketpair() for _ in range(4)]
        self.before, self.after, self.beats_before, self.beats_after = (
            theirs for _, theirs in pairs
        )
        mine = [own for own, _ in pairs]
        self.links = [Link(1, mine[0], mine[2]), Link(2, mine[1], mine[3])]
        self.opened: list[Any] = [end for pair in pairs for end in pair]

    def links_of(self, timeout_s: float, **more: Any) -> Links:
        links = Links(*self.links, timeout_s, **more)
        self.opened.append(links)
        return links

    def beat(self, timeout_s: float) -> Heartbeat:
        """Beat as both neighbours do."""
        ends = [Link(1, self.before, self.beats_before), Link(2, self.after, self.beats_after)]
        heartbeat = Heartbeat(ends, timeout_s)
        self.opened.append(heartbeat)
        return heartbeat


@pytest.fixture
def neighbours() -> Iterator[Neighbours]:
    made = Neighbours()
    yield made
    for resource in reversed(made.opened):
        resource.close()


def exchange(links: Links, num_blocks: int = 1) -> list[bytearray]:
    """Send and receive blocks of one byte each, all ready."""
    received = [bytearray(1) for _ in range(num_blocks)]
    links.exchange([b"x"] * num_blocks, received, num_blocks, lambda number, block: None)
    return received


def test_a_rank_that_waits_sleeps_after_its_other_neighbour_has_left(
    neighbours: Neighbours,
) -> None:
    """The successor has got all and leaves, the predecessor is slow."""
    links = neighbours.links_of(0.5)
    used: list[float] = []

    def wait() -> None:
        begun = time.thread_time()
        with pytest.raises(PeerLostError, match=r"timed out after 0\.5 s waiting for rank 1"):
            exchange(links)
        used.append(time.thread_time() - begun)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert neighbours.after.recv(1) == b"x"
    neighbours.after.close()
    waiting.join(120)
    assert not waiting.is_alive(), "its time-out never fires"
    assert used[0] < 0.2


def test_a_successor_that_leaves_before_its_time_is_noticed_at_once(
    neighbours: Neighbours,
) -> None:
    links = neighbours.links_of(1e6)
    neighbours.after.close()
    with pytest.raises(PeerLostError, match="lost connection to rank 2"):
        # The second block may be sent only when the first one has come.
        links.exchange([b"x"], [bytearray(1)], 0, lambda number, block: None)


def test_a_neighbour_that_is_slow_but_alive_is_waited_for(
    neighbours: Neighbours, caplog: pytest.LogCaptureFixture
) -> None:
    neighbours.beat(1.0)
    links = neighbours.links_of(1.0)
    slow = threading.Timer(2.5, lambda: neighbours.before.send(b"y"))
    slow.start()
    with caplog.at_level(logging.WARNING, "sparkdl.distribute"):
        assert exchange(links) == [bytearray(b"y")]
    slow.join()
    warnings = [m for m in caplog.messages if "still waiting after 1 s for rank 1" in m]
    assert 1 <= len(warnings) <= 3


def test_a_neighbour_that_hangs_after_the_timeout_is_given_up(neighbours: Neighbours) -> None:
    heartbeat = neighbours.beat(1.0)
    links = neighbours.links_of(1.0)
    begun = time.monotonic()
    stop = threading.Timer(1.5, heartbeat._is_over.set)
    stop.start()
    with pytest.raises(PeerLostError, match="rank 1 hangs and shows no life"):
        exchange(links)
    assert time.monotonic() - begun > 1.5
    stop.join()


def test_a_successor_that_hangs_is_given_up(neighbours: Neighbours) -> None:
    """The predecessor is alive; the successor does not take what is sent to it."""
    ends = [Link(1, neighbours.before, neighbours.beats_before)]
    neighbours.opened.append(Heartbeat(ends, 0.4))
    links = neighbours.links_of(0.4)
    with pytest.raises(PeerLostError, match="rank 2 hangs and shows no life"):
        links.exchange([bytes(1 << 24)], [bytearray(1)], 1, lambda number, block: None)


def test_a_rank_that_waits_hears_that_the_ring_has_lost_a_rank(neighbours: Neighbours) -> None:
    lost = threading.Event()
    links = neighbours.links_of(1e6, is_cancelled=lost.is_set)
    threading.Timer(0.3, lost.set).start()
    with pytest.raises(PeerLostError, match="a rank of this ring was lost"):
        exchange(links)
