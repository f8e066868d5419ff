"""Runs in the training process. Exchange blocks of bytes with the two neighbours in the ring.

Each rank sends to its successor and receives from its predecessor. Only numbers travel: all ranks
call the same collectives in the same order, so each rank knows which block comes next, its length,
and where it belongs.
"""

import contextlib
import logging
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from sparkdl.distribute.block_streams import Incoming, Outgoing
from sparkdl.distribute.heartbeat import Heartbeat, Link
from sparkdl.errors import PeerLostError

__all__ = ["CANCELLED", "Link", "Links"]

# The longest time between two looks for a message that ends the ring.
SLICE_S = 1.0

CANCELLED = "a rank of this ring was lost"

# A successor sends no blocks, so the end of its stream means that it has left.
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR

_logger = logging.getLogger("sparkdl.distribute")


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
        self._outgoing = Outgoing(successor)
        self._incoming = Incoming(predecessor)
        self._heartbeat = heartbeat or Heartbeat((predecessor, successor), timeout_s)
        self._in_use = threading.Lock()  # Held by an exchange.
        _of_this_process.add(self)

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

    def like(self, predecessor: Link, successor: Link, heartbeat: Heartbeat) -> "Links":
        """Return links over other connections that are otherwise like these.

        Args:
            predecessor, successor, heartbeat: see `Links`.
        """
        more = {"predecessor": predecessor, "successor": successor, "heartbeat": heartbeat}
        return Links(**{**self.arguments, **more})

    def watch(self, check: Callable[[], None]) -> None:
        """Call a function, which may raise, about once a second while a neighbour is awaited."""
        is_cancelled = self._is_cancelled

        def check_too() -> bool:
            check()
            return is_cancelled()

        self._is_cancelled = check_too

    def peek(self, num_bytes: int) -> bytes:
        """Return the first bytes of the next exchange that have arrived; empty within one."""
        if not self._in_use.acquire(blocking=False):
            return b""
        try:
            return self._predecessor.socket.recv(num_bytes, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return b""
        finally:
            self._in_use.release()

    def exchange(
        self,
        sends: Sequence[Any],
        receives: Sequence[Any],
        num_ready: int,
        arrived: Callable[[int, Any], None],
        lag: int = 0,
        wait: Callable[[], object] = lambda: None,
        is_beside: bool = False,
    ) -> None:
        """Send and receive blocks at the same time.

        Args:
            sends: byte arrays to send, in order, none of them empty. `sends[num_ready + i]` may be
                sent once `receives[lag + i]` is complete.
            receives: byte arrays to fill, in order, none of them empty; or the number of bytes of
                a block that `arrived` reads, and that is not kept.
            num_ready: number of `sends` that may be sent immediately.
            arrived: called with i and the block when `receives[i]` is complete, before a block
                that depends on it is sent.
            lag: number of `receives`, from the first, on which no send depends.
            wait: called first; returns when another thread has made the blocks to send.
            is_beside: True in that other thread, whose exchanges a timeline does not have.

        Raises:
            PeerLostError: if a neighbour is lost or hangs. Both sockets are closed then, so that
                the neighbours notice as well.
        """
        outgoing, incoming = self._outgoing, self._incoming
        try:
            wait()
            with self._in_use:
                outgoing.begin(sends)
                incoming.begin(receives)
                while not (outgoing.is_complete and incoming.is_complete):
                    num_allowed = min(len(sends), num_ready + max(0, incoming.num_done - lag))
                    has_sent = self._send(num_allowed)
                    if not self._receive(arrived) and not has_sent:
                        self._wait(num_allowed)
                # Until the next collective, which may be long in coming, no array is needed.
                outgoing.begin([])
                incoming.begin([])
        except BaseException:
            self.close()
            raise

    def _send(self, num_allowed: int) -> bool:
        """Send without blocking; return True if any bytes were sent."""
        try:
            return self._outgoing.send(num_allowed)
        except OSError as exc:
            raise _lost_error(self._successor, exc) from exc

    def _receive(self, arrived: Callable[[int, Any], None]) -> bool:
        """Receive without blocking; return True if any bytes were received."""
        incoming = self._incoming
        if incoming.is_complete:
            return False
        try:
            block = incoming.receive()
        except BlockingIOError:
            return False
        except OSError as exc:
            raise _lost_error(self._predecessor, exc) from exc
        if block is not None:
            arrived(incoming.num_done, block)
            incoming.release()
        return True

    def _wait(self, num_allowed: int) -> None:
        """Wait until a neighbour is ready.

        Args:
            num_allowed: number of blocks that may be sent to the successor now.
        """
        # Only neighbours with blocks left are watched: the others may leave, and a socket that is
        # registered without any event still reports the end of its connection.
        poll = select.poll()
        is_receiving = not self._incoming.is_complete
        if is_receiving:
            poll.register(self._predecessor.socket, select.POLLIN)
        to_send = self._outgoing.awaited(num_allowed)
        if not self._outgoing.is_complete:
            poll.register(self._successor.socket, to_send | select.POLLRDHUP)
        awaited = [self._predecessor] * is_receiving + [self._successor] * bool(to_send)
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
            raise _lost_error(self._successor, "connection closed by peer")

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


def _close_copies() -> None:
    """Close a forked process's copies of the sockets of its parent.

    The neighbours would not notice the end of the parent as long as the forked process has them.
    """
    for links in list(_of_this_process):
        for link in (links._predecessor, links._successor):
            for copy in (link.socket, link.beats):
                if copy:
                    copy.close()


# Process-wide state: the links that have not been released.
_of_this_process: "weakref.WeakSet[Links]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_close_copies)


def _lost_error(link: Link, reason: Any) -> PeerLostError:
    return PeerLostError(
        f"lost connection to rank {link.rank}: {reason}. See its log. If it has returned, it "
        "called fewer collectives than this rank: all ranks must call `evaluate` and the like."
    )
