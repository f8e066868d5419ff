"""Runs anywhere (pure). Count the passes over a dataset, from any number on."""

__all__ = ["PassNumbers"]


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

    def take(self) -> int:
        """Return the number of the next pass, and count the pass."""
        number = self.upcoming
        self.upcoming += 1
        return number
