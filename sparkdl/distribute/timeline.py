"""Runs in the training process.

The timeline of a rank: a file that shows what its collectives did when.

It is in the JSON array form of Chrome's Trace Event Format, an event a line. It is added to as the
training goes, and its array is never closed, which that format allows.
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkdl.distribute.ring import CALLS, HEADER

__all__ = ["COLLECTIVE", "STEP", "Collective", "Recorder", "is_kept"]

# Categories of events.
STEP, COLLECTIVE = "step", "collective"
_TRACKS = ("steps", "ring")
_KINDS = ("collectives", "wait", "late", "send", "receive", "add", "beside")

# What a kill may take with it. A write costs some ten microseconds.
FLUSH_S = 0.5
# Shorter bars are not drawn: a megabyte that goes through a socket has many. All are counted.
SHORTEST_NS = 50_000


def is_kept(number: int) -> bool:
    """Whether what has this number is written: behind its first two digits are only zeros.

    However many there are, that is at most 100 of the first hundred, and 90 of each power of ten.

    Example:
        >>> [number for number in range(95, 130) if is_kept(number)]
        [95, 96, 97, 98, 99, 100, 110, 120]
    """
    unit: int = 10 ** max(0, len(str(number)) - 2)
    return number % unit == 0


@dataclass
class Collective:
    """A collective as one rank saw it. Times are those of `time.perf_counter_ns`.

    Attributes:
        header: what the ring says of it, see `ring.HEADER`.
        before: the rank that this one hears.
        begun, ended: when it did.
        heard: when the rank before had come too; None if it never had.
        beside: CPU nanoseconds of the process's other threads meanwhile.
        pieces: what was done from when to when: `wait`, `send`, `receive`, and within that `add`.
    """

    header: bytes
    before: int
    begun: int
    ended: int
    heard: int | None
    beside: int
    pieces: Sequence[tuple[str, int, int]]

    def spent(self) -> dict[str, int]:
        """Nanoseconds by what they were spent on.

        Of `wait`, those before the rank before had come are `late`; the rest is for ranks further
        away, or for what is on its way.
        """
        found = dict.fromkeys(_KINDS, 0)
        heard = self.ended if self.heard is None else self.heard
        for kind, begun, ended in self.pieces:
            found[kind] += ended - begun
            if kind == "wait" and ended <= heard:
                found["late"] += ended - begun
        found["receive"] -= found["add"]
        found["collectives"] = self.ended - self.begun
        # Several threads may have more of it than there was time.
        found["beside"] = min(max(0, self.beside), found["collectives"])
        return found


class Recorder:
    """Adds to the timeline of a rank.

    It has two tracks. One are the steps, each from the first reduction of its gradients to that of
    the next. The other is the ring: a bar for each collective, with `wait`, `send`, `receive` and
    `add` inside, and `compute` for what was between two. Of the steps, and of the collectives of
    one step, those are written that `is_kept` says; so the file stays small.

    Args:
        path: the file; one that is there is gone on with.
        rank, name: who this is, as a number and in words.
    """

    def __init__(self, path: Path, rank: int, name: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        # The last line of a process that was killed may be torn.
        whole = path.read_bytes().rfind(b"\n") + 1
        os.ftruncate(self._file, whole)
        self._lines = [] if whole else ["["]
        # Hosts share no other clock, and within a process it must not jump.
        self._origin = time.time_ns() - time.perf_counter_ns()
        self._rank, self._pid, self._lock = rank, os.getpid(), threading.Lock()
        self._step, self._begun, self._sums = -1, 0, dict.fromkeys(_KINDS, 0)
        self._count, self._last, self._hears = 0, 0, rank
        self._flushed = time.perf_counter()
        self._tell("process_name", 0, {"name": name})
        self._tell("process_sort_index", 0, {"sort_index": rank})
        for track, title in enumerate(_TRACKS):
            self._tell("thread_name", track, {"name": title})
        atexit.register(self.flush)
        self.flush()

    def step(self) -> None:
        """A step begins, and the one before has ended."""
        now = time.perf_counter_ns()
        with self._lock:
            if self._step >= 0 and is_kept(self._step):
                told = {"step": self._step, "waits_for": self._hears, **_milliseconds(self._sums)}
                self._bar(STEP, STEP, self._begun, now, told)
            self._step, self._begun, self._count = self._step + 1, now, 0
            self._sums = dict.fromkeys(_KINDS, 0)

    def collective(self, one: Collective) -> None:
        """A collective has ended, well or not."""
        with self._lock:
            spent = one.spent()
            for kind, ns in spent.items():
                self._sums[kind] += ns
            if is_kept(max(0, self._step)) and is_kept(self._count):
                self._draw(one, spent)
            self._count, self._last, self._hears = self._count + 1, one.ended, one.before
        if time.perf_counter() - self._flushed > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write what is not written yet. That it cannot be written does not end the training."""
        with self._lock:
            lines, self._lines = self._lines, []
            self._flushed = time.perf_counter()
            if self._file is None or not lines or os.getpid() != self._pid:
                return
            try:
                os.write(self._file, "".join(f"{line}\n" for line in lines).encode())
            except OSError as exc:
                print(f"sparkdl: the timeline ends here: {exc}", file=sys.stderr)
                self._file = None

    def _draw(self, one: Collective, spent: Mapping[str, int]) -> None:
        number, call, _, _, nbytes = HEADER.unpack_from(one.header)
        since = one.begun - self._last if self._last else 0
        if since:
            self._bar("compute", "compute", self._last, one.begun, {})
        told = {"number": number, "bytes": nbytes, "step": self._step, "waits_for": one.before}
        told |= {"since_ms": since / 1e6, **_milliseconds(spent)}
        self._bar(CALLS[call], COLLECTIVE, one.begun, one.ended, told)
        for kind, begun, ended in one.pieces:
            if ended - begun >= SHORTEST_NS:
                self._bar(kind, "piece", begun, ended, {})

    def _bar(self, name: str, kind: str, begun: int, ended: int, told: Mapping[str, Any]) -> None:
        """A complete event: it has its begin and its length, in whole microseconds."""
        ts, end = (self._origin + begun) // 1000, (self._origin + ended) // 1000
        track = _TRACKS.index("steps" if kind == STEP else "ring")
        # There are some hundred a step, and `json.dumps` of all that takes several times as long.
        self._lines.append(
            f'{{"name": "{name}", "cat": "{kind}", "ph": "X", "ts": {ts}, "dur": {end - ts}, '
            f'"pid": {self._rank}, "tid": {track}, "args": {json.dumps(told) if told else "{}"}}},'
        )

    def _tell(self, name: str, track: int, told: Mapping[str, Any]) -> None:
        """A metadata event."""
        event = {"name": name, "ph": "M", "pid": self._rank, "tid": track, "args": told}
        self._lines.append(json.dumps(event) + ",")


def _milliseconds(spent: Mapping[str, int]) -> dict[str, float]:
    return {f"{kind}_ms": ns / 1e6 for kind, ns in spent.items()}
