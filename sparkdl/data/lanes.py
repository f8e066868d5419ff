"""Runs anywhere (pure). The random order of the rows of one epoch, for any number of ranks.

The pieces of a source (files or row groups) in random order form one sequence of rows. It is cut
into lanes of about equal length. A lane gives the rows of each of its pieces in sections of
consecutive rows, in random order: what is sorted within files so has another place in each epoch.
Some sections make a chunk, whose rows are shuffled, and the chunks of all lanes are read in turn,
so that a batch has rows of several places in each lane. A rank takes a contiguous part of the
sequence: whole lanes, and parts of a lane at its ends.

The order follows from the sizes of the pieces and from a seed. The idea of an order that the ranks
only divide is that of the StreamingDataset of MosaicML,
https://docs.mosaicml.com/projects/streaming/en/stable/distributed_training/elastic_determinism.html.
"""

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sparkdl.data.shard import Range

# If each of n classes has pieces of its own, rows of 128 random pieces have all but (n - 1) / 256
# nats of the entropy of a random sample. A power of two divides most batches equally.
MAX_LANES = 128
CHUNK_SECTIONS = 2

# Limits of the rows that are shuffled together, in all lanes of all ranks.
WINDOW_ROWS = 1 << 16
WINDOW_BYTES = 256 << 20

# A lane ends at the end of a piece if it then differs by at most this part from the other lanes:
# two lanes that share a piece both decode its beginning.
SNAP = 1 / 8


@dataclass(frozen=True)
class Lane:
    """Rows that are read one after the other.

    Attributes:
        ranges: the rows to read, in this order.
        seed: seed for shuffling the rows; None keeps their order.
        num_skipped: number of rows before them that are left out, whole chunks.
        head: number of the rows left out that are in the first range.
    """

    ranges: tuple[Range, ...]
    seed: int | None = None
    num_skipped: int = 0
    head: int = 0

    @property
    def num_rows(self) -> int:
        """The number of rows to read."""
        return sum(part.stop - part.start for part in self.ranges) - self.head

    def sections(self, section_rows: int) -> Iterator[Range]:
        """Yield the rows in sections, those of each range in random order.

        Args:
            section_rows: number of consecutive rows of a section; the last one of a range has
                fewer.

        Example:
            >>> lane = Lane((Range(0, 0, 3), Range(1, 0, 1)), seed=3)
            >>> [(part.piece, part.start) for part in lane.sections(1)]
            [(0, 2), (0, 1), (0, 0), (1, 0)]
        """
        left_out = self.head
        for part in self.ranges:
            random = np.random.default_rng([self.seed or 0, part.piece, part.start])
            order = random.permutation(-(-(part.stop - part.start) // section_rows))
            for begin in (part.start + order * section_rows).tolist():
                stop = min(begin + section_rows, part.stop)
                start = min(begin + left_out, stop)
                left_out -= start - begin
                if start < stop:
                    yield Range(part.piece, start, stop)

    def after(self, rows: int) -> "Lane":
        """Return the lane without its first rows.

        Args:
            rows: number of rows, whole chunks.
        """
        ranges, head = list(self.ranges), self.head + rows
        while ranges and head >= (length := ranges[0].stop - ranges[0].start):
            head -= length
            ranges.pop(0)
        return replace(self, ranges=tuple(ranges), num_skipped=self.num_skipped + rows, head=head)


@dataclass(frozen=True)
class Pass:
    """A pass over the share of a rank.

    Attributes:
        lanes: the rows to read; the lanes are read in turn. A single lane without a seed keeps the
            order of its rows.
        chunk_rows: number of rows of a lane that are shuffled together.
        chunk_bytes: number of bytes of a lane that are shuffled together if that is fewer rows;
            infinite if it never is.
        start: number of the first row to yield, in the order of the pass.
        stop: end of the rows to yield; None for all.
        following: the pass whose rows come afterwards.
    """

    lanes: tuple[Lane, ...]
    chunk_rows: int = 1
    chunk_bytes: float = WINDOW_BYTES
    start: int = 0
    stop: int | None = None
    following: "Pass | None" = None

    @classmethod
    def in_order(cls, ranges: Sequence[Range]) -> "Pass":
        """Return a pass that keeps the order of the rows.

        Args:
            ranges: the rows to read.
        """
        return cls((Lane(tuple(ranges)),))

    @property
    def is_shuffled(self) -> bool:
        """True if the rows are shuffled."""
        return any(lane.seed is not None for lane in self.lanes)

    @property
    def section_rows(self) -> int:
        """The number of consecutive rows of a section of a lane."""
        return max(self.chunk_rows // CHUNK_SECTIONS, 1)

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The rows of all lanes, lane after lane."""
        return tuple(part for lane in self.lanes for part in lane.ranges)

    def ranges_in_turn(self) -> list[Range]:
        """Return the ranges of the lanes in turn, for pieces of one row.

        Example:
            >>> first, second, third = (Range(piece, 0, 1) for piece in range(3))
            >>> Pass((Lane((first, second)), Lane((third,)))).ranges_in_turn()
            [Range(piece=0, start=0, stop=1), Range(piece=2, start=0, stop=1), \
Range(piece=1, start=0, stop=1)]
        """
        turns = itertools.zip_longest(*(lane.ranges for lane in self.lanes))
        parts = [part for turn in turns for part in turn if part is not None]
        after = self.following.ranges_in_turn() if self.following else []
        return [*parts[self.start : self.stop], *after]

    def ranges_to_read(self) -> list[Range]:
        """Return the ranges of the pass and of those that follow, in the order of their beginnings.

        Chunks that end by their bytes may be read a little later, or beyond `stop`.
        """
        windows = self._num_windows
        if self.stop is not None:
            windows = self._windows_before(self.stop - 1) + 1
        begins = []
        for number, lane in enumerate(self.lanes):
            row = -lane.head
            for part in lane.ranges:
                begins.append((max(row, 0) // self.chunk_rows, number, row, part))
                row += part.stop - part.start
        begins.sort(key=lambda each: each[:3])
        own = [part for window, *_, part in begins if window < windows]
        return [*own, *(self.following.ranges_to_read() if self.following else [])]

    @property
    def _num_windows(self) -> int:
        return -(-max((lane.num_rows for lane in self.lanes), default=0) // self.chunk_rows)

    def _windows_before(self, row: int) -> int:
        """Return the number of windows that end before a row of the pass, or with it."""
        return bisect.bisect_right(range(self._num_windows + 1), row, key=self._rows_of) - 1

    def _rows_of(self, windows: int) -> int:
        """Return the number of rows in the first windows."""
        counts = np.array([lane.num_rows for lane in self.lanes])
        return int(np.minimum(counts, windows * self.chunk_rows).sum())

    def from_first_window(self, row_bytes: float) -> "Pass":
        """Return passes of the same rows that read no window before the first of them.

        A pass stays as it is where rows are so large that chunks may end by their bytes.

        Args:
            row_bytes: the largest number of bytes of a row; infinite if it is not known.
        """
        following = self.following and self.following.from_first_window(row_bytes)
        if self.chunk_rows * row_bytes >= self.chunk_bytes:
            return replace(self, following=following)
        return replace(self.without_windows(), chunk_bytes=math.inf, following=following)

    def without_windows(self) -> "Pass":
        """Return a pass of the same rows that does not read the windows before the first of them.

        It requires that chunks end by their number of rows, never by their bytes.

        Example:
            >>> lane = Lane((Range(0, 0, 10),), seed=1)
            >>> Pass((lane,), chunk_rows=4, start=9).without_windows()  # doctest: +ELLIPSIS
            Pass(lanes=(Lane(ranges=(Range(piece=0, start=0, stop=10),), seed=1, num_skipped=8, \
head=8),), chunk_rows=4, chunk_bytes=..., start=1, stop=None, following=None)
        """
        windows = self._windows_before(self.start)
        if windows < 1:
            return self
        num_skipped, rows = windows * self.chunk_rows, self._rows_of(windows)
        lanes = [lane.after(num_skipped) for lane in self.lanes if lane.num_rows > num_skipped]
        return replace(
            self,
            lanes=tuple(lanes),
            start=self.start - rows,
            stop=None if self.stop is None else self.stop - rows,
        )


class EpochOrder:
    """The order of all rows in one epoch.

    Args:
        sizes: number of rows of each piece.
        seed: seed of the order of the pieces.
        window_rows: number of rows that are shuffled together.

    Attributes:
        pieces: the numbers of the pieces in random order.
        chunk_rows: number of rows of a lane that are shuffled together, at least as many as there
            are lanes; all of a lane if all rows of the epoch are one window.
        cuts: the places in the sequence of rows where lanes begin, and its end.

    Example:
        >>> order = EpochOrder([4, 4, 4], seed=[0, 0], window_rows=4)
        >>> order.cuts, order.chunk_rows
        ([0, 6, 12], 2)
    """

    def __init__(self, sizes: Sequence[int], seed: Sequence[int], window_rows: int) -> None:
        order = np.random.default_rng(seed).permutation(len(sizes))
        self.pieces: list[int] = order.tolist()
        # A lane gives its rows in order chunk by chunk, so that a chunk must have several.
        max_lanes = min(MAX_LANES, math.isqrt(window_rows))
        self.chunk_rows = window_rows // max_lanes
        ends = np.cumsum(np.asarray(sizes, np.int64)[order]) if len(sizes) else np.zeros(1, int)
        total = int(ends[-1])
        num_lanes = min(max(total // self.chunk_rows, 1), max_lanes)
        if total <= window_rows:
            self.chunk_rows = max(total, 1)
        self.cuts = _cuts(ends, num_lanes)

    def lanes(self, ranges: Sequence[Range], begin: int, seed: Sequence[int]) -> tuple[Lane, ...]:
        """Return the rows of one rank as lanes.

        Args:
            ranges: the rank's rows, in the order of the sequence.
            begin: place of the rank's first row in the sequence.
            seed: seed of the order of the rows in each lane.
        """
        inner = [cut for cut in self.cuts[1:-1] if cut > begin]
        number = len(self.cuts) - 2 - len(inner)
        lanes = []
        lane = []
        place = begin
        for part in ranges:
            start = part.start
            while inner and place + part.stop - start > inner[0]:
                middle = start + inner.pop(0) - place
                if start < middle:
                    lane.append(Range(part.piece, start, middle))
                place, start = place + middle - start, middle
                lanes.append((number, lane))
                number, lane = number + 1, []
            lane.append(Range(part.piece, start, part.stop))
            place += part.stop - start
        lanes.append((number, lane))
        return tuple(_lane(lane, _mixed_seed([*seed, number])) for number, lane in lanes if lane)

    def shuffled_pass(self, ranges: Sequence[Range], begin: int, seed: Sequence[int]) -> Pass:
        """Return the pass of one rank; the arguments are those of `lanes`."""
        chunk_bytes = WINDOW_BYTES // (len(self.cuts) - 1)
        return Pass(self.lanes(ranges, begin, seed), self.chunk_rows, chunk_bytes)


def _lane(ranges: Sequence[Range], seed: int) -> Lane:
    """Return a lane with its ranges in random order: many a lane is an end and a beginning."""
    order = np.random.default_rng(seed).permutation(len(ranges))
    return Lane(tuple(ranges[place] for place in order), seed)


def _mixed_seed(parts: Sequence[int]) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


def _cuts(ends: "np.ndarray[tuple[int], np.dtype[np.int64]]", num_lanes: int) -> list[int]:
    """Return where lanes begin, and the end of the last.

    Args:
        ends: the end of each piece in the sequence.
        num_lanes: number of lanes.
    """
    total = int(ends[-1])
    equal = np.arange(1, num_lanes) * total // num_lanes
    after = np.searchsorted(ends, equal)
    before = np.maximum(after - 1, 0)
    nearest = np.where(ends[after] - equal <= np.abs(equal - ends[before]), after, before)
    is_near = np.abs(ends[nearest] - equal) <= total / num_lanes * SNAP
    return [0, *np.where(is_near, ends[nearest], equal).tolist(), total]
