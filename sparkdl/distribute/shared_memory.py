"""Runs in the training process. Memory that two neighbours in the ring share on one host.

The memory is a file without a name, so nothing is left of it when both processes have ended, in
whatever way.
"""

import contextlib
import mmap
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from sparkdl.distribute.greeting import SLICE_S

__all__ = ["BLOCK_BYTES", "NUM_SLOTS", "Slots", "receive_slots", "send_slots"]

BLOCK_BYTES = 1 << 20
NUM_SLOTS = 4

_SHARED, _NOT_SHARED = b"s", b"n"


class Slots:
    """Memory for some blocks, which the predecessor fills in turn and the successor reads.

    Args:
        descriptor: file descriptor of the memory, of which this object needs no more.

    Attributes:
        num_free: number of slots that the predecessor may fill.
    """

    def __init__(self, descriptor: int) -> None:
        memory = mmap.mmap(descriptor, NUM_SLOTS * BLOCK_BYTES)
        self._slots = np.frombuffer(memory, np.uint8).reshape(NUM_SLOTS, BLOCK_BYTES)
        self._place = 0
        self.num_free = NUM_SLOTS

    @property
    def current(self) -> Any:
        """The slot to fill or to read next, as an array of BLOCK_BYTES bytes."""
        return self._slots[self._place]

    def advance(self) -> None:
        """Go on with the next slot."""
        self._place = (self._place + 1) % NUM_SLOTS


def send_slots(connection: socket.socket) -> Slots | None:
    """Share new memory with the successor.

    Args:
        connection: a connection to the successor.

    Returns:
        The memory; None if the two processes cannot share any.
    """
    if connection.family != socket.AF_UNIX:
        return None
    with contextlib.ExitStack() as opened:
        try:
            descriptor = _create_memory()
            opened.callback(os.close, descriptor)
            slots = Slots(descriptor)
        except OSError:  # Such as too little memory: blocks travel through the socket.
            connection.sendall(_NOT_SHARED)
            return None
        socket.send_fds(connection, [_SHARED], [descriptor])
        return slots


def receive_slots(
    connection: socket.socket, deadline: float, is_cancelled: Callable[[], bool]
) -> Slots | None:
    """Return the memory that the predecessor shares with this process, see `send_slots`.

    Args:
        connection: a connection to the predecessor.
        deadline: time on the monotonic clock.
        is_cancelled: called repeatedly; returns True when the ring cannot be completed any more.

    Raises:
        OSError: if the predecessor does not answer in time, or the ring is cancelled.
    """
    if connection.family != socket.AF_UNIX:
        return None
    connection.settimeout(SLICE_S)
    while True:
        try:
            message, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
            break
        except TimeoutError:
            if is_cancelled() or time.monotonic() > deadline:
                raise
    if not message:
        raise ConnectionError("connection closed by peer")
    if not descriptors:
        return None
    try:
        return Slots(descriptors[0])
    finally:
        os.close(descriptors[0])


def _create_memory() -> int:
    """Return the file descriptor of new memory."""
    size = NUM_SLOTS * BLOCK_BYTES
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("sparkdl ring")
        os.ftruncate(descriptor, size)
        return descriptor
    # A Python that was built for an old C library, as those of conda are.
    descriptor = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)  # A write beyond its size would end the process.
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
