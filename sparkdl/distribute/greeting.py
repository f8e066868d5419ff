"""Runs in the training process. Prove to a neighbour in the ring that this process belongs to it.

Both sides prove that they know the secret of the run, by HMAC-SHA256 (RFC 2104) over the random
numbers of both sides; the secret itself is never sent. An unauthenticated peer receives only a
random number and its proof.
"""

import contextlib
import hashlib
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Callable

from sparkdl.distribute.invitation import Invitation

# The beginning of a greeting names the purpose of the connection.
DATA = b"sparkdl ring 2\0\0"
BEATS = b"sparkdl beats 1\0"
PURPOSES = (DATA, BEATS)
# The purpose, generation, rank of the sender, rank of the receiver, a random number.
_HELLO = struct.Struct("!16sIII32s")
_NONCE_BYTES = _PROOF_BYTES = 32
WELCOME = b"y"

# The longest time between two looks for a message that ends the ring.
SLICE_S = 0.2


def greet(
    connection: socket.socket,
    invitation: Invitation,
    successor: int,
    purpose: bytes,
    deadline: float,
    is_cancelled: Callable[[], bool],
) -> None:
    """Authenticate both sides of a new connection to the successor.

    Args:
        connection: the connection.
        invitation: the invitation of this rank.
        successor: rank of the successor.
        purpose: one of PURPOSES.
        deadline: time on the monotonic clock. The kernel accepts connections for a process that
            comes later, so that there is no shorter limit.
        is_cancelled: called repeatedly; returns True when the ring cannot be completed any more.

    Raises:
        OSError: if the peer is not the successor, does not answer, or the ring is cancelled.
    """
    nonce = secrets.token_bytes(_NONCE_BYTES)
    hello = _HELLO.pack(purpose, invitation.generation, invitation.rank, successor, nonce)
    connection.setblocking(True)
    connection.sendall(hello)
    answer = _receive(connection, _NONCE_BYTES + _PROOF_BYTES, deadline, is_cancelled)
    nonce, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(invitation, b"server", hello, nonce)):
        raise ConnectionError("the peer does not know the secret of this run")
    connection.sendall(_proof(invitation, b"client", hello, nonce))
    _receive(connection, len(WELCOME), deadline, is_cancelled)


def authenticate(
    candidate: socket.socket, invitation: Invitation, predecessor: int, deadline: float
) -> bytes:
    """Prove the knowledge of the secret, and require the same proof of the predecessor.

    Returns:
        The purpose of the connection.

    Raises:
        OSError: if the candidate is not the predecessor, or too slow.
    """
    hello = _receive(candidate, _HELLO.size, deadline)
    purpose, *greeting, _ = _HELLO.unpack(hello)
    if purpose not in PURPOSES or greeting != [
        invitation.generation,
        predecessor,
        invitation.rank,
    ]:
        raise ConnectionError(f"the peer did not send the greeting of rank {predecessor}")
    nonce = secrets.token_bytes(_NONCE_BYTES)
    candidate.sendall(nonce + _proof(invitation, b"server", hello, nonce))
    proof = _receive(candidate, _PROOF_BYTES, deadline)
    if not hmac.compare_digest(proof, _proof(invitation, b"client", hello, nonce)):
        raise ConnectionError("the peer does not know the secret of this run")
    return bytes(purpose)


def _proof(invitation: Invitation, side: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.digest(invitation.secret, side + hello + nonce, hashlib.sha256)


def _receive(
    connection: socket.socket,
    num_bytes: int,
    deadline: float,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> bytes:
    """Return the next bytes of a connection.

    Args:
        connection: the connection.
        num_bytes: number of bytes.
        deadline: time on the monotonic clock by which all of them must be there.
        is_cancelled: see `join`.
    """
    data = b""
    while len(data) < num_bytes:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or is_cancelled():
            raise TimeoutError("the peer did not answer in time")
        connection.settimeout(min(left_s, SLICE_S))
        with contextlib.suppress(TimeoutError):
            chunk = connection.recv(num_bytes - len(data))
            if not chunk:
                raise ConnectionError("connection closed by peer")
            data += chunk
    return data
