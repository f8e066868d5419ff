"""Runs in the training process. The files by which the ranks that divide rows talk."""

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from sparkdl import storage
from sparkdl.context import Context
from sparkdl.data.pace import Pace
from sparkdl.polling import Outages
from sparkdl.rank_files import RankFiles

__all__ = ["FIRST", "PeerFiles"]

# The rank that lists files and sums up counts for all ranks.
FIRST = 0

# A store may fail for so long before an operation fails.
PATIENCE_S = 120.0

_T = TypeVar("_T")


class PeerFiles:
    """The messages in the folder `ranks/<attempt>/` of the trial; a store may fail for a moment.

    Args:
        me: the context of the rank.
    """

    def __init__(self, me: Context) -> None:
        self._files = RankFiles(storage.join(me.url or me.folder or ".", "ranks", me.attempt))
        self._num_readers = me.num_readers
        self._outages = Outages("use the messages of the ranks")

    @property
    def url(self) -> str:
        """The folder."""
        return self._files.url

    def post(self, rank: int, topic: str, data: str | bytes) -> None:
        """Write the message of a rank."""
        self._persist(lambda: self._files.post(rank, topic, data))

    def read(self, ranks: Iterable[int], topic: str) -> dict[int, bytes]:
        """Return the messages of several ranks, those that exist, by one request for each rank."""
        wanted = list(ranks)
        return self._persist(lambda: self._files.read_all(wanted, topic))

    def ended(self, ranks: Iterable[int]) -> list[int]:
        """Return those of some ranks that have returned, by one request."""
        done = self._persist(lambda: self._files.look().ranks("done"))
        return sorted(done.intersection(ranks))

    def remove(self, rank: int, topic: str) -> None:
        """Remove a message that was read."""
        self._persist(lambda: storage.remove(self._files.of_rank(rank, topic)))

    def _persist(self, operation: Callable[[], _T]) -> _T:
        pace, began_s = Pace(self.url, self._num_readers), time.monotonic()
        results: list[_T] = []
        while True:
            with self._outages.tolerated():
                results.append(operation())
            if results:
                return results[0]
            if time.monotonic() - began_s > PATIENCE_S:
                return operation()
            time.sleep(pace.next_s())
