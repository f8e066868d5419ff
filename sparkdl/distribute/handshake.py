"""Runs in the training process. Connect the ranks of a ring, with mutual authentication.

Each rank listens from the moment it is placed on a host, and connects to its successor. Ranks in
one network namespace use a Unix socket, and memory for long blocks, see `shared_memory`; all other
ranks use TCP. Two neighbours have two connections: one for the data, and one for the beats, see
`Heartbeat`.
"""

import contextlib
import errno
import hashlib
import hmac
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from sparkdl.distribute.greeting import (
    BEATS,
    DATA,
    PURPOSES,
    SLICE_S,
    WELCOME,
    authenticate,
    greet,
)
from sparkdl.distribute.invitation import Endpoint, Invitation
from sparkdl.distribute.links import CANCELLED, Link
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.shared_memory import agreed_slots, receive_slots, send_slots
from sparkdl.distribute.stride_links import open_pairs, open_strides
from sparkdl.distribute.timed_links import make_links
from sparkdl.errors import PeerLostError

# Seconds until an unauthenticated connection is closed, and how many may be open at a time.
HANDSHAKE_TIMEOUT_S = 10.0
MAX_CANDIDATES = 64
FIRST_RETRY_S, RETRY_S = 0.002, 0.05

BUFFER_BYTES = 4 << 20
# A rank that waits for data notices after 25 s that the host of its neighbour is gone, see tcp(7).
KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}

_logger = logging.getLogger("sparkdl.distribute")


def join(
    invitation: Invitation,
    listener: socket.socket,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Ring:
    """Connect this rank with its two neighbours in the ring.

    Args:
        invitation: the invitation of this rank.
        listener: the listening socket of this rank, which is closed here.
        is_cancelled: called repeatedly; returns True when the ring cannot be completed any more.

    Raises:
        PeerLostError: if a neighbour does not join in time, or the ring is cancelled.
    """
    rank, order = invitation.rank, ring_order(invitation.endpoints)
    nodes = [endpoint.node for endpoint in invitation.endpoints]
    position = order.index(rank)
    with listener:
        if len(order) == 1:
            return Ring(nodes=nodes)
        neighbours = order[position - 1], order[(position + 1) % len(order)]
        before, after = _connect_both(invitation, listener, *neighbours, True, is_cancelled)
    links = make_links(before, after, invitation.timeout_s, is_cancelled)
    connect = partial(_connect_both, is_cancelled=is_cancelled)
    openers = (
        partial(open_strides, invitation, order, connect),
        partial(open_pairs, invitation, connect),
    )
    return Ring(order, rank, links, nodes, *openers)


def _connect_both(
    invitation: Invitation,
    listener: socket.socket,
    predecessor: int,
    successor: int,
    shares_memory: bool,
    is_cancelled: Callable[[], bool],
) -> tuple[Link, Link]:
    """Return the connections to a predecessor and a successor, which may be the same rank.

    Args:
        invitation, listener, is_cancelled: see `join`.
        predecessor, successor: their ranks.
        shares_memory: share memory with them if they are on the same host.
    """
    deadline = time.monotonic() + invitation.join_s
    slots_of_predecessor = slots_of_successor = None
    with (
        _Acceptor(invitation, predecessor, listener) as acceptor,
        contextlib.ExitStack() as opened,
    ):
        outgoing = {
            purpose: opened.enter_context(
                _connect(invitation, successor, purpose, deadline, is_cancelled)
            )
            for purpose in PURPOSES
        }
        if shares_memory:
            with _losing(successor):
                offered = send_slots(outgoing[DATA])
        incoming = acceptor.wait(deadline, is_cancelled)
        if shares_memory:
            with _losing(predecessor):
                slots_of_predecessor = receive_slots(incoming[DATA], deadline, is_cancelled)
            with _losing(successor):  # Its answer depends on the offer only: no rank waits in turn.
                slots_of_successor = agreed_slots(offered, outgoing[DATA], deadline, is_cancelled)
        opened.pop_all()  # The links close the connections from here on.
    names = invitation.members or range(len(invitation.endpoints))
    before, after = (
        Link(names[other], _tuned(connections[DATA]), _tuned(connections[BEATS]), slots)
        for other, connections, slots in (
            (predecessor, incoming, slots_of_predecessor),
            (successor, outgoing, slots_of_successor),
        )
    )
    return before, after


@contextlib.contextmanager
def _losing(rank: int) -> Iterator[None]:
    """Raise PeerLostError where the connection to a neighbour fails in the block."""
    try:
        yield
    except OSError as exc:
        raise PeerLostError(
            f"lost connection to rank {rank} while it joined the ring: {exc}. See its log."
        ) from exc


def _tuned(connection: socket.socket) -> socket.socket:
    """Set the options of a connection; return the connection."""
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
    for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, buffer, BUFFER_BYTES)
    return connection


def ring_order(endpoints: Sequence[Endpoint]) -> list[int]:
    """Return the ranks in ring order: ranks of one host are adjacent, and rank 0 is the first.

    Args:
        endpoints: endpoints of all ranks, by rank.

    Example:
        >>> endpoints = [Endpoint("", 0, node) for node in ("a", "b", "a", "b")]
        >>> ring_order(endpoints)
        [0, 2, 1, 3]
    """
    nodes = list(dict.fromkeys(endpoint.node for endpoint in endpoints))
    return sorted(range(len(endpoints)), key=lambda rank: (nodes.index(endpoints[rank].node), rank))


class _Acceptor:
    """Accept the connections of the predecessor, and refuse all other connections.

    Args:
        invitation: the invitation of this rank.
        predecessor: rank of the predecessor.
        listener: socket that listens for connections from other hosts.
    """

    def __init__(self, invitation: Invitation, predecessor: int, listener: socket.socket) -> None:
        self._invitation = invitation
        self._predecessor = predecessor
        self._listener = listener
        if _shares_node(invitation, predecessor):
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(_unix_name(invitation, invitation.rank))
            self._listener.listen(MAX_CANDIDATES)
        self._is_done = threading.Event()
        self._accepted: dict[bytes, socket.socket] = {}
        self._candidates: list[socket.socket] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._listen, name="sparkdl ring", daemon=True)

    def __enter__(self) -> "_Acceptor":
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._is_done.set()
        _shut_down(self._listener)  # Its thread waits no longer.
        self._thread.join()
        self._listener.close()
        with self._lock:
            for candidate in self._candidates:
                _shut_down(candidate)
            for connection in self._accepted.values() if kind else ():
                connection.close()

    def wait(self, deadline: float, is_cancelled: Callable[[], bool]) -> dict[bytes, socket.socket]:
        """Return the connections to the predecessor, by purpose.

        Args:
            deadline: time on the monotonic clock.
            is_cancelled: see `join`.
        """
        while not self._is_done.wait(RETRY_S):
            if is_cancelled():
                raise PeerLostError(CANCELLED)
            if time.monotonic() > deadline:
                raise PeerLostError(
                    f"timed out after {self._invitation.join_s:g} s waiting for rank "
                    f"{self._predecessor} to join the ring. Every rank must call a collective, or "
                    "use distribute.optimizer. See its log, or raise SPARKDL_START_TIMEOUT_S."
                )
        return self._accepted

    def _listen(self) -> None:
        self._listener.settimeout(0.1)
        while not self._is_done.is_set():
            try:
                candidate, address = self._listener.accept()
            except OSError:
                if self._is_done.wait(0.01):
                    return
                continue
            with self._lock:
                if len(self._candidates) == MAX_CANDIDATES:
                    # The oldest connection gives way: a neighbour authenticates itself at once.
                    _shut_down(self._candidates.pop(0))
                self._candidates.append(candidate)
            origin = f"{address[0]}:{address[1]}" if address else "this host"
            threading.Thread(target=self._admit, args=(candidate, origin), daemon=True).start()

    def _admit(self, candidate: socket.socket, origin: str) -> None:
        deadline = time.monotonic() + HANDSHAKE_TIMEOUT_S
        try:
            purpose = authenticate(candidate, self._invitation, self._predecessor, deadline)
            with self._lock:
                if purpose in self._accepted:
                    raise ConnectionError(f"rank {self._predecessor} is connected already")
                if candidate not in self._candidates:
                    raise ConnectionError("it has given way to another connection")
                self._candidates.remove(candidate)
                candidate.sendall(WELCOME)
                self._accepted[purpose] = candidate
                if len(self._accepted) == len(PURPOSES):
                    self._is_done.set()
        except OSError as exc:
            with self._lock, contextlib.suppress(ValueError):
                self._candidates.remove(candidate)
            candidate.close()
            _logger.warning("refused a connection from %s to the ring: %s", origin, exc)


def _connect(
    invitation: Invitation,
    successor: int,
    purpose: bytes,
    deadline: float,
    is_cancelled: Callable[[], bool],
) -> socket.socket:
    """Return a connection to the successor."""
    endpoint = invitation.endpoints[successor]
    reason: OSError | None = None
    pause_s = FIRST_RETRY_S
    while True:
        try:
            return _connect_once(invitation, successor, purpose, deadline, is_cancelled)
        except OSError as exc:
            # A refusal says more than the lack of time after it, and the answer of a rank that has
            # left since more than that it has left.
            has_left = isinstance(exc, ConnectionRefusedError) and type(reason) is ConnectionError
            reason = reason if reason and (has_left or isinstance(exc, TimeoutError)) else exc
        if is_cancelled():
            raise PeerLostError(CANCELLED) from reason
        if time.monotonic() > deadline:
            raise PeerLostError(
                f"cannot connect to rank {successor} at {endpoint.address}:{endpoint.port}: "
                f"{reason}. See its log, check for a firewall between the executors, or set "
                "SPARKDL_INTERFACE."
            ) from reason
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, RETRY_S)


def _connect_once(
    invitation: Invitation,
    successor: int,
    purpose: bytes,
    deadline: float,
    is_cancelled: Callable[[], bool],
) -> socket.socket:
    connection = _dial(invitation, successor, deadline, is_cancelled)
    try:
        greet(connection, invitation, successor, purpose, deadline, is_cancelled)
    except BaseException:
        connection.close()
        raise
    return connection


def _dial(
    invitation: Invitation, successor: int, deadline: float, is_cancelled: Callable[[], bool]
) -> socket.socket:
    """Return a connection to the listening socket of the successor, before any greeting."""
    endpoint = invitation.endpoints[successor]
    address: str | tuple[str, int] = endpoint.address, endpoint.port
    family = socket.AF_INET6 if ":" in endpoint.address else socket.AF_INET
    if _shares_node(invitation, successor):
        address = _unix_name(invitation, successor)
        family = socket.AF_UNIX
    until = min(deadline, time.monotonic() + HANDSHAKE_TIMEOUT_S)
    connection = socket.socket(family)
    try:
        connection.setblocking(False)
        code = connection.connect_ex(address)
        if code == errno.EINPROGRESS:
            poll = select.poll()
            poll.register(connection, select.POLLOUT)
            while not poll.poll(SLICE_S * 1000):
                if is_cancelled() or time.monotonic() > until:
                    raise TimeoutError("the host did not answer")
            code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
    except BaseException:
        connection.close()
        raise
    return connection


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _shares_node(invitation: Invitation, other: int) -> bool:
    """Return True if another rank shares this rank's network namespace."""
    return invitation.endpoints[other].node == invitation.endpoints[invitation.rank].node


def _unix_name(invitation: Invitation, rank: int) -> str:
    """Return the abstract name of a rank's Unix socket, see unix(7); it does not reveal the secret.

    The port of the rank is a part of it, as no two processes of a host listen on one port: two
    rings with one secret, such as those of two attempts, can meet on one host.

    Args:
        invitation: an invitation to the ring.
        rank: the rank that listens.
    """
    endpoint = invitation.endpoints[rank]
    message = struct.pack("!4sIII", b"name", invitation.generation, rank, endpoint.port)
    message += endpoint.address.encode()
    return "\0sparkdl-" + hmac.digest(invitation.secret, message, hashlib.sha256).hex()
