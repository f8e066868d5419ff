"""Runs anywhere (pure). The seconds between the looks of many ranks at one place."""

import random

from sparkdl.files import storage
from sparkdl.files.polling import poll_s

LOCAL_POLL_S = 0.1
MAX_POLL_S = 20.0

# Looks per second of all ranks together, at a mounted disk and at a store, which counts requests.
# A look is at most three requests.
MAX_LOCAL_LOOKS_PER_S = 100.0
MAX_LOOKS_PER_S = 15.0


class Pace:
    """The delays of one rank, which grow while nothing changes.

    The more ranks look at a place, the less often each of them does, at times that differ from
    rank to rank. A place is so asked equally often by 2 and by 200 ranks.

    Args:
        url: the place.
        num_ranks: number of ranks that look at it.

    Example:
        >>> 13 <= Pace("s3://bucket/runs/a", 200).next_s() <= 17
        True
        >>> Pace("/runs/a", 2).next_s() <= 0.2
        True
    """

    def __init__(self, url: str, num_ranks: int) -> None:
        is_local = storage.is_local(url)
        self._spread_s = num_ranks / (MAX_LOCAL_LOOKS_PER_S if is_local else MAX_LOOKS_PER_S)
        least_s = max(poll_s(url, local_s=LOCAL_POLL_S), self._spread_s)
        self._least_s, self._most_s = least_s, max(least_s, min(3 * least_s, MAX_POLL_S))
        self._current_s = least_s
        # The state of the module `random` belongs to the user, whose seed must have its effect.
        self._random = random.Random()

    def first_s(self) -> float:
        """Return the seconds until the first look: ranks that start together look one by one."""
        return self._random.uniform(0, self._spread_s)

    def next_s(self, has_changed: bool = False) -> float:
        """Return the seconds until the next look.

        Args:
            has_changed: the last look found something new.
        """
        if has_changed:
            self._current_s = self._least_s
        delay_s, self._current_s = self._current_s, min(1.5 * self._current_s, self._most_s)
        return delay_s * self._random.uniform(1, 1.25)
