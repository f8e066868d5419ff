"""Runs in the training process.

How the ranks of a ring find each other: a handshake that asks for the secret.

Each rank listens from the moment it was placed, and calls the one behind it. Both prove that they
know the run's secret, by HMAC-SHA256 (RFC 2104) over both sides' random numbers; neither says it.
Ranks in one network namespace use a Unix socket, all others TCP. Who does not belong here gets
nothing but a random number.
"""

import hashlib
import hmac
import secrets
import socket
import struct
import sys
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
_HELLO = struct.Struct("!16sIII32s")  # The magic, generation, from rank, to rank, a random number.
_NONCE_BYTES = _PROOF_BYTES = 32
_WELCOME = b"y"

# How long a stranger may take to say who it is, and how many may try at once.
HANDSHAKE_S = 10.0
MOST_STRANGERS = 64
AGAIN_S = 0.05

BUFFER_BYTES = 4 << 20

_OFF = "a rank of this ring was lost before all had come"


def join(
    invitation: Invitation, listener: socket.socket, is_off: Callable[[], bool] = lambda: False
) -> Ring:
    """Connect this rank with the two beside it.

    Args:
        invitation: who they are.
        listener: this rank's; closed in the end.
        is_off: asked again and again whether the ring will not come about.

    Raises:
        PeerLostError: one of them has not come in time, or will not come.
    """
    rank, order = invitation.rank, ring_order(invitation.endpoints)
    place, nodes = order.index(rank), [one.node for one in invitation.endpoints]
    before, after = order[place - 1], order[(place + 1) % len(order)]
    with listener:
        if len(order) == 1:
            return Ring(nodes=nodes)
        deadline = time.monotonic() + invitation.join_s
        with _Door(invitation, before, listener) as door:
            call = _call(invitation, after, deadline, is_off)
            try:
                heard = door.wait(deadline, is_off)
            except BaseException:
                call.close()
                raise
    for link in (heard, call):
        if link.family != socket.AF_UNIX:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            link.setsockopt(socket.SOL_SOCKET, buffer, BUFFER_BYTES)
    links = make_links(Link(before, heard), Link(after, call), invitation.timeout_s)
    return Ring(order, rank, links, nodes)


def ring_order(endpoints: Sequence[Endpoint]) -> list[int]:
    """The ranks with those of one host beside each other; rank 0 is the first.

    Example:
        >>> places = [Endpoint("", 0, node) for node in ("a", "b", "a", "b")]
        >>> ring_order(places)
        [0, 2, 1, 3]
    """
    nodes = list(dict.fromkeys(one.node for one in endpoints))
    return sorted(range(len(endpoints)), key=lambda rank: (nodes.index(endpoints[rank].node), rank))


class _Door:
    """Where the rank before comes in: everybody may knock, one is let in.

    Args:
        invitation: this rank's.
        before: who is waited for.
        listener: for those of other hosts.
    """

    def __init__(self, invitation: Invitation, before: int, listener: socket.socket) -> None:
        self._invitation, self._before, self._listener = invitation, before, listener
        if _is_near(invitation, before):
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(_unix_name(invitation, invitation.rank))
            self._listener.listen(MOST_STRANGERS)
        self._came = threading.Event()
        self._found: socket.socket | None = None
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(MOST_STRANGERS)
        self._thread = threading.Thread(target=self._open, name="sparkdl ring", daemon=True)

    def __enter__(self) -> "_Door":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._came.set()
        self._thread.join()
        self._listener.close()

    def wait(self, deadline: float, is_off: Callable[[], bool]) -> socket.socket:
        """The connection to the rank before."""
        while not (self._came.wait(AGAIN_S) and self._found):
            if is_off():
                raise PeerLostError(_OFF)
            if time.monotonic() > deadline:
                raise PeerLostError(
                    f"rank {self._before} has not come to the ring within "
                    f"{self._invitation.join_s:g} s. Every rank must call a collective, or use "
                    "distribute.optimizer; look at its log, or raise SPARKDL_START_TIMEOUT_S."
                )
        return self._found

    def _open(self) -> None:
        self._listener.settimeout(0.1)
        while not self._came.is_set():
            try:
                stranger, address = self._listener.accept()
            except TimeoutError:
                continue
            self._room.acquire()
            who = f"{address[0]}:{address[1]}" if address else "this host"
            threading.Thread(target=self._admit, args=(stranger, who), daemon=True).start()

    def _admit(self, stranger: socket.socket, who: str) -> None:
        try:
            stranger.settimeout(HANDSHAKE_S)
            _answer(stranger, self._invitation, self._before)
            with self._lock:
                if self._came.is_set():
                    raise ConnectionError(f"rank {self._before} is here already")
                stranger.sendall(_WELCOME)
                self._found = stranger
                self._came.set()
        except OSError as exc:
            stranger.close()
            print(f"sparkdl: refused a connection from {who} to the ring: {exc}", file=sys.stderr)
        finally:
            self._room.release()


def _answer(stranger: socket.socket, invitation: Invitation, before: int) -> None:
    """Raise unless it proves to be the rank before."""
    hello = _receive(stranger, _HELLO.size)
    magic, generation, sender, to, _ = _HELLO.unpack(hello)
    if (magic, generation, sender, to) != (
        *(_MAGIC, invitation.generation),
        *(before, invitation.rank),
    ):
        raise ConnectionError(f"it did not greet as rank {before}")
    nonce = secrets.token_bytes(_NONCE_BYTES)
    stranger.sendall(nonce + _proof(invitation, b"server", hello, nonce))
    proof = _receive(stranger, _PROOF_BYTES)
    if not hmac.compare_digest(proof, _proof(invitation, b"client", hello, nonce)):
        raise ConnectionError("it does not know the secret of this run")


def _call(
    invitation: Invitation, after: int, deadline: float, is_off: Callable[[], bool]
) -> socket.socket:
    """The connection to the rank behind."""
    theirs = invitation.endpoints[after]
    while True:
        try:
            return _greet(invitation, after)
        except OSError as exc:
            if is_off():
                raise PeerLostError(_OFF) from exc
            if time.monotonic() > deadline:
                raise PeerLostError(
                    f"rank {after} at {theirs.address}:{theirs.port} cannot be reached: {exc}. "
                    "Look at its log, and whether a firewall is between the executors, or set "
                    "SPARKDL_INTERFACE."
                ) from exc
        time.sleep(AGAIN_S)


def _greet(invitation: Invitation, after: int) -> socket.socket:
    theirs = invitation.endpoints[after]
    near, inet = _is_near(invitation, after), socket.AF_INET6 if ":" in theirs.address else None
    link = socket.socket(socket.AF_UNIX if near else inet or socket.AF_INET)
    try:
        link.settimeout(HANDSHAKE_S)
        link.connect(_unix_name(invitation, after) if near else (theirs.address, theirs.port))
        nonce = secrets.token_bytes(_NONCE_BYTES)
        hello = _HELLO.pack(_MAGIC, invitation.generation, invitation.rank, after, nonce)
        link.sendall(hello)
        answer = _receive(link, _NONCE_BYTES + _PROOF_BYTES)
        nonce, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
        if not hmac.compare_digest(proof, _proof(invitation, b"server", hello, nonce)):
            raise ConnectionError("it does not know the secret of this run")
        link.sendall(_proof(invitation, b"client", hello, nonce))
        _receive(link, len(_WELCOME))
    except BaseException:
        link.close()
        raise
    return link


def _is_near(invitation: Invitation, other: int) -> bool:
    """Whether another rank shares this one's network namespace."""
    return invitation.endpoints[other].node == invitation.endpoints[invitation.rank].node


def _unix_name(invitation: Invitation, rank: int) -> str:
    """The abstract name of a rank's Unix socket, see unix(7); it tells nothing of the secret."""
    said = struct.pack("!4sII", b"name", invitation.generation, rank)
    return "\0sparkdl-" + hmac.digest(invitation.secret, said, hashlib.sha256).hex()


def _proof(invitation: Invitation, who: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.digest(invitation.secret, who + hello + nonce, hashlib.sha256)


def _receive(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = link.recv(count - len(data))
        if not more:
            raise ConnectionError("it hung up")
        data += more
    return data
