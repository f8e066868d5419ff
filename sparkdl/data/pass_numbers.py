"""Runs anywhere (pure). Count the passes over a dataset, from any number on."""

import threading


class PassNumbers:
    """The numbers of the passes over a dataset: 0, 1, 2, and so on.

    Attributes:
        upcoming: the number of the next pass; it may be set, to go on from there.

    Example:
        >>> numbers = PassNumbers()
        >>> numbers.take(), numbers.take()
        (0, 1)
    """

    def __init__(self) -> None:
        self.upcoming = 0
        self._lock = threading.Lock()  # TensorFlow begins passes in threads of its own.

    def begin(self, epochs: int) -> None:
        """Begin an iteration of several passes; the one before it counts as complete.

        An iterator that is left near the end of a pass may have begun the next one, to read ahead.
        So the number of passes that were begun depends on timing, and would differ between ranks.

        Args:
            epochs: number of passes of each iteration.

        Example:
            >>> numbers = PassNumbers()
            >>> numbers.begin(3)
            >>> numbers.take()
            0
            >>> numbers.begin(3)
            >>> numbers.take()
            3
        """
        with self._lock:
            self.upcoming = -(-self.upcoming // epochs) * epochs

    def take(self) -> int:
        """Return the number of the next pass, and count the pass."""
        with self._lock:
            number = self.upcoming
            self.upcoming += 1
        return number
