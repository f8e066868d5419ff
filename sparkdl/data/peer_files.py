"""Runs in the training process. The files by which the ranks that divide rows talk."""

import itertools
import logging
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from sparkdl.context import Context
from sparkdl.data.pace import Pace
from sparkdl.files import storage
from sparkdl.files.layout import TrialPaths
from sparkdl.files.polling import retry
from sparkdl.files.rank_files import RankFiles

# The rank that lists files and sums up counts for all ranks.
FIRST = 0

# A store may fail for so long before an operation fails.
PATIENCE_S = 120.0
REMIND_S = 60.0
# Ranks that have ended are looked for less often than messages.
LOOKS_PER_CHECK = 4

_T = TypeVar("_T")

_logger = logging.getLogger("sparkdl.data")


class PeerFiles:
    """The messages in the folder `ranks/<attempt>/` of the trial; a store may fail for a moment.

    Args:
        me: the context of the rank.
    """

    def __init__(self, me: Context) -> None:
        self._files = RankFiles(TrialPaths(me.url or me.folder or ".").ranks(me.attempt))
        self._num_readers = me.num_readers

    @property
    def url(self) -> str:
        """The folder."""
        return self._files.url

    def post(self, rank: int, topic: str, data: str | bytes) -> None:
        """Write the message of a rank."""
        _persist(lambda: self._files.post(rank, topic, data))

    def read(self, ranks: Iterable[int], topic: str) -> dict[int, bytes]:
        """Return the messages of several ranks, those that exist, by one request for each rank."""
        rank_list = list(ranks)
        return _persist(lambda: self._files.read_all(rank_list, topic))

    def wait_for(
        self,
        ranks: Iterable[int],
        topic: str,
        rank: int,
        purpose: str,
        timeout_s: float | None = None,
    ) -> dict[int, bytes]:
        """Return the messages of several ranks, once all have posted theirs.

        Args:
            ranks: the ranks.
            topic: the topic of the messages.
            rank: the rank that waits.
            purpose: the purpose of the message: "to give rows".
            timeout_s: maximum seconds; None for no limit.

        Raises:
            RuntimeError: if a rank returned without posting its message.
            TimeoutError: if a rank has not posted its message in time.
        """
        messages: dict[int, bytes] = {}
        begun_s = reminded_s = time.monotonic()
        missing = set(ranks)
        pace = Pace(self.url, self._num_readers)
        for look in itertools.count(rank):  # Not all ranks look for the end at once.
            returned_ranks = self.returned_ranks(missing) if look % LOOKS_PER_CHECK == 0 else []
            messages |= self.read(sorted(missing), topic)
            missing -= set(messages)
            if not missing:
                break
            if lost := sorted(missing.intersection(returned_ranks)):
                raise RuntimeError(
                    f"rank {rank} waits for rank {lost[0]} {purpose}, which has returned. Every "
                    "rank must make the same calls, and take the same number of batches."
                )
            if timeout_s is not None and time.monotonic() - begun_s > timeout_s:
                raise TimeoutError(
                    f"rank {rank} has waited {timeout_s:g} s for ranks {sorted(missing)} "
                    f"{purpose}. Every rank must make the same calls."
                )
            if time.monotonic() - reminded_s > REMIND_S:
                reminded_s = time.monotonic()
                _logger.warning("rank %d waits for ranks %s %s", rank, sorted(missing), purpose)
            time.sleep(pace.next_s())
        return messages

    def returned_ranks(self, ranks: Iterable[int]) -> list[int]:
        """Return those of some ranks that have returned, by one request."""
        returned = _persist(lambda: self._files.look().ranks("done"))
        return sorted(returned.intersection(ranks))

    def remove(self, rank: int, topic: str) -> None:
        """Remove a message that was read."""
        _persist(lambda: storage.remove(self._files.of_rank(rank, topic)))


def _persist(operation: Callable[[], _T]) -> _T:
    return retry(operation, "use the messages of the ranks", PATIENCE_S)
