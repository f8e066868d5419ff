"""Runs in the training process. Exchange blocks of bytes with the two neighbours in the ring.

Each rank sends to its successor and receives from its predecessor. Only numbers travel over the
sockets: all ranks call the same collectives in the same order, so each rank knows which block
comes next, its length, and where it belongs.
"""

import contextlib
import logging
import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from sparkdl.distribute.heartbeat import Heartbeat, Link
from sparkdl.errors import PeerLostError

__all__ = ["CANCELLED", "Link", "Links"]

# The longest time between two looks for a message that ends the ring.
SLICE_S = 1.0

CANCELLED = "a rank of this ring was lost"

# A successor sends no data, so the end of its stream means that it has left.
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR

_logger = logging.getLogger("sparkdl.distribute")


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
            sockets of its own for each.
        timeout_s: seconds to wait for a neighbour that shows no life. A neighbour that is alive
            but slow causes a warning after that time. A neighbour that dies closes its sockets,
            and is noticed at once.
        is_cancelled: called about once a second while a neighbour is awaited; returns True when
            the ring has lost a rank.
        heartbeat: the heartbeat of both neighbours; by default a new one.
    """

    def __init__(
        self,
        predecessor: Link,
        successor: Link,
        timeout_s: float,
        is_cancelled: Callable[[], bool] = lambda: False,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self._predecessor = predecessor
        self._successor = successor
        self._timeout_s = timeout_s
        self._is_cancelled = is_cancelled
        for link in (predecessor, successor):
            link.socket.setblocking(False)
        self._heartbeat = heartbeat or Heartbeat((predecessor, successor), timeout_s)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments with which other links over the same connections are made."""
        return {
            "predecessor": self._predecessor,
            "successor": self._successor,
            "timeout_s": self._timeout_s,
            "is_cancelled": self._is_cancelled,
            "heartbeat": self._heartbeat,
        }

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
                    self._wait(
                        not incoming.is_complete,
                        not outgoing.is_complete,
                        outgoing.num_done < num_allowed,
                    )
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

    def _wait(self, is_receiving: bool, is_sending: bool, can_send: bool) -> None:
        """Wait until a neighbour is ready.

        Args:
            is_receiving: the predecessor has not sent all blocks.
            is_sending: the successor has not got all blocks.
            can_send: a block may be sent to the successor now.
        """
        # Only neighbours with blocks left are watched: the others may leave, and a socket that is
        # registered without any event still reports the end of its connection.
        poll = select.poll()
        if is_receiving:
            poll.register(self._predecessor.socket, select.POLLIN)
        if is_sending:
            wanted = select.POLLOUT if can_send else 0
            poll.register(self._successor.socket, wanted | select.POLLRDHUP)
        awaited = [self._predecessor] * is_receiving + [self._successor] * can_send
        slice_ms = 1000 * min(SLICE_S, self._timeout_s / 4)
        late_s = warning_s = time.monotonic() + self._timeout_s
        while not (events := dict(poll.poll(slice_ms))):
            if self._is_cancelled():
                raise PeerLostError(CANCELLED)
            now = time.monotonic()
            if now >= late_s:
                self._check_alive(awaited)
            if now >= warning_s:
                warning_s = now + self._timeout_s
                self._warn(awaited[0])
        flags = events.get(self._successor.socket.fileno(), 0)
        if len(events) == 1 and flags & _GONE:
            raise _lost(self._successor, "connection closed by peer")

    def _check_alive(self, awaited: Sequence[Link]) -> None:
        """Require that the neighbours that this rank waits for are alive."""
        for link in awaited:
            if not self._heartbeat.is_alive(link):
                raise PeerLostError(
                    f"timed out after {self._timeout_s:g} s waiting for rank {link.rank} in a "
                    f"collective: rank {link.rank} hangs and shows no life. See its log, or raise "
                    "SPARKDL_COLLECTIVE_TIMEOUT_S."
                )

    def _warn(self, link: Link) -> None:
        _logger.warning(
            "still waiting after %g s for rank %d in a collective. The process of rank %d is "
            "alive: it computes, saves or reads alone, or does not call the same collectives as "
            "this rank. See its log.",
            self._timeout_s,
            link.rank,
            link.rank,
        )

    def close(self) -> None:
        """Close all connections; the neighbours notice at once."""
        self._heartbeat.close()
        for link in (self._predecessor, self._successor):
            with contextlib.suppress(OSError):
                link.socket.shutdown(socket.SHUT_RDWR)
            link.socket.close()


def _lost(link: Link, reason: Any) -> PeerLostError:
    return PeerLostError(f"lost connection to rank {link.rank}: {reason}. See its log.")
