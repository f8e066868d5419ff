"""Runs in the training process.

The two sockets of a rank in the ring: blocks go out, blocks come in.

Nothing but numbers goes over them: all ranks call the same in the same order, so that each knows
what comes next, how long it is, and where it belongs.
"""

import contextlib
import select
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl.errors import PeerLostError

__all__ = ["Link", "Links"]


@dataclass(frozen=True)
class Link:
    """A connection to a neighbour.

    Attributes:
        rank: the neighbour's.
        socket: connected; it is ours to close.
    """

    rank: int
    socket: socket.socket


class _Progress:
    """Blocks of bytes on their way through a socket, one after the other."""

    def __init__(self, blocks: Sequence[memoryview]) -> None:
        self._blocks, self._at, self.done = blocks, 0, 0

    @property
    def is_complete(self) -> bool:
        return self.done == len(self._blocks)

    @property
    def rest(self) -> memoryview:
        """What is still to go, or to come, of the block that is under way."""
        return self._blocks[self.done][self._at :]

    def moved(self, count: int) -> bool:
        """So many bytes more are through; whether that was the end of a block."""
        self._at += count
        if self._at < len(self._blocks[self.done]):
            return False
        self.done, self._at = self.done + 1, 0
        return True


class Links:
    """What a rank hears, and whom it tells.

    Args:
        before, after: the neighbours; with two ranks they are the same one, with two sockets.
        timeout_s: how long a neighbour may be silent while something of it is due. One that dies
            is noticed at once; this is for one that hangs.
    """

    def __init__(self, before: Link, after: Link, timeout_s: float) -> None:
        self._before, self._after, self._timeout_s = before, after, timeout_s
        for link in (before, after):
            link.socket.setblocking(False)

    def exchange(
        self,
        sends: Sequence[Any],
        receives: Sequence[Any],
        ready: int,
        arrived: Callable[[int], None],
        lag: int = 0,
    ) -> None:
        """Send and receive blocks at the same time.

        Args:
            sends, receives: arrays of bytes, in order, none of them empty; `sends[ready + i]` may
                go when `receives[lag + i]` has come.
            ready: how many of `sends` may go at once.
            arrived: called with i when `receives[i]` is full, before anything is sent on.
            lag: so many of `receives` nothing waits for.

        Raises:
            PeerLostError: a neighbour is gone, or silent. Both sockets are closed then, so that
                the neighbours notice as well.
        """
        going = _Progress([memoryview(block) for block in sends])
        coming = _Progress([memoryview(block) for block in receives])
        try:
            while not (going.is_complete and coming.is_complete):
                allowed = min(len(sends), ready + max(0, coming.done - lag))
                sent = self._send(going, allowed)
                if not self._receive(coming, arrived) and not sent:
                    self._wait(not coming.is_complete, going.done < allowed)
        except BaseException:
            self.close()
            raise

    def _send(self, going: _Progress, allowed: int) -> bool:
        """Whether anything could be sent."""
        moved = False
        try:
            while going.done < allowed:
                going.moved(self._after.socket.send(going.rest))
                moved = True
        except BlockingIOError:
            pass
        except OSError as exc:
            raise _gone(self._after, exc) from exc
        return moved

    def _receive(self, coming: _Progress, arrived: Callable[[int], None]) -> bool:
        """Whether anything has come."""
        if coming.is_complete:
            return False
        try:
            count = self._before.socket.recv_into(coming.rest)
        except BlockingIOError:
            return False
        except OSError as exc:
            raise _gone(self._before, exc) from exc
        if not count:
            raise _gone(self._before, "it closed the connection")
        if coming.moved(count):
            arrived(coming.done - 1)
        return True

    def _wait(self, hears: bool, tells: bool) -> None:
        poll = select.poll()
        poll.register(self._before.socket, select.POLLIN if hears else 0)
        poll.register(self._after.socket, select.POLLOUT if tells else 0)
        if not poll.poll(self._timeout_s * 1000):
            silent = self._before if hears else self._after
            raise PeerLostError(
                f"rank {silent.rank} has been silent for {self._timeout_s:g} s in a collective: it "
                "hangs, or does not call the same collectives as the others. Look at its log, or "
                "raise SPARKDL_COLLECTIVE_TIMEOUT_S."
            )

    def close(self) -> None:
        """Leave; the neighbours notice at once."""
        for link in (self._before, self._after):
            with contextlib.suppress(OSError):
                link.socket.shutdown(socket.SHUT_RDWR)
            link.socket.close()


def _gone(link: Link, why: Any) -> PeerLostError:
    return PeerLostError(f"rank {link.rank} has left the ring: {why}. Its log says more.")
