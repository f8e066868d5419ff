"""Runs in the training process. Let all ranks of a gang stop at the same step.

The ranks ask before each step, and one of them may learn earlier than another that the gang stops.
They talk through files of the run, as collectives belong to the program:

1. The driver gives the order `stop`, which rank 0 finds.
2. If all ranks ask, rank 0 gives the order `hold`. Each rank posts the number of its last question,
   and its next one waits.
3. Rank 0 posts the question after the last of all, which no rank has asked yet. From that one on,
   all get the answer True.

A thread of each rank does this, so that a rank that waits in a collective takes part.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence

from sparkdl.files.polling import Outages
from sparkdl.files.rank_files import RankFiles

# Orders and messages in the folder of the attempt.
STOP, HOLD = "stop", "hold"
ASKS, LAST, FROM = "asks", "last-question", "stops-from"
# While the ranks hold, no rank trains.
HOLDING_POLL_S = 0.02


class JointStop:
    """Answers the questions of one rank.

    Args:
        files: the folder of the attempt.
        rank, size: this rank, and the number of ranks. All ask at the same steps.

    Attributes:
        has_stopped: the last answer.
    """

    def __init__(self, files: RankFiles, rank: int, size: int) -> None:
        self._files, self._rank, self._size = files, rank, size
        self._changed = threading.Condition()
        self._num_asked = 0
        self._is_held = False
        self._first = math.inf
        self.has_stopped = False
        self._outages = Outages("agree with the other ranks on a stop")
        threading.Thread(target=self._agree, name="joint-stop", daemon=True).start()

    def ask(self) -> bool:
        """Return True from the question on at which all ranks stop."""
        with self._changed:
            while self._is_held:
                self._changed.wait()
            self._num_asked += 1
            self.has_stopped = self._num_asked >= self._first
            return self.has_stopped

    def _agree(self) -> None:
        self._until(lambda: self._tell(ASKS, ""))
        if self._rank == 0:
            self._until(lambda: self._files.has_ordered(STOP))
            self._until(lambda: self._all(ASKS) is not None)
            self._until(lambda: self._give(HOLD))
        else:
            self._until(lambda: self._files.has_ordered(HOLD))
        with self._changed:
            self._is_held = True
        self._until(lambda: self._tell(LAST, f"{self._num_asked}"))
        if self._rank == 0:
            self._until(self._decide)
        self._until(self._learn)

    def _decide(self) -> bool:
        """Post the first question with the answer True, once each rank has told its last one."""
        last = self._all(LAST)
        return last is not None and self._tell(FROM, f"{max(map(float, last)) + 1}")

    def _learn(self) -> bool:
        has_ended = self._has_ended(0)  # It decides before it ends.
        decided = self._read(0, FROM)
        if decided is None and not has_ended:
            return False
        with self._changed:
            self._first = math.inf if decided is None else float(decided)
            self._is_held = False
            self._changed.notify_all()
        return True

    def _all(self, topic: str) -> Sequence[str] | None:
        """Return the messages of all ranks; None if one is missing. One that has ended asks none.

        The others cannot stop with it, so that they never stop.
        """
        found = []
        for rank in range(self._size):
            has_ended = self._has_ended(rank)
            message = self._read(rank, topic)
            if message is None and not has_ended:
                return None
            found.append("inf" if message is None else message)
        return found

    def _has_ended(self, rank: int) -> bool:
        return any(self._files.has_posted(rank, topic) for topic in ("done", "failed"))

    def _read(self, rank: int, topic: str) -> str | None:
        try:
            return self._files.read(rank, topic).decode()
        except FileNotFoundError:
            return None

    def _tell(self, topic: str, message: str) -> bool:
        self._files.post(self._rank, topic, message)
        return True

    def _give(self, order: str) -> bool:
        self._files.order(order)
        return True

    def _until(self, is_done: Callable[[], bool]) -> None:
        """Call a function until it returns True, also while the store fails."""
        while True:
            with self._outages.tolerated():
                if is_done():
                    return
            poll_s = (HOLDING_POLL_S,) if self._is_held else ()
            time.sleep(self._files.poll_s(self._size, *poll_s))
