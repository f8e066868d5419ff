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
    """Offer new memory to the successor.

    Args:
        connection: a connection to the successor.

    Returns:
        The memory, to be used if the successor agrees, see `agreed_slots`; None if this process
        has none to share.
    """
    if connection.family != socket.AF_UNIX:
        return None
    with contextlib.ExitStack() as opened:
        try:
            descriptor = _create_memory()
            opened.callback(os.close, descriptor)
            slots = Slots(descriptor)
            socket.send_fds(connection, [_SHARED], [descriptor])
        except OSError:  # Such as too little memory: blocks travel through the socket.
            connection.sendall(_NOT_SHARED)
            return None
        return slots


def receive_slots(
    connection: socket.socket, deadline: float, is_cancelled: Callable[[], bool]
) -> Slots | None:
    """Return the memory that the predecessor offers, see `send_slots`; tell it the decision.

    Args:
        connection: a connection to the predecessor.
        deadline: time on the monotonic clock.
        is_cancelled: called repeatedly; returns True when the ring cannot be completed any more.

    Returns:
        The memory; None if the two processes cannot share any.

    Raises:
        OSError: if the predecessor does not answer in time, or the ring is cancelled.
    """
    if connection.family != socket.AF_UNIX:
        return None
    offer, descriptors = _receive(connection, deadline, is_cancelled)
    if offer == _NOT_SHARED:
        return None
    slots = None
    # The kernel drops the descriptor if this process may open no more files, or a security module
    # refuses it.
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # Such as too little memory.
            slots = Slots(descriptor)
        os.close(descriptor)
    connection.sendall(_SHARED if slots else _NOT_SHARED)
    return slots


def agreed_slots(
    slots: Slots | None,
    connection: socket.socket,
    deadline: float,
    is_cancelled: Callable[[], bool],
) -> Slots | None:
    """Return the memory that this process has offered if the successor uses it, otherwise None.

    Args:
        slots: the result of `send_slots`.
        connection: the connection to the successor.
        deadline, is_cancelled: see `receive_slots`.

    Raises:
        OSError: if the successor does not answer in time, or the ring is cancelled.
    """
    if slots is None:
        return None
    answer, _ = _receive(connection, deadline, is_cancelled)
    return slots if answer == _SHARED else None


def _receive(
    connection: socket.socket, deadline: float, is_cancelled: Callable[[], bool]
) -> tuple[bytes, list[int]]:
    """Return the next byte of a connection, and the descriptors that came with it."""
    connection.settimeout(SLICE_S)
    while True:
        try:
            byte, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
            break
        except TimeoutError:
            if is_cancelled() or time.monotonic() > deadline:
                raise
    if not byte:
        raise ConnectionError("connection closed by peer")
    return byte, descriptors


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
