"""Runs in a Spark task. Leave out events that are there twice, and requests that were refused."""

from collections.abc import Iterator
from typing import Any

from sparkdl.monitoring.logs.log_forms import Event

# Requests that wait for their answers, and answers that wait for their requests.
MAX_HELD = 10_000
# Events that are remembered, to recognise those that are sent again.
MAX_SEEN = 100_000

# An event, and its values by feature.
Read = tuple[Event, dict[str, list[Any]]]
# What a request and its answer have in common.
_Key = tuple[str, str, str, int | None, str]


class HeldRequests:
    """The requests and answers of a partition whose other half has not been read.

    In a log with two events for a request, a request that was answered with an error was not
    served. Only the answer tells: its request is held until then. A request without an answer
    counts, as some loggers log requests only. A request that is sent again with the same id after
    an error has an answer of its own, and counts if that one is no error.

    An event with the id and the time of an earlier one is the same event, which a logger has
    sent again. Events of other models and versions may have the same ids.
    """

    def __init__(self) -> None:
        self._event_ids: dict[int, None] = {}
        self._requests: dict[_Key, Read] = {}
        self._answers: dict[_Key, Read] = {}
        self._refused_keys: dict[_Key, None] = {}

    def served(self, event: Event, rows: dict[str, list[Any]]) -> Iterator[list[Read]]:
        """Yield the events that are known to be served after an event was read.

        Args:
            event: the event.
            rows: its values by feature; none if the event is left out.

        Yields:
            An event, or a request and its answer.
        """
        if self._is_repeated(event):
            return
        if event.inputs is not None and event.outputs is not None:
            reads = [(event, rows)]
        elif event.outputs is None:
            reads = self._with_answer(event, rows)
        else:
            reads = self._with_request(event, rows)
        if with_rows := [read for read in reads if read[1]]:
            yield with_rows
        for events in (self._requests, self._answers):
            if len(events) > MAX_HELD:
                yield [events.pop(next(iter(events)))]

    def unpaired(self) -> Iterator[list[Read]]:
        """Yield the requests and answers whose other half is not in the partition."""
        for events in (self._requests, self._answers):
            yield from ([read] for read in events.values())

    def _is_repeated(self, event: Event) -> bool:
        sides = event.inputs is None, event.outputs is None, event.is_refused
        key = hash((*_key(event), event.time_ms, sides))
        if event.id and key in self._event_ids:
            return True
        self._event_ids[key] = None
        if len(self._event_ids) > MAX_SEEN:
            del self._event_ids[next(iter(self._event_ids))]
        return False

    def _with_answer(self, event: Event, rows: dict[str, list[Any]]) -> list[Read]:
        """Return a request and its answer; nothing if the answer is an error, or is not there."""
        key = _key(event)
        if key in self._answers:
            return [(event, rows), self._answers.pop(key)]
        if key in self._refused_keys:
            del self._refused_keys[key]
            return []
        return _pair(self._requests, key, (event, rows))

    def _with_request(self, event: Event, rows: dict[str, list[Any]]) -> list[Read]:
        """Return an answer and its request; nothing if it is an error, or has no request yet."""
        key = _key(event)
        request = self._requests.pop(key, None)
        if event.is_refused:
            if request is None:
                self._refused_keys[key] = None
                if len(self._refused_keys) > MAX_HELD:
                    del self._refused_keys[next(iter(self._refused_keys))]
            return []
        if request is not None:
            return [request, (event, rows)]
        return _pair(self._answers, key, (event, rows))


def _pair(events: dict[_Key, Read], key: _Key, read: Read) -> list[Read]:
    """Hold an event that has values; return the one with the same key that was held before."""
    if not read[1]:
        return []
    earlier = events.pop(key, None)
    events[key] = read
    return [earlier] if earlier else []


def _key(event: Event) -> _Key:
    return event.model, event.service, event.component, event.version, event.id
