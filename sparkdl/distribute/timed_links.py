"""Runs in the training process. Record the exchanges of a ring and the starts of steps.

Without a timeline, the plain links are used, and only `step_times` measures.
"""

import functools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from sparkdl import context
from sparkdl.distribute.call_header import HEADER
from sparkdl.distribute.heartbeat import Heartbeat
from sparkdl.distribute.links import Link, Links
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.step_times import step_times
from sparkdl.distribute.timeline import Collective, Recorder
from sparkdl.files.layout import TrialPaths

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Value = TypeVar("_Value")


class TimedLinks(Links):
    """Links that record how the time of each collective is spent.

    Args:
        predecessor, successor, timeout_s, is_cancelled, heartbeat: see `Links`.
        recorder: the recorder of this rank.

    Attributes:
        recorder: see above.
    """

    def __init__(
        self,
        predecessor: Link,
        successor: Link,
        timeout_s: float,
        recorder: Recorder,
        is_cancelled: Callable[[], bool] = lambda: False,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        super().__init__(predecessor, successor, timeout_s, is_cancelled, heartbeat)
        self.recorder = recorder
        self._pieces: list[tuple[str, int, int]] = []

    def like(self, predecessor: Link, successor: Link, heartbeat: Heartbeat) -> Links:
        """Return links over other connections that are otherwise like these."""
        more = {"predecessor": predecessor, "successor": successor, "heartbeat": heartbeat}
        return TimedLinks(**{**self.arguments, **more}, recorder=self.recorder)

    def exchange(
        self,
        sends: Sequence[Any],
        receives: Sequence[Any],
        num_ready: int,
        arrived: Callable[[int, Any], None],
        lag: int = 0,
        wait: Callable[[], object] = lambda: None,
        is_beside: bool = False,
    ) -> None:
        """Exchange blocks as `Links.exchange` does, and record the exchange."""
        if is_beside:  # The call waits for it, see `timed_wait`.
            self._pieces = []
            super().exchange(sends, receives, num_ready, arrived, lag, wait)
            return
        first_arrival_ns: int | None = None

        def timed_arrived(number: int, block: Any) -> None:
            nonlocal first_arrival_ns
            begin_ns = time.perf_counter_ns()
            first_arrival_ns = first_arrival_ns or begin_ns
            arrived(number, block)
            self._pieces.append(("add", begin_ns, time.perf_counter_ns()))

        def timed_wait() -> None:
            self._record("wait", wait)

        has_failed = True
        self._pieces = []
        begin_ns = time.perf_counter_ns()
        others_begin_ns = _other_threads_ns()
        try:
            super().exchange(sends, receives, num_ready, timed_arrived, lag, timed_wait)
            has_failed = False
        finally:
            end_ns = time.perf_counter_ns()
            others_end_ns = _other_threads_ns()
            collective = Collective(
                header=sends[0][: HEADER.size],  # The first block begins with the header.
                predecessor=self._predecessor.rank,
                begin_ns=begin_ns,
                end_ns=end_ns,
                first_arrival_ns=first_arrival_ns,
                other_threads_ns=others_end_ns - others_begin_ns,
                pieces=self._pieces,
            )
            self.recorder.collective(collective)
            if has_failed:  # This process may exit soon.
                self.recorder.flush()

    def _send(self, *args: Any) -> bool:
        return self._record("send", super()._send, *args)

    def _receive(self, *args: Any) -> bool:
        return self._record("receive", super()._receive, *args)

    def _wait(self, *args: Any) -> None:
        self._record("wait", super()._wait, *args)

    def _record(self, kind: str, call: Callable[..., _Value], *args: Any) -> _Value:
        begin_ns = time.perf_counter_ns()
        try:
            return call(*args)
        finally:
            self._pieces.append((kind, begin_ns, time.perf_counter_ns()))


def make_links(
    predecessor: Link,
    successor: Link,
    timeout_s: float,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Links:
    """Return the links of a ring, which are timed in a run with `timeline=True`.

    Args:
        predecessor, successor, timeout_s, is_cancelled: see `Links`.
    """
    recorder = process_recorder()
    if recorder is None:
        return Links(predecessor, successor, timeout_s, is_cancelled)
    return TimedLinks(predecessor, successor, timeout_s, recorder, is_cancelled)


def start_recording(ring: Ring, path: str) -> None:
    """Record the collectives of a ring into a file, from now on.

    Args:
        ring: the ring, which must not be elastic.
        path: the file, see `timeline`.
    """
    recorder = Recorder(Path(path), ring.rank, f"rank {ring.rank}")
    ring.change_links(lambda links: TimedLinks(**links.arguments, recorder=recorder))


def stop_recording(ring: Ring) -> None:
    """End what `start_recording` has started; the file is complete then."""

    def stop(links: Links) -> Links:
        if not isinstance(links, TimedLinks):
            return links
        links.recorder.close()
        return Links(**links.arguments)

    ring.change_links(stop)


def mark_step_start(function: _Function) -> _Function:
    """Wrap the first function of each step: record the start of a step before it is called."""
    recorder = process_recorder()

    @functools.wraps(function)
    def mark_and_call(*args: Any) -> Any:
        step_times().reduce()
        if recorder:
            recorder.step()
        return function(*args)

    return cast(_Function, mark_and_call)


def process_recorder() -> Recorder | None:
    """Return the recorder of this process's timeline, or None in a run without a timeline."""
    return _recorder(os.getpid())


# Process-wide state: one recorder per process. The process id is an argument so that a forked
# process does not use the recorder of its parent.
@functools.lru_cache(maxsize=1)
def _recorder(pid: int) -> Recorder | None:
    me = context.current()
    if not me.timeline or me.folder is None:
        return None
    path = Path(TrialPaths(me.folder).timeline_of(me.role, me.index))
    return Recorder(path, me.rank, f"rank {me.rank} ({me.role} {me.index})")


def _other_threads_ns() -> int:
    """Return the CPU nanoseconds that all other threads of this process have used so far."""
    return time.process_time_ns() - time.thread_time_ns()
