"""Where it runs: D. What the person sees while a run goes on: counts, results, live output."""

import re
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from tqdm.auto import tqdm

from sparkdl import storage
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.spark import Slots
from sparkdl.runs import Run, Trial
from sparkdl.runs.layout import TrialPaths

__all__ = ["LogTail", "Progress"]

# What is read of one trial's log at one look. A trial that prints faster is skipped over: its log
# file has everything, and the driver stays quick and small.
LOOK_BYTES = 1 << 14

# What TensorFlow says on a host without a GPU, in every trial: kept in the log, not shown live.
_CHATTER = re.compile(r"cuInit: |cudart_stub\.cc|oneDNN custom operations|cpu_feature_guard\.cc")


@dataclass
class LogTail:
    """Reads what was added to a log since the last look, a bounded piece at a time."""

    url: str
    offset: int = 0
    skipped: int = 0
    _partial: bytes = field(default=b"", repr=False)

    def read(self, last: bool = False) -> list[str]:
        """The new whole lines; with `last` also one that has no end."""
        try:
            self._skip()
            data = storage.read(self.url, self.offset, LOOK_BYTES)
        except FileNotFoundError:
            return []
        self.offset += len(data)
        lines = (self._partial + data).split(b"\n")
        self._partial = b"" if last else lines.pop()[-LOOK_BYTES:]
        return [line.decode(errors="replace").rstrip("\r") for line in lines if line or not last]

    def _skip(self) -> None:
        if not storage.is_local(self.url):
            return
        size = storage.local_path(self.url).stat().st_size
        if size - self.offset > 2 * LOOK_BYTES:
            self.skipped += size - LOOK_BYTES - self.offset
            self.offset, self._partial = size - LOOK_BYTES, b""


class Progress:
    """A progress bar, or lines where there is no terminal; prefixed live output of the trials.

    A context manager. With `shown=False` it says nothing.
    """

    def __init__(self, run: Run, shown: bool) -> None:
        self._run = run
        self._shown = shown
        self._bar: Any = None
        self._logs: dict[int, LogTail] = {}
        self._is_text = not sys.stderr.isatty() and "ipykernel" not in sys.modules
        self._last_s = 0.0

    def __enter__(self) -> "Progress":
        if self._shown and not self._is_text:
            done = sum(trial.state.is_final for trial in self._run.trials)
            self._bar = tqdm(total=len(self._run.trials), initial=done, unit="trial", leave=False)
            self._bar.set_description(self._run.name)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def announce(self, trials: int, limit: int, slots: Slots, plan: Plan) -> None:
        """Say what is about to run, how much of it at once, and why not more."""
        if trials <= limit:
            many = f"all at once ({slots.reason})"
        elif limit < slots.count:
            many = f"{limit} at once (parallelism={limit}; {slots.reason})"
        else:
            many = f"{limit} at once ({slots.reason})"
        count = f"{trials} trial{'' if trials == 1 else 's'}"
        self.say(f"Run {self._run.id}: {count}, {many}")
        self.say(f"Plan: {plan}")
        self.say(f"Everything is kept in {self._run.path}")

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self._shown:
            tqdm.write(text, file=sys.stdout)
            sys.stdout.flush()

    def look_again(self) -> None:
        """Say how to look at a run that was stopped; finished ones are returned."""
        if self._run.reason:
            self.say(f"Run {self._run.id} is {self._run.state} ({self._run.reason}).")
            self.say(f"What it finished: experiment.load({self._run.path!r})")

    def look(self, trial: Trial, last: bool = False) -> None:
        """Show what a trial has printed since the last look."""
        if not self._shown:
            return
        url = TrialPaths(trial.path).log
        log = self._logs.setdefault(trial.number, LogTail(url))
        lines = log.read(last)
        if log.skipped:
            lines.insert(0, f"... {log.skipped} bytes are in {url}")
            log.skipped = 0
        lines = [line for line in lines if not _CHATTER.search(line)]
        if lines:
            self.say("\n".join(f"[trial {trial.number}] {line}" for line in lines))
        if last:
            del self._logs[trial.number]

    def restarted(self, trial: Trial) -> None:
        """The trial's log begins anew."""
        self._logs.pop(trial.number, None)

    def ended(self, trial: Trial) -> None:
        """Count a trial that has ended."""
        if self._bar is not None:
            self._bar.update()
        elif self._is_text and self._shown:
            self._line(trial)

    def _line(self, trial: Trial) -> None:
        done = sum(t.state.is_final for t in self._run.trials)
        total = len(self._run.trials)
        # A line a trial, but in a long run not more often than a person reads.
        if total > 50 and done < total and time.monotonic() - self._last_s < 5.0:
            return
        self._last_s = time.monotonic()
        value = "" if trial.value is None else f" {self._run.metric or 'value'}={trial.value:.5g}"
        why = "" if not trial.error else f" ({trial.summary[:100]})"
        self.say(f"[{done}/{total}] trial {trial.number} {trial.state}{value}{why}")

    def counts(self, running: int) -> None:
        """Refresh the counts and the best value beside the bar."""
        if self._bar is None:
            return
        states = self._run.counts()
        best = self._run.top(1)
        shown: dict[str, Any] = {"running": running, "done": states.get("COMPLETE", 0)}
        shown["failed"] = states.get("FAILED", 0) + states.get("INVALID", 0)
        if best:
            shown["best"] = f"{best[0].value:.4g}"
        self._bar.set_postfix(shown, refresh=True)
