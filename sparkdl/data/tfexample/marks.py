"""Runs anywhere (pure). The index of a TFRecord file: the places where some records begin.

The format has no index: where a record begins follows from the lengths of all records before it.
Whoever reads or writes a whole file marks a record now and then, and a reader of some records then
begins at the mark before them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

# Marks of all files of a reader, which the first rank sends to the others: about a megabyte.
MAX_MARKS = 1 << 16
# A request takes as long as the transfer of some 100 KB.
MIN_DISTANCE_BYTES = 64 << 10


class Part(NamedTuple):
    """Consecutive records.

    Attributes:
        first: number of the first record.
        begin: position of the first record in the file.
        end: position of the end of the last record.
    """

    first: int
    begin: int
    end: int


@dataclass
class Marks:
    """The marked records of one file.

    Args:
        distance: bytes between two marks, at least.
        max_marks: the distance is doubled when there are more marks than this.

    Attributes:
        rows: numbers of the marked records; the first is always marked.
        offsets: where they begin.
        rows_seen: number of all records so far.
        end: where the last of them ends.

    Example:
        >>> marks = Marks(distance=100)
        >>> marks.add([60, 120, 180, 240])
        >>> marks.rows, marks.offsets
        ([0, 2, 4], [0, 120, 240])
        >>> marks.around(2, 3, 300)
        Part(first=2, begin=120, end=240)
        >>> marks.around(3, 5, 300)
        Part(first=2, begin=120, end=300)
    """

    distance: int = MIN_DISTANCE_BYTES
    max_marks: int = MAX_MARKS
    rows: list[int] = field(default_factory=lambda: [0])
    offsets: list[int] = field(default_factory=lambda: [0])
    rows_seen: int = 0
    end: int = 0

    def add(self, ends: Iterable[int]) -> None:
        """Mark records, one after the other.

        Args:
            ends: where each of the next records ends, and the record after it begins.
        """
        due = self.offsets[-1] + self.distance
        for number, end in enumerate(ends, self.rows_seen + 1):
            self.rows_seen, self.end = number, end
            if end >= due:
                self.rows.append(number)
                self.offsets.append(end)
                if len(self.rows) > self.max_marks:
                    self.thin(2 * self.distance)
                due = self.offsets[-1] + self.distance

    def thin(self, distance: int) -> None:
        """Keep those marks that are at least `distance` bytes apart."""
        self.distance = distance
        places = [0]
        for place, offset in enumerate(self.offsets):
            if offset - self.offsets[places[-1]] >= distance:
                places.append(place)
        self.rows = [self.rows[place] for place in places]
        self.offsets = [self.offsets[place] for place in places]

    def around(self, start: int, stop: int, size: int) -> Part:
        """Return the smallest part between two marks that has records `start <= i < stop`.

        Args:
            start, stop: numbers of the first record, and of the one after the last.
            size: size of the file in bytes.
        """
        before = bisect_right(self.rows, start) - 1
        after = bisect_left(self.rows, stop, lo=before + 1)
        end = self.offsets[after] if after < len(self.offsets) else size
        return Part(self.rows[before], self.offsets[before], end)


def distance_for(num_bytes: int) -> int:
    """Return the bytes between two marks in files of `num_bytes` bytes together."""
    return max(MIN_DISTANCE_BYTES, num_bytes // MAX_MARKS)
