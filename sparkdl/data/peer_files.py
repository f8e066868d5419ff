"""Runs in the training process. The files by which the ranks that divide rows talk."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from sparkdl import storage
from sparkdl.context import Context
from sparkdl.polling import retry
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

    @property
    def url(self) -> str:
        """The folder."""
        return self._files.url

    def post(self, rank: int, topic: str, data: str | bytes) -> None:
        """Write the message of a rank."""
        _persist(lambda: self._files.post(rank, topic, data))

    def read(self, ranks: Iterable[int], topic: str) -> dict[int, bytes]:
        """Return the messages of several ranks, those that exist, by one request for each rank."""
        wanted = list(ranks)
        return _persist(lambda: self._files.read_all(wanted, topic))

    def ended(self, ranks: Iterable[int]) -> list[int]:
        """Return those of some ranks that have returned, by one request."""
        done = _persist(lambda: self._files.look().ranks("done"))
        return sorted(done.intersection(ranks))

    def remove(self, rank: int, topic: str) -> None:
        """Remove a message that was read."""
        _persist(lambda: storage.remove(self._files.of_rank(rank, topic)))


def _persist(operation: Callable[[], _T]) -> _T:
    return retry(operation, "use the messages of the ranks", PATIENCE_S)
