"""Runs in a Spark task. Leave out events that are there twice, and requests that were refused."""

from collections.abc import Iterator
from typing import Any

from sparkdl.request_logs.log_forms import Event

__all__ = ["HeldRequests"]

# Requests that wait for their answers, and answers with an error that wait for their requests.
MAX_HELD = 10_000
# Events that are remembered, to recognise those that are sent again.
MAX_SEEN = 100_000

# An event, and its values by feature.
_Read = tuple[Event, dict[str, list[Any]]]


class HeldRequests:
    """The requests of a partition whose answers have not been read.

    In a log with two events for a request, a request that was answered with an error was not
    served. Only the answer tells: its request is held until then. A request without an answer
    counts, as some loggers log requests only.

    An event with the id and the time of an earlier one is the same event, which a logger has
    sent again.
    """

    def __init__(self) -> None:
        self._seen: dict[int, None] = {}
        self._held: dict[str, _Read] = {}
        self._refused: dict[str, None] = {}

    def served(self, event: Event, rows: dict[str, list[Any]]) -> Iterator[_Read]:
        """Yield the events that are known to be served after an event was read.

        Args:
            event: the event.
            rows: its values by feature; none if the event is left out.
        """
        sides = event.inputs is None, event.outputs is None
        key = hash((event.id, event.time_ms, event.version, sides))
        if event.id and key in self._seen:
            return
        self._seen[key] = None
        if len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]
        if event.inputs is not None and event.outputs is not None:
            yield from [(event, rows)] if rows else []
        elif event.outputs is None:
            yield from self._request(event, rows)
        else:
            request = self._held.pop(event.id, None)
            if event.is_refused and request is None:
                self._refused[event.id] = None
                if len(self._refused) > MAX_HELD:
                    del self._refused[next(iter(self._refused))]
            elif not event.is_refused:
                yield from [request] if request else []
                yield from [(event, rows)] if rows else []

    def _request(self, event: Event, rows: dict[str, list[Any]]) -> Iterator[_Read]:
        if event.id in self._refused:
            del self._refused[event.id]
        elif rows:
            if (earlier := self._held.pop(event.id, None)) is not None:
                yield earlier
            self._held[event.id] = event, rows
            if len(self._held) > MAX_HELD:
                yield self._held.pop(next(iter(self._held)))

    def rest(self) -> Iterator[_Read]:
        """Yield the requests whose answers are not in the partition."""
        yield from self._held.values()
