"""Runs in the training process. Connect the ranks of a ring, with mutual authentication.

Each rank listens from the moment it is placed on a host, and connects to its successor. Both sides
prove that they know the secret of the run, by HMAC-SHA256 (RFC 2104) over the random numbers of
both sides; the secret itself is never sent. Ranks in one network namespace use a Unix socket, all
other ranks TCP. An unauthenticated peer receives only a random number and its proof.
"""

import hashlib
import hmac
import logging
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence

from sparkdl.distribute.invitation import Endpoint, Invitation
from sparkdl.distribute.links import Link
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.timed_links import make_links
from sparkdl.errors import PeerLostError

__all__ = ["join", "ring_order"]

_MAGIC = b"sparkdl ring 1\0\0"
# The magic, generation, rank of the sender, rank of the receiver, a random number.
_HELLO = struct.Struct("!16sIII32s")
_NONCE_BYTES = _PROOF_BYTES = 32
_WELCOME = b"y"

# Seconds until an unauthenticated connection is closed, and how many may be open at a time.
HANDSHAKE_TIMEOUT_S = 10.0
MAX_CANDIDATES = 64
RETRY_S = 0.05

BUFFER_BYTES = 4 << 20

_CANCELLED = "a rank of this ring was lost before all ranks had joined"

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
    predecessor, successor = order[position - 1], order[(position + 1) % len(order)]
    with listener:
        if len(order) == 1:
            return Ring(nodes=nodes)
        deadline = time.monotonic() + invitation.join_s
        with _Acceptor(invitation, predecessor, listener) as acceptor:
            outgoing = _connect(invitation, successor, deadline, is_cancelled)
            try:
                incoming = acceptor.wait(deadline, is_cancelled)
            except BaseException:
                outgoing.close()
                raise
    for connection in (incoming, outgoing):
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, buffer, BUFFER_BYTES)
    links = make_links(Link(predecessor, incoming), Link(successor, outgoing), invitation.timeout_s)
    return Ring(order, rank, links, nodes)


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
    """Accept the connection of the predecessor, and refuse all other connections.

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
        self._accepted: socket.socket | None = None
        self._lock = threading.Lock()
        self._free_places = threading.BoundedSemaphore(MAX_CANDIDATES)
        self._thread = threading.Thread(target=self._listen, name="sparkdl ring", daemon=True)

    def __enter__(self) -> "_Acceptor":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        self._thread.join()
        self._listener.close()

    def wait(self, deadline: float, is_cancelled: Callable[[], bool]) -> socket.socket:
        """Return the connection to the predecessor.

        Args:
            deadline: time on the monotonic clock.
            is_cancelled: see `join`.
        """
        while not (self._is_done.wait(RETRY_S) and self._accepted):
            if is_cancelled():
                raise PeerLostError(_CANCELLED)
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
            except TimeoutError:
                continue
            self._free_places.acquire()
            origin = f"{address[0]}:{address[1]}" if address else "this host"
            threading.Thread(target=self._admit, args=(candidate, origin), daemon=True).start()

    def _admit(self, candidate: socket.socket, origin: str) -> None:
        try:
            candidate.settimeout(HANDSHAKE_TIMEOUT_S)
            _authenticate(candidate, self._invitation, self._predecessor)
            with self._lock:
                if self._is_done.is_set():
                    raise ConnectionError(f"rank {self._predecessor} is connected already")
                candidate.sendall(_WELCOME)
                self._accepted = candidate
                self._is_done.set()
        except OSError as exc:
            candidate.close()
            _logger.warning("refused a connection from %s to the ring: %s", origin, exc)
        finally:
            self._free_places.release()


def _authenticate(candidate: socket.socket, invitation: Invitation, predecessor: int) -> None:
    """Prove the knowledge of the secret, and require the same proof of the predecessor.

    Raises:
        ConnectionError: if the candidate is not the predecessor.
    """
    hello = _receive(candidate, _HELLO.size)
    *greeting, _ = _HELLO.unpack(hello)
    if greeting != [_MAGIC, invitation.generation, predecessor, invitation.rank]:
        raise ConnectionError(f"the peer did not send the greeting of rank {predecessor}")
    nonce = secrets.token_bytes(_NONCE_BYTES)
    candidate.sendall(nonce + _proof(invitation, b"server", hello, nonce))
    proof = _receive(candidate, _PROOF_BYTES)
    if not hmac.compare_digest(proof, _proof(invitation, b"client", hello, nonce)):
        raise ConnectionError("the peer does not know the secret of this run")


def _connect(
    invitation: Invitation, successor: int, deadline: float, is_cancelled: Callable[[], bool]
) -> socket.socket:
    """Return the connection to the successor."""
    endpoint = invitation.endpoints[successor]
    while True:
        try:
            return _greet(invitation, successor)
        except OSError as exc:
            if is_cancelled():
                raise PeerLostError(_CANCELLED) from exc
            if time.monotonic() > deadline:
                raise PeerLostError(
                    f"cannot connect to rank {successor} at {endpoint.address}:{endpoint.port}: "
                    f"{exc}. See its log, check for a firewall between the executors, or set "
                    "SPARKDL_INTERFACE."
                ) from exc
        time.sleep(RETRY_S)


def _greet(invitation: Invitation, successor: int) -> socket.socket:
    """Connect to the successor once, and authenticate both sides."""
    endpoint = invitation.endpoints[successor]
    address: str | tuple[str, int] = endpoint.address, endpoint.port
    family = socket.AF_INET6 if ":" in endpoint.address else socket.AF_INET
    if _shares_node(invitation, successor):
        address = _unix_name(invitation, successor)
        family = socket.AF_UNIX
    connection = socket.socket(family)
    try:
        connection.settimeout(HANDSHAKE_TIMEOUT_S)
        connection.connect(address)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        hello = _HELLO.pack(_MAGIC, invitation.generation, invitation.rank, successor, nonce)
        connection.sendall(hello)
        answer = _receive(connection, _NONCE_BYTES + _PROOF_BYTES)
        nonce, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
        if not hmac.compare_digest(proof, _proof(invitation, b"server", hello, nonce)):
            raise ConnectionError("the peer does not know the secret of this run")
        connection.sendall(_proof(invitation, b"client", hello, nonce))
        _receive(connection, len(_WELCOME))
    except BaseException:
        connection.close()
        raise
    return connection


def _shares_node(invitation: Invitation, other: int) -> bool:
    """Return True if another rank shares this rank's network namespace."""
    return invitation.endpoints[other].node == invitation.endpoints[invitation.rank].node


def _unix_name(invitation: Invitation, rank: int) -> str:
    """Return the abstract name of a rank's Unix socket, see unix(7); it does not reveal the secret.

    Args:
        invitation: an invitation to the ring.
        rank: the rank that listens.
    """
    message = struct.pack("!4sII", b"name", invitation.generation, rank)
    return "\0sparkdl-" + hmac.digest(invitation.secret, message, hashlib.sha256).hex()


def _proof(invitation: Invitation, side: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.digest(invitation.secret, side + hello + nonce, hashlib.sha256)


def _receive(connection: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        chunk = connection.recv(num_bytes - len(data))
        if not chunk:
            raise ConnectionError("connection closed by peer")
        data += chunk
    return data
