"""Runs anywhere (pure). The protocol of places that take the records of the inference log."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

__all__ = ["LogSink", "Record"]

# A record of the inference log, as a value for JSON.
Record = dict[str, Any]


class LogSink(ABC):
    """A place that takes records. One thread calls its methods, one after the other.

    Attributes:
        pause_s: seconds between two calls of `write`, which gather records.
        num_left_out: the number of records that the place can never take.
    """

    pause_s: float = 1.0
    num_left_out: int = 0

    @abstractmethod
    def write(self, records: Sequence[Record]) -> None:
        """Write records.

        Args:
            records: the records in their order, at least one. If a call fails, the next one has the
                same records.

        Raises:
            OSError: if the place does not take records now; they are kept.
        """

    def close(self) -> None:  # noqa: B027 Most places hold nothing.
        """Release what the place holds; no more records come."""
