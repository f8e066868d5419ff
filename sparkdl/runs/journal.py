"""Runs on the driver. The journal: what happened in a run, one JSON line per event.

It has one writer, the driver that owns the run. A driver that is killed may leave half a line at
the end; readers skip it, and the next writer starts on a new line.
"""

import json
import time
from typing import Any

from sparkdl import storage
from sparkdl.jsonl import read_lines

__all__ = ["Journal", "read_journal"]

Event = dict[str, Any]


def read_journal(url: str) -> list[Event]:
    """Return every whole event, oldest first; empty if there is no journal yet."""
    return read_lines(url)


class Journal:
    """Appends events to a journal file."""

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            size = storage.size(url)
            self._torn = size > 0 and storage.read(url, size - 1) != b"\n"
        except FileNotFoundError:
            self._torn = False

    def write(self, events: list[Event]) -> list[Event]:
        """Append `events`, each stamped with the time in seconds since the epoch; return them."""
        now = round(time.time(), 3)
        stamped = [{"time": now, **event} for event in events]
        lines = "".join(json.dumps(event) + "\n" for event in stamped)
        storage.append(self.url, ("\n" if self._torn else "").encode() + lines.encode())
        self._torn = False
        return stamped
