"""Runs in the training process. Blocks of bytes on their way between two neighbours in the ring.

A stream socket carries the blocks. If two neighbours share memory, a long block travels there, and
a byte in its place: the predecessor copies the block into a slot and sends the byte; the successor
sends a byte back when it has read the slot. That takes half the copies of a socket, and a block
can be added up where it lies.
"""

import contextlib
import select
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparkdl.distribute.heartbeat import Link
from sparkdl.distribute.shared_memory import BLOCK_BYTES

# Shorter blocks go through the socket.
SHARED_BYTES = 1 << 16

# The largest number of blocks to send at once.
MAX_PARTS = 16

_IN_SLOT = b"s"


class Outgoing:
    """The blocks that this rank sends to its successor.

    Args:
        link: the connections to the successor.

    Attributes:
        num_done: number of blocks sent.
    """

    def __init__(self, link: Link) -> None:
        self._socket = link.socket
        self._slots = link.slots
        self.begin([])

    def begin(self, blocks: Sequence[Any]) -> None:
        """Begin with the first of some blocks, byte arrays that are not empty."""
        self._blocks = blocks
        self._offset = 0
        self.num_done = 0

    @property
    def is_complete(self) -> bool:
        return self.num_done == len(self._blocks)

    def send(self, num_allowed: int) -> bool:
        """Send without blocking; return True if any bytes were sent.

        Args:
            num_allowed: number of blocks that may be sent, counted from the first.

        Raises:
            OSError: if the successor is lost.
        """
        has_sent = False
        with contextlib.suppress(BlockingIOError):
            while self.num_done < num_allowed:
                if self._is_shared():
                    if not self._slots.num_free:
                        self._collect_slots()
                    self._fill_slot(self._blocks[self.num_done])
                else:
                    self._send_parts(num_allowed)
                has_sent = True
        return has_sent

    def awaited(self, num_allowed: int) -> int:
        """Return the event of poll(2) after which blocks can be sent.

        Args:
            num_allowed: see `send`.
        """
        if self.num_done >= num_allowed:
            return 0
        return select.POLLIN if self._is_shared() and not self._slots.num_free else select.POLLOUT

    def _is_shared(self, ahead: int = 0) -> bool:
        if self._slots is None:
            return False
        return len(self._blocks[self.num_done + ahead]) >= SHARED_BYTES

    def _fill_slot(self, block: Any) -> None:
        self._slots.current[: len(block)] = block
        self._socket.send(_IN_SLOT)
        self._slots.advance()
        self._slots.num_free -= 1
        self.num_done += 1

    def _collect_slots(self) -> None:
        num_read = len(self._socket.recv(BLOCK_BYTES))
        if not num_read:
            raise ConnectionError("connection closed by peer")
        self._slots.num_free += num_read

    def _send_parts(self, num_allowed: int) -> None:
        """Send some blocks through the socket at once, so that the successor wakes up once."""
        parts = [memoryview(self._blocks[self.num_done])[self._offset :]]
        for ahead in range(1, min(MAX_PARTS, num_allowed - self.num_done)):
            if self._is_shared(ahead):
                break
            parts.append(self._blocks[self.num_done + ahead])
        num_sent = self._socket.sendmsg(parts) if len(parts) > 1 else self._socket.send(parts[0])
        for part in parts:
            if num_sent < len(part):
                self._offset += num_sent
                return
            num_sent -= len(part)
            self._offset = 0
            self.num_done += 1


class Incoming:
    """The blocks that this rank receives from its predecessor.

    Args:
        link: the connections to the predecessor.

    Attributes:
        num_done: number of blocks received.
    """

    def __init__(self, link: Link) -> None:
        self._socket = link.socket
        self._slots = link.slots
        self._scratch = np.empty(0, np.uint8)
        self._in_slot = bytearray(len(_IN_SLOT))
        self.begin([])

    def begin(self, blocks: Sequence[Any]) -> None:
        """Begin with the first of some blocks.

        Args:
            blocks: byte arrays to fill, none of them empty; or the number of bytes of a block that
                is only read, by the caller of `receive`.
        """
        self._blocks = blocks
        self.num_done = 0
        self._begin_block()

    @property
    def is_complete(self) -> bool:
        return self.num_done == len(self._blocks)

    def receive(self) -> Any:
        """Receive without blocking; return the block if it is complete, otherwise None.

        The block is valid until `release`.

        Raises:
            BlockingIOError: if nothing has come.
            OSError: if the predecessor is lost.
        """
        num_bytes = self._socket.recv_into(self._target[self._offset :])
        if not num_bytes:
            raise ConnectionError("connection closed by peer")
        self._offset += num_bytes
        if self._offset < len(self._target):
            return None
        block = self._blocks[self.num_done]
        if not self._is_shared:
            return self._target.obj if isinstance(block, int) else block
        in_slot = self._slots.current[: self._size]
        if isinstance(block, int):
            return in_slot
        memoryview(block)[:] = in_slot
        return block

    def release(self) -> None:
        """Go on with the next block."""
        if self._is_shared:
            # A predecessor that has sent all may have left.
            with contextlib.suppress(OSError):
                self._socket.send(_IN_SLOT)
            self._slots.advance()
        self.num_done += 1
        self._begin_block()

    def _begin_block(self) -> None:
        """Choose the memory for the next bytes of the socket."""
        if self.is_complete:
            self._target = memoryview(b"")  # The memory of the last block is its owner's.
            return
        block = self._blocks[self.num_done]
        self._size = block if isinstance(block, int) else len(block)
        self._is_shared = self._slots is not None and self._size >= SHARED_BYTES
        target: Any
        if self._is_shared:
            target = self._in_slot
        elif isinstance(block, int):
            if not len(self._scratch):
                self._scratch = np.empty(BLOCK_BYTES, np.uint8)
            target = self._scratch[:block]
        else:
            target = block
        self._target = memoryview(target)
        self._offset = 0
