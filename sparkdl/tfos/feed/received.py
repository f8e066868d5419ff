"""Runs in the training process. The chunks of a partition that a node has received.

Spark repeats a task that has failed, and computes the rows of its partition again. Behind a
shuffle they may come in another order, so that rows are recognised by their content: by the hash
of a whole chunk, which costs less than reading it. In the same order the rows come in the same
chunks. In another order, a chunk with known rows is not recognised, and these rows are used again.
"""

from collections import Counter


def hash_of(body: "bytes | bytearray") -> int:
    """Return the hash of a chunk, which other processes do not know.

    Example:
        >>> hash_of(b"rows") == hash_of(bytearray(b"rows"))
        True
    """
    return hash(bytes(body))


class Received:
    """The chunks that all attempts at a partition have fed.

    Attributes:
        num_rows: number of rows in the chunks.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._sizes: dict[int, int] = {}
        self.num_rows = 0

    def add(self, chunk_hash: int, num_rows: int) -> None:
        """Add a chunk."""
        self._counts[chunk_hash] += 1
        self._sizes[chunk_hash] = num_rows
        self.num_rows += num_rows

    def repeat(self) -> "Repeat":
        """Return the chunks as those that another attempt feeds again."""
        return Repeat(self._counts.copy(), self._sizes)


class Repeat:
    """The chunks of earlier attempts that an attempt has not fed again yet.

    Args:
        counts: how often each chunk was received, by hash.
        sizes: number of rows of each chunk.

    Example:
        >>> received = Received()
        >>> received.add(hash_of(b"a"), 2)
        >>> received.add(hash_of(b"b"), 3)
        >>> repeat = received.repeat()
        >>> [repeat.take_once(hash_of(body)) for body in (b"a", b"a", b"c")]
        [True, False, False]
        >>> repeat.num_missing
        3
    """

    def __init__(self, counts: Counter[int], sizes: dict[int, int]) -> None:
        self._counts = counts
        self._sizes = sizes

    def take_once(self, chunk_hash: int) -> bool:
        """Return True if a chunk is one of these, once for each time that it was received."""
        if not self._counts[chunk_hash]:
            return False
        self._counts[chunk_hash] -= 1
        return True

    @property
    def num_missing(self) -> int:
        """The number of rows in the chunks that were not fed again."""
        return sum(count * self._sizes[chunk] for chunk, count in self._counts.items())
