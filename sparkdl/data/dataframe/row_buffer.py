"""Runs in the training process. The rows of one dataset, as far as they have arrived."""

import mmap
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.errors import ConfigError

__all__ = ["Arriving"]


@dataclass(frozen=True, eq=False)
class _Block:
    """A received batch, the number of rows before it, and the file that it stands in."""

    before: int
    rows: int
    message: "np.ndarray[Any, Any]"
    file: mmap.mmap

    @property
    def end(self) -> int:
        return self.before + self.rows

    def slice(self, start: int, stop: int, schema: pa.Schema) -> pa.RecordBatch:
        """Its rows among `start <= i < stop` of all."""
        batch = pa.ipc.read_record_batch(pa.py_buffer(self.message), schema)
        begin, end = max(start - self.before, 0), min(stop - self.before, self.rows)
        return batch.slice(begin, end - begin)


class Arriving:
    """The rows of one dataset, as far as they have arrived. Filled by one thread, read by any.

    Attributes:
        name, schema: its name, and its columns.
        rows: how many have arrived.
        is_complete: all have arrived.
        error: why not all will come.
    """

    def __init__(self, name: str, schema: pa.Schema, wanted: threading.Event) -> None:
        self.name, self.schema = name, schema
        self.rows, self.is_complete = 0, False
        self._blocks: list[_Block] = []
        self.error: str | None = None
        self._changed = threading.Condition()
        self._keeps: bool | None = None
        self._most: int | None = 0
        self._taken = 0
        self._wanted = wanted

    # ---- for the thread that fills it

    def add(self, rows: int, message: "np.ndarray[Any, Any]", file: mmap.mmap) -> bool:
        """Take in the next batch; whether it is kept, else it is given away once used."""
        with self._changed:
            # The first stays, see `take`, and so do all that are kept.
            is_kept = self._keeps is not False or not self._blocks
            self._blocks.append(_Block(self.rows, rows, message, file))
            self.rows += rows
            self._changed.notify_all()
        return is_kept

    def complete(self, rows: int) -> None:
        """No more will come; `rows` were sent."""
        with self._changed:
            self.is_complete = rows == self.rows
            if not self.is_complete:
                self.error = f"Spark sent {rows} rows and {self.rows} arrived"
            self._changed.notify_all()

    def fail(self, error: str) -> None:
        """No more will come, though there are more."""
        with self._changed:
            if not self.is_complete:
                self.error = self.error or error
            self._changed.notify_all()

    @property
    def is_enough(self) -> bool:
        """Whether nobody waits for more."""
        return self.is_complete or (self._most is not None and 0 < self._most <= self.rows)

    # ---- for those that read it

    def open(self, keeps: bool, most: int | None) -> None:
        """Say what will be read of it.

        Args:
            keeps: more than once; else each row is given away as it is read.
            most: how many rows, None for all.

        Raises:
            ConfigError: that does not go with what was said before.
        """
        with self._changed:
            if self._keeps is False or (self._keeps and not keeps):
                raise ConfigError(
                    f"data {self.name!r} is read twice, and once with cache=False, which gives "
                    "each row away. Leave that out, or read it once."
                )
            self._keeps = keeps
        self.want(most)

    def want(self, most: int | None) -> None:
        """Ask for so many rows, None for all."""
        with self._changed:
            wants_all = most is None or self._most is None
            self._most = None if wants_all else max(most or 0, self._most or 0)
        self._wanted.set()

    def wait(self, beyond: int, timeout_s: float | None = None) -> None:
        """Return when more rows than `beyond` have arrived, all have, or the time is over.

        Raises:
            RuntimeError: they were cut off.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self.error or self.is_complete or self.rows > beyond, timeout_s
            )
            if self.error and self.rows <= beyond:
                raise RuntimeError(
                    f"the rows of data {self.name!r} are not all there: {self.error}"
                )

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows `start <= i < stop`, which have arrived, in batches."""
        last: mmap.mmap | None = None
        for block in self._overlapping(start, stop):
            if last is not None and last is not block.file:
                # To the page cache: it counts as this process's memory no longer.
                last.madvise(mmap.MADV_DONTNEED)
            last = block.file
            yield block.slice(start, stop, self.schema)

    def take(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The same for a pass; where rows are not kept, each batch goes when the next is asked for.

        Raises:
            RuntimeError: they were taken before.
        """
        if self._keeps:
            yield from self.read(start, stop)
            return
        if start < self._taken:
            raise RuntimeError(
                f"data {self.name!r} is read a second time; cache=False allows one pass only."
            )
        blocks = deque(self._overlapping(start, stop))
        while blocks:
            yield blocks[0].slice(start, stop, self.schema)
            self._give_away(blocks.popleft(), stop)

    def _give_away(self, block: _Block, stop: int) -> None:
        with self._changed:
            self._taken = min(stop, block.end)
            # A row of the first may be repeated at the end of the pass.
            if block.before and self._taken == block.end:
                self._blocks.remove(block)

    def bounds(self, stop: int) -> list[tuple[int, int]]:
        """Where the batches of the first `stop` rows begin and end."""
        blocks = self._overlapping(0, stop)
        return [(b.before, min(b.end, stop)) for b in blocks]

    def _overlapping(self, start: int, stop: int) -> Sequence[_Block]:
        with self._changed:
            return [b for b in self._blocks if b.before < stop and start < b.end]
