"""Runs on the driver. What the person sees while a run goes on: counts, results, live output."""

import json
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tqdm.auto import tqdm

from sparkdl import storage
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.slots import Slots
from sparkdl.runner.display.live_table import Board, is_notebook
from sparkdl.runs import Run, Trial, table
from sparkdl.runs.layout import TrialPaths
from sparkdl.runs.states import RunState, TrialState

__all__ = ["MOST_LOGS", "LogTail", "Progress"]

# What is read of one trial's log at one look. A trial that prints faster is skipped over: its log
# file has everything, and the driver stays quick and small.
LOOK_BYTES = 1 << 14

Steps = Mapping[int, int]

# The ranks of a gang whose output is shown live; through a store, the trials.
MOST_LOGS = 8

# What TensorFlow says on a host without a GPU, in every trial: kept in the log, not shown live.
_CHATTER = re.compile(
    r"cuInit|cudart_stub\.cc|oneDNN custom operations|cpu_feature_guard\.cc|AsGraphDefInternal"
)


@dataclass
class LogTail:
    """Reads what was added to a log since the last look, a bounded piece at a time."""

    url: str
    offset: int = 0
    skipped: int = 0
    _partial: bytes = field(default=b"", repr=False)
    _torn: bool = False  # The next line began in what was skipped.

    def read(self, last: bool = False) -> list[str]:
        """The new whole lines; with `last` also one that has no end."""
        try:
            self._skip()
            data = storage.read(self.url, self.offset, LOOK_BYTES * 2)
        except FileNotFoundError:
            return []
        self.offset += len(data)
        lines = (self._partial + data).split(b"\n")
        if self._torn and len(lines) > 1:
            self.skipped += len(lines.pop(0)) + 1
            self._torn = False
        self._partial = b"" if last else lines.pop()[-LOOK_BYTES:]
        return [line.decode(errors="replace").rstrip("\r") for line in lines if line or not last]

    def _skip(self) -> None:
        size = storage.size(self.url)
        if size - self.offset > 2 * LOOK_BYTES:
            self.skipped += size - LOOK_BYTES - self.offset
            self.offset, self._partial, self._torn = size - LOOK_BYTES, b"", True


class Progress:
    """A progress bar, or lines where there is no terminal; prefixed live output of the trials.

    A context manager. With `shown=False` it says nothing.

    Attributes:
        shown: whether it says anything.
    """

    def __init__(self, run: Run, plan: Plan, shown: bool) -> None:
        self._run, self._plan = run, plan
        self.shown = shown
        self._bar: Any = None
        self._tails: dict[int, dict[str, LogTail]] = {}
        self._is_text = not sys.stderr.isatty() and not is_notebook()
        self._last_s = 0.0
        self._counts = Counter(str(trial.state) for trial in run.trials)
        best = run.top(1)
        self._best = best[0].value if best else None
        self._done = 0
        self._total = float(len(run.trials))
        self._board = Board(run.metric or "value")

    def __enter__(self) -> "Progress":
        if self.shown and not self._is_text:
            form = "{desc} {n_fmt}/{total_fmt} |{bar}| {elapsed}{postfix}"
            self._bar = tqdm(total=0, desc=self._run.name, bar_format=form)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._board.__exit__()
            self._bar.close()
            self._bar = None

    def announce(self, trials: float, limit: int, slots: Slots) -> None:
        """Say how many trials there are to run, how many at once, and why not more."""
        self._done = sum(trial.state.is_final for trial in self._run.trials)
        self._total = self._done + trials
        if self._bar is not None:
            self._bar.total = None if trials == math.inf else int(self._total)
            self._bar.update(self._done)
        why = slots.reason
        if limit < slots.count // self._plan.size:
            why = f"parallelism={limit}; {why}"
        if trials == 1 and self._plan.is_gang:
            self.say(f"{self._plan.size} processes at once ({why})")
            return
        many = f"all at once ({why})" if trials <= limit else f"{limit} at once ({why})"
        count = "Trials" if trials == math.inf else f"{trials} trial{'' if trials == 1 else 's'}"
        self.say(f"{count}, {many}")

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self.shown:
            tqdm.write(text, file=sys.stdout)
            sys.stdout.flush()

    def finished(self) -> None:
        """Of a run that was stopped, say so, and how to look at what there is, or go on.

        Of any, how much of the slots' time went unused, and where that of its steps went.
        """
        if self._run.idle:
            self.say(f"The slots were {self._run.idle}")
        if self._run.timeline:
            self.say(self._run.timeline)
        if self._run.reason:
            self.say(f"{self._run!r}")
            self.say(f"What it finished: experiment.load({self._run.path!r})")
            if self._run.state != RunState.COMPLETE and self._plan.repeatable:
                self.say(f"To finish it: experiment.resume({self._run.path!r})")

    def look(self, trial: Trial, last: bool = False) -> None:
        """Show what a trial has printed since the last look."""
        if not self.shown:
            return
        for name, tail in self._tails.setdefault(trial.number, self._new_tails(trial)).items():
            self._show(trial, name, tail, last)
        if last:
            del self._tails[trial.number]

    def _new_tails(self, trial: Trial) -> dict[str, LogTail]:
        # Of a large gang only the first ranks are shown; each has its log file.
        logs = dict(list(self._plan.logs.items())[:MOST_LOGS])
        return {name: LogTail(storage.join(trial.path, file)) for name, file in logs.items()}

    def _show(self, trial: Trial, name: str, tail: LogTail, last: bool) -> None:
        lines = [line for line in tail.read(last) if not _CHATTER.search(line)]
        if tail.skipped:
            lines.insert(0, f"... {tail.skipped} bytes are in {tail.url}")
            tail.skipped = 0
        label = name if name and len(self._run.trials) == 1 else f"trial {trial.number} {name}"
        if lines:
            self.say("\n".join(f"[{label.strip()}] {line}" for line in lines))

    def started(self, trial: Trial, attempt: int) -> None:
        """Of a gang, say where its ranks run."""
        if not (self.shown and self._plan.is_gang):
            return
        ranks = json.loads(storage.read(TrialPaths(trial.path).attempt(attempt)))["ranks"]
        places = [f"{name} at {rank['endpoint']}" for name, rank in ranks.items()]
        more = f" and {len(places) - MOST_LOGS} more" if len(places) > MOST_LOGS else ""
        again = f"attempt {attempt}: " if attempt else ""
        self.say(f"{again}{', '.join(places[:MOST_LOGS])}{more}")

    def ended(self, trial: Trial) -> None:
        """Count a trial that has ended. A bar's counts tell of good ends, lines of all others."""
        self._done += 1
        self._counts[str(trial.state)] += 1
        if trial.value is not None and (self._best is None or self._beats(trial.value)):
            self._best = trial.value
        if self._bar is not None:
            self._bar.update()
        if self.shown and (self._is_text or trial.state != TrialState.COMPLETE):
            self._line(trial)

    def _line(self, trial: Trial) -> None:
        # A line a trial, but in a long run not more often than a person reads.
        if self._total > 50 and time.monotonic() - self._last_s < 5.0:
            return
        self._last_s = time.monotonic()
        total = "" if self._total == math.inf else f"/{self._total:g}"
        params = "".join(f" {k}={table.cell(v)}" for k, v in trial.params.items())
        value = "" if trial.value is None else f": {self._run.metric or 'value'} {trial.value:.5g}"
        why = f" ({trial.summary[:100]})" if trial.error else ""
        self.say(f"[{self._done}{total}] trial {trial.number}{params} {trial.state}{value}{why}")

    def _beats(self, value: float) -> bool:
        best = self._best or 0.0
        return value > best if self._run.direction == "max" else value < best

    def counts(self, running: Sequence[Trial], newest: Trial | None, steps: Steps) -> None:
        """Refresh the counts, the best value and the table of the trials that run.

        Args:
            running: these trials.
            newest: the one that reported last.
            steps: the last step that each has reported.
        """
        if self._bar is None:
            return
        shown: dict[str, Any] = {"running": len(running), "done": self._counts["COMPLETE"]}
        for state in ("PRUNED", "FAILED", "INVALID", "LOST", "CANCELLED"):
            if self._counts[state]:
                shown[state.lower()] = self._counts[state]
        if self._best is not None:
            shown["best"] = f"{self._best:.4g}"
        if newest and newest.state == TrialState.RUNNING:
            values = " ".join(f"{k}={v:.4g}" for k, v in list(newest.metrics.items())[:2])
            shown[f"trial {newest.number}"] = values
        self._bar.set_postfix(shown, refresh=True)
        if not self._plan.is_gang:
            self._board.show(running, steps)
