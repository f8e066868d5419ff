"""Runs in the training process. Show the neighbours in the ring that this process is alive.

A rank that computes or saves sends no data for as long as that takes, and so does a rank that
hangs. A thread of each process sends one byte to both neighbours at regular intervals, over
connections of their own, so that the two cases differ.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Connection = socket.socket

# The longest time between two beats.
BEAT_S = 10.0


@dataclass(frozen=True)
class Link:
    """The connections to a neighbour, owned and closed by the `Links` that use them.

    Attributes:
        rank: rank of the neighbour.
        socket: connected socket for the data.
        beats: connected socket for the beats; None if the neighbour sends none.
        slots: memory shared with the neighbour, see `shared_memory.Slots`; None if there is none.
    """

    rank: int
    socket: Connection
    beats: Connection | None = None
    slots: Any = field(default=None, compare=False)


class Heartbeat:
    """Send beats to the neighbours, and note when each neighbour has sent its last one.

    Args:
        links: the connections to the neighbours.
        timeout_s: seconds after which the caller asks whether a neighbour is alive.
    """

    def __init__(self, links: Sequence[Link], timeout_s: float) -> None:
        self._beats = {link: link.beats for link in links if link.beats}
        self._interval_s = min(BEAT_S, timeout_s / 10)
        # A process may be unable to beat for a while, in a long call that holds Python's lock.
        self._patience_s = timeout_s / 2
        self._heard_s = dict.fromkeys(self._beats, time.monotonic())
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        for connection in self._beats.values():
            connection.setblocking(False)
        if self._beats:
            threading.Thread(target=self._beat, name="sparkdl heartbeat", daemon=True).start()

    def is_alive(self, link: Link) -> bool:
        """Return True if a neighbour has sent a beat in the last half of the timeout."""
        self._listen()
        heard_s = self._heard_s.get(link)
        return heard_s is not None and time.monotonic() - heard_s < self._patience_s

    def close(self) -> None:
        """Send no more beats."""
        self._is_over.set()
        with self._lock:
            for connection in self._beats.values():
                connection.close()

    def _beat(self) -> None:
        while not self._is_over.wait(self._interval_s):
            with self._lock:
                for connection in self._beats.values():
                    with contextlib.suppress(OSError):  # The data tells that a neighbour is lost.
                        connection.send(b".")
            self._listen()

    def _listen(self) -> None:
        with self._lock:
            for link, connection in self._beats.items():
                with contextlib.suppress(OSError):
                    if connection.recv(1 << 16):
                        self._heard_s[link] = time.monotonic()
