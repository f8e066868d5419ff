"""Runs in the training process. Exchange blocks of bytes with the two neighbours in the ring.

Each rank sends to its successor and receives from its predecessor. Only numbers travel over the
sockets: all ranks call the same collectives in the same order, so each rank knows which block
comes next, its length, and where it belongs.
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
        rank: rank of the neighbour.
        socket: connected socket, owned and closed by the `Links` that use it.
    """

    rank: int
    socket: socket.socket


class _Progress:
    """The progress of a sequence of blocks through a socket."""

    def __init__(self, blocks: Sequence[memoryview]) -> None:
        self._blocks = blocks
        self._offset = 0
        self.num_done = 0

    @property
    def is_complete(self) -> bool:
        return self.num_done == len(self._blocks)

    @property
    def remaining(self) -> memoryview:
        """The bytes of the current block that have not been transferred yet."""
        return self._blocks[self.num_done][self._offset :]

    def advance(self, num_bytes: int) -> bool:
        """Count transferred bytes; return True if they complete a block."""
        self._offset += num_bytes
        if self._offset < len(self._blocks[self.num_done]):
            return False
        self.num_done += 1
        self._offset = 0
        return True


class Links:
    """The connections of a rank to its predecessor and its successor.

    Args:
        predecessor: the neighbour to receive from.
        successor: the neighbour to send to; in a ring of two ranks both are the same rank, with
            two sockets.
        timeout_s: seconds to wait for a neighbour that hangs. A neighbour that dies closes its
            sockets, and is noticed at once.
    """

    def __init__(self, predecessor: Link, successor: Link, timeout_s: float) -> None:
        self._predecessor = predecessor
        self._successor = successor
        self._timeout_s = timeout_s
        for link in (predecessor, successor):
            link.socket.setblocking(False)

    def exchange(
        self,
        sends: Sequence[Any],
        receives: Sequence[Any],
        num_ready: int,
        arrived: Callable[[int], None],
        lag: int = 0,
    ) -> None:
        """Send and receive blocks at the same time.

        Args:
            sends: byte arrays to send, in order, none of them empty. `sends[num_ready + i]` may be
                sent once `receives[lag + i]` is complete.
            receives: byte arrays to fill, in order, none of them empty.
            num_ready: number of `sends` that may be sent immediately.
            arrived: called with i when `receives[i]` is full, before a block that depends on it
                is sent.
            lag: number of `receives`, from the first, on which no send depends.

        Raises:
            PeerLostError: if a neighbour is lost or hangs. Both sockets are closed then, so that
                the neighbours notice as well.
        """
        outgoing = _Progress([memoryview(block) for block in sends])
        incoming = _Progress([memoryview(block) for block in receives])
        try:
            while not (outgoing.is_complete and incoming.is_complete):
                num_allowed = min(len(sends), num_ready + max(0, incoming.num_done - lag))
                has_sent = self._send(outgoing, num_allowed)
                if not self._receive(incoming, arrived) and not has_sent:
                    self._wait(not incoming.is_complete, outgoing.num_done < num_allowed)
        except BaseException:
            self.close()
            raise

    def _send(self, outgoing: _Progress, num_allowed: int) -> bool:
        """Send without blocking; return True if any bytes were sent."""
        has_sent = False
        try:
            while outgoing.num_done < num_allowed:
                outgoing.advance(self._successor.socket.send(outgoing.remaining))
                has_sent = True
        except BlockingIOError:
            pass
        except OSError as exc:
            raise _lost(self._successor, exc) from exc
        return has_sent

    def _receive(self, incoming: _Progress, arrived: Callable[[int], None]) -> bool:
        """Receive without blocking; return True if any bytes were received."""
        if incoming.is_complete:
            return False
        try:
            num_bytes = self._predecessor.socket.recv_into(incoming.remaining)
        except BlockingIOError:
            return False
        except OSError as exc:
            raise _lost(self._predecessor, exc) from exc
        if not num_bytes:
            raise _lost(self._predecessor, "connection closed by peer")
        if incoming.advance(num_bytes):
            arrived(incoming.num_done - 1)
        return True

    def _wait(self, can_receive: bool, can_send: bool) -> None:
        poll = select.poll()
        poll.register(self._predecessor.socket, select.POLLIN if can_receive else 0)
        poll.register(self._successor.socket, select.POLLOUT if can_send else 0)
        if not poll.poll(self._timeout_s * 1000):
            rank = (self._predecessor if can_receive else self._successor).rank
            raise PeerLostError(
                f"timed out after {self._timeout_s:g} s waiting for rank {rank} in a collective: "
                f"rank {rank} hangs, or does not call the same collectives as the other ranks. "
                "See its log, or raise SPARKDL_COLLECTIVE_TIMEOUT_S."
            )

    def close(self) -> None:
        """Close both connections; the neighbours notice at once."""
        for link in (self._predecessor, self._successor):
            with contextlib.suppress(OSError):
                link.socket.shutdown(socket.SHUT_RDWR)
            link.socket.close()


def _lost(link: Link, reason: Any) -> PeerLostError:
    return PeerLostError(f"lost connection to rank {link.rank}: {reason}. See its log.")
