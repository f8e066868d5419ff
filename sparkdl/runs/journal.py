"""Runs on the driver. The journal of a run: one JSON line per event.

A journal has one writer, the driver that owns the run. A driver that is killed may leave half a
line at the end; readers skip that line, and the next writer starts on a new line.
"""

import dataclasses
import json
import time
from collections.abc import Sequence

from sparkdl import storage
from sparkdl.jsonl import read_lines
from sparkdl.runs.events import Event, EventKind, event_from_dict

__all__ = ["Journal", "read_journal"]


def read_journal(url: str) -> list[Event]:
    """Return every whole event, oldest first; empty if there is no journal yet.

    Events of an unknown kind are left out, as a later version of sparkdl may write more kinds.
    """
    kinds = {str(kind) for kind in EventKind}
    return [event_from_dict(line) for line in read_lines(url) if line["event"] in kinds]


class Journal:
    """Append events to a journal file.

    Args:
        url: the file, which need not exist yet.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            size = storage.size(url)
            self._is_torn = size > 0 and storage.read(url, size - 1) != b"\n"
        except FileNotFoundError:
            self._is_torn = False

    def write(self, events: Sequence[Event]) -> list[Event]:
        """Append events, and return them with the time at which they were written."""
        now = round(time.time(), 3)
        stamped = [
            event if event.time is not None else dataclasses.replace(event, time=now)
            for event in events
        ]
        lines = "".join(json.dumps(event.to_dict()) + "\n" for event in stamped)
        storage.append(self.url, ("\n" if self._is_torn else "").encode() + lines.encode())
        self._is_torn = False
        return stamped
