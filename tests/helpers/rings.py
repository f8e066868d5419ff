"""Rings in one process: a thread for each rank."""

import socket
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from sparkdl.distribute.links import Link, Links
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.shared_memory import agreed_slots, receive_slots, send_slots


def on_all(rings: list[Any], call: Callable[[Any, int], Any]) -> list[Any]:
    """Return the result or the exception of `call(ring, rank)` on each rank."""
    results: list[Any] = [None] * len(rings)

    def run(rank: int) -> None:
        try:
            results[rank] = call(rings[rank], rank)
        except Exception as exc:
            results[rank] = exc

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(rings))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "it hangs"
    return results


def patiently() -> tuple[float, Callable[[], bool]]:
    """Return a deadline, and a function that says that the ring was not cancelled."""
    return monotonic() + 120, lambda: False


def connected(
    order: list[int], sockets: list[socket.socket], timeout_s: float = 20.0
) -> list[Ring]:
    """Return the rings of all ranks, by rank, in this order; every other link shares memory.

    The caller closes the sockets, which are added to a list.
    """
    if len(order) == 1:
        return [Ring()]
    pairs = [socket.socketpair() for _ in order]
    sockets.extend(end for pair in pairs for end in pair)
    sent = [send_slots(pair[0]) if place % 2 else None for place, pair in enumerate(pairs)]
    received = [
        receive_slots(pair[1], *patiently()) if offered else None
        for pair, offered in zip(pairs, sent, strict=True)
    ]
    sent = [
        agreed_slots(offered, pair[0], *patiently())
        for pair, offered in zip(pairs, sent, strict=True)
    ]
    rings: list[Any] = [None] * len(order)
    for place, rank in enumerate(order):
        before = Link(order[place - 1], pairs[place - 1][1], slots=received[place - 1])
        after = Link(order[(place + 1) % len(order)], pairs[place][0], slots=sent[place])
        links = Links(before, after, timeout_s)
        rings[rank] = Ring(order, rank, links)
    return rings
