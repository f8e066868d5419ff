"""Runs in the training process.

The links of a ring and the begin of a step, where a timeline is written.

Without one, the links and functions are those that they would be anyway: nothing is timed.
"""

import functools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from sparkdl import context
from sparkdl.distribute.links import Link, Links
from sparkdl.distribute.ring import HEADER
from sparkdl.distribute.timeline import Collective, Recorder
from sparkdl.reporter import TIMELINE

__all__ = ["TimedLinks", "begins_step", "make_links", "recording"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Value = TypeVar("_Value")


class TimedLinks(Links):
    """Links that record where the time of each collective goes.

    Args:
        before, after, timeout_s: see `Links`.
        recorder: of this rank.
    """

    def __init__(self, before: Link, after: Link, timeout_s: float, recorder: Recorder) -> None:
        super().__init__(before, after, timeout_s)
        self._hears, self._recorder = before.rank, recorder
        self._pieces: list[tuple[str, int, int]] = []

    def exchange(
        self,
        sends: Sequence[Any],
        receives: Sequence[Any],
        ready: int,
        arrived: Callable[[int], None],
        lag: int = 0,
    ) -> None:
        """See `Links.exchange`."""
        heard: int | None = None

        def added(number: int) -> None:
            nonlocal heard
            begun = time.perf_counter_ns()
            heard = heard or begun
            arrived(number)
            self._pieces.append(("add", begun, time.perf_counter_ns()))

        failed, self._pieces = True, []
        begun, others = time.perf_counter_ns(), _others()
        try:
            super().exchange(sends, receives, ready, added, lag)
            failed = False
        finally:
            # What a rank sends first begins with the header.
            header, ended, beside = sends[0][: HEADER.size], time.perf_counter_ns(), _others()
            self._recorder.collective(
                Collective(header, self._hears, begun, ended, heard, beside - others, self._pieces)
            )
            if failed:  # This process may soon be ended.
                self._recorder.flush()

    def _send(self, *args: Any) -> bool:
        return self._timed("send", super()._send, *args)

    def _receive(self, *args: Any) -> bool:
        return self._timed("receive", super()._receive, *args)

    def _wait(self, *args: Any) -> None:
        self._timed("wait", super()._wait, *args)

    def _timed(self, kind: str, call: Callable[..., _Value], *args: Any) -> _Value:
        begun = time.perf_counter_ns()
        try:
            return call(*args)
        finally:
            self._pieces.append((kind, begun, time.perf_counter_ns()))


def make_links(before: Link, after: Link, timeout_s: float) -> Links:
    """The links of a ring: those that are timed in a run with `timeline=True`."""
    recorder = recording()
    if recorder is None:
        return Links(before, after, timeout_s)
    return TimedLinks(before, after, timeout_s, recorder)


def begins_step(function: _Function) -> _Function:
    """The function, which is the first that is called in each step."""
    recorder = recording()
    if recorder is None:
        return function

    @functools.wraps(function)
    def begins(*args: Any) -> Any:
        recorder.step()
        return function(*args)

    return cast(_Function, begins)


def recording() -> Recorder | None:
    """What records the timeline of this process; None where there is to be none."""
    return _recorder(os.getpid())


@functools.lru_cache(maxsize=1)
def _recorder(pid: int) -> Recorder | None:
    me = context.current()
    if not me.timeline or me.folder is None:
        return None
    path = Path(me.folder, TIMELINE, f"{me.role}-{me.index}.json")
    return Recorder(path, me.rank, f"rank {me.rank} ({me.role} {me.index})")


def _others() -> int:
    """The CPU nanoseconds of all threads but this one, so far."""
    return time.process_time_ns() - time.thread_time_ns()
