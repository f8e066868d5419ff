"""Runs in the training process. Write the timeline of a rank: a trace of its collectives.

The file is in the JSON array form of Chrome's Trace Event Format, with one event per line. Events
are appended during the training, and the array is never closed, which that format allows.
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import atexit
import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkdl.distribute.call_header import CALLS, HEADER
from sparkdl.files.local_files import write_fully

# Categories of events.
STEP, COLLECTIVE = "step", "collective"
_TRACKS = ("steps", "ring")
_KINDS = ("collectives", "wait", "late", "send", "receive", "add", "beside")

# At most the events of this many seconds are lost when the process is killed. A write takes some
# ten microseconds.
FLUSH_S = 0.5
# Shorter pieces are counted but not drawn: a megabyte passes through a socket in many pieces.
MIN_DRAWN_NS = 50_000

_logger = logging.getLogger("sparkdl.distribute")


def is_written(number: int) -> bool:
    """Return True if all digits of a number after its first two are zeros.

    Steps and collectives with such numbers are written. However long a training is, these are at
    most 100 of the first hundred, and 90 of each further power of ten.

    Args:
        number: number of a step, or of a collective within a step, from 0.

    Example:
        >>> [number for number in range(95, 130) if is_written(number)]
        [95, 96, 97, 98, 99, 100, 110, 120]
    """
    unit: int = 10 ** max(0, len(str(number)) - 2)
    return number % unit == 0


@dataclass(kw_only=True)
class Collective:
    """A collective as one rank observed it, with times of `time.perf_counter_ns`.

    Attributes:
        header: description of the collective, see `call_header.HEADER`.
        predecessor: the rank that this rank receives from.
        begin_ns: time when the collective began.
        end_ns: time when the collective ended.
        first_arrival_ns: time when the first block of the predecessor was complete; None if none
            was.
        other_threads_ns: CPU nanoseconds of the process's other threads during the collective.
        pieces: kind, begin and end of each piece of work: `wait`, `send`, `receive`, and `add`
            within `receive`.
    """

    header: bytes
    predecessor: int
    begin_ns: int
    end_ns: int
    first_arrival_ns: int | None
    other_threads_ns: int
    pieces: Sequence[tuple[str, int, int]]

    def spent_ns(self) -> dict[str, int]:
        """Return the nanoseconds spent on each kind of work.

        The part of `wait` until the first block of the predecessor arrived is counted as `late`
        too; the rest of `wait` is for ranks further away, or for blocks on their way.
        """
        spent = dict.fromkeys(_KINDS, 0)
        first_arrival_ns = self.end_ns if self.first_arrival_ns is None else self.first_arrival_ns
        for kind, begin_ns, end_ns in self.pieces:
            spent[kind] += end_ns - begin_ns
            if kind == "wait" and end_ns <= first_arrival_ns:
                spent["late"] += end_ns - begin_ns
        spent["receive"] -= spent["add"]
        spent["collectives"] = self.end_ns - self.begin_ns
        # Several threads together may have used more CPU time than has elapsed.
        spent["beside"] = min(max(0, self.other_threads_ns), spent["collectives"])
        return spent


class Recorder:
    """Appends to the timeline of a rank.

    The timeline has two tracks. The first shows the steps, each from the first reduction of its
    gradients to that of the next step. The second shows the ring: a bar for each collective, with
    `wait`, `send`, `receive` and `add` inside, and `compute` for the time between two collectives.
    A collective in rounds has a bar for each round. Only steps, and collectives within a step,
    whose number satisfies `is_written` are written, so that the file stays small.

    Args:
        path: the file; an existing file is continued.
        rank: the rank of this process.
        name: title of the rank's tracks.
    """

    def __init__(self, path: Path, rank: int, name: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        # A process that was killed may have left an incomplete last line.
        complete_bytes = path.read_bytes().rfind(b"\n") + 1
        os.ftruncate(self._file, complete_bytes)
        self._lines = [] if complete_bytes else ["["]
        # Hosts share only the wall clock; within a process, times must not jump as it may.
        self._origin_ns = time.time_ns() - time.perf_counter_ns()
        self._rank = rank
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._step = -1
        self._step_begin_ns = 0
        self._step_spent_ns = dict.fromkeys(_KINDS, 0)
        self._num_collectives = 0
        self._last_end_ns = 0
        self._last_number = -1
        # How long the ranks that this rank receives from were late in this step.
        self._late_ns = Counter[int]()
        self._flushed_s = time.perf_counter()
        self._add_metadata("process_name", 0, {"name": name})
        self._add_metadata("process_sort_index", 0, {"sort_index": rank})
        for track, title in enumerate(_TRACKS):
            self._add_metadata("thread_name", track, {"name": title})
        atexit.register(self.flush)
        self.flush()

    def step(self) -> None:
        """Record that a step begins, and that the previous step has ended."""
        now_ns = time.perf_counter_ns()
        with self._lock:
            if self._step >= 0 and is_written(self._step):
                details = {
                    "step": self._step,
                    "waits_for": max(
                        self._late_ns, key=self._late_ns.__getitem__, default=self._rank
                    ),
                    **_milliseconds(self._step_spent_ns),
                }
                self._add_bar(STEP, STEP, self._step_begin_ns, now_ns, details)
            self._step += 1
            self._step_begin_ns = now_ns
            self._step_spent_ns = dict.fromkeys(_KINDS, 0)
            self._num_collectives = 0
            self._late_ns = Counter()
            self._last_number = -1

    def collective(self, collective: Collective) -> None:
        """Record a collective that has ended, with or without a failure."""
        with self._lock:
            spent_ns = collective.spent_ns()
            number = HEADER.unpack_from(collective.header)[0]
            if number == self._last_number:  # A later round: the ranks have arrived before.
                spent_ns["late"] = 0
            self._last_number = number
            for kind, ns in spent_ns.items():
                self._step_spent_ns[kind] += ns
            if is_written(max(0, self._step)) and is_written(self._num_collectives):
                self._draw(collective, spent_ns)
            self._num_collectives += 1
            self._last_end_ns = collective.end_ns
            self._late_ns[collective.predecessor] += spent_ns["late"]
        if time.perf_counter() - self._flushed_s > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write the events recorded since the last flush. A failed write ends only the timeline."""
        with self._lock:
            lines = self._lines
            self._lines = []
            self._flushed_s = time.perf_counter()
            if self._file is None or not lines or os.getpid() != self._pid:
                return
            try:
                write_fully(self._file, "".join(f"{line}\n" for line in lines).encode())
            except OSError as exc:
                _logger.warning("the timeline ends here: %s", exc)
                self._file = None

    def close(self) -> None:
        """Write the remaining events, and close the file."""
        self.flush()
        atexit.unregister(self.flush)
        with self._lock:
            if self._file is not None:
                os.close(self._file)
            self._file = None

    def _draw(self, collective: Collective, spent_ns: Mapping[str, int]) -> None:
        number, call, _, _, nbytes, _ = HEADER.unpack_from(collective.header)
        begin_ns, end_ns = collective.begin_ns, collective.end_ns
        since_ns = begin_ns - self._last_end_ns if self._last_end_ns else 0
        if since_ns:
            self._add_bar("compute", "compute", self._last_end_ns, begin_ns, {})
        details = {
            "number": number,
            "bytes": nbytes,
            "step": self._step,
            "waits_for": collective.predecessor,
            "since_ms": since_ns / 1e6,
            **_milliseconds(spent_ns),
        }
        self._add_bar(CALLS[call], COLLECTIVE, begin_ns, end_ns, details)
        for kind, piece_begin_ns, piece_end_ns in collective.pieces:
            if piece_end_ns - piece_begin_ns >= MIN_DRAWN_NS:
                self._add_bar(kind, "piece", piece_begin_ns, piece_end_ns, {})

    def _add_bar(
        self, name: str, category: str, begin_ns: int, end_ns: int, details: Mapping[str, Any]
    ) -> None:
        """Add a complete event, with its begin and its length in whole microseconds."""
        begin_us = (self._origin_ns + begin_ns) // 1000
        end_us = (self._origin_ns + end_ns) // 1000
        track = _TRACKS.index("steps" if category == STEP else "ring")
        args = json.dumps(details) if details else "{}"
        # A step has some hundred bars, and `json.dumps` of a whole event takes several times as
        # long.
        self._lines.append(
            f'{{"name": "{name}", "cat": "{category}", "ph": "X", "ts": {begin_us}, '
            f'"dur": {end_us - begin_us}, "pid": {self._rank}, "tid": {track}, "args": {args}}},'
        )

    def _add_metadata(self, name: str, track: int, details: Mapping[str, Any]) -> None:
        """Add a metadata event."""
        event = {"name": name, "ph": "M", "pid": self._rank, "tid": track, "args": details}
        self._lines.append(json.dumps(event) + ",")


def _milliseconds(spent_ns: Mapping[str, int]) -> dict[str, float]:
    return {f"{kind}_ms": ns / 1e6 for kind, ns in spent_ns.items()}
