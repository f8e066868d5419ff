"""Runs on the driver. Display a run while it goes on: counts, results, output of the trials."""

import json
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm.auto import tqdm

from sparkdl import storage
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.slots import Slots
from sparkdl.jsonl import LogTail
from sparkdl.runner.display.live_table import LiveTable, is_notebook
from sparkdl.runs import Run, Trial, table
from sparkdl.runs.layout import TrialPaths
from sparkdl.runs.states import RunState, TrialState

__all__ = ["MAX_LOGS", "Progress"]

Steps = Mapping[int, int]

# The number of ranks of a gang, or of trials on a remote store, whose output is shown live.
MAX_LOGS = 8

# Lines that TensorFlow prints in every process on a host without GPUs: only the log has them.
_NOISE = re.compile(
    r"cuInit|cudart_stub\.cc|oneDNN custom operations|cpu_feature_guard\.cc|AsGraphDefInternal"
)


class Progress:
    """A progress bar, or lines where there is no terminal, and the output of the trials.

    A context manager.

    Args:
        run: the run.
        plan: the processes of a trial.
        shown: False shows nothing at all.

    Attributes:
        shown: True if anything is shown.
    """

    def __init__(self, run: Run, plan: Plan, shown: bool) -> None:
        self._run = run
        self._plan = plan
        self.shown = shown
        self._bar: Any = None
        self._tails: dict[int, dict[str, LogTail]] = {}
        self._is_text = not sys.stderr.isatty() and not is_notebook()
        self._last_line_s = 0.0
        self._counts = Counter(str(trial.state) for trial in run.trials)
        best = run.top(1)
        self._best = best[0].value if best else None
        self._num_done = 0
        self._total = float(len(run.trials))
        self._table = LiveTable(run.metric or "value")

    def __enter__(self) -> "Progress":
        if self.shown and not self._is_text:
            bar_format = "{desc} {n_fmt}/{total_fmt} |{bar}| {elapsed}{postfix}"
            self._bar = tqdm(total=0, desc=self._run.name, bar_format=bar_format)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._table.__exit__()
            self._bar.close()
            self._bar = None

    def announce(self, trials: float, limit: int, slots: Slots) -> None:
        """Show the number of trials, the number at once, and the reason for that limit.

        Args:
            trials: number of trials that will run; infinity for a search without an end.
            limit: number of trials at once.
            slots: the slots of the cluster.
        """
        self._num_done = sum(trial.state.is_final for trial in self._run.trials)
        self._total = self._num_done + trials
        if self._bar is not None:
            self._bar.total = None if trials == math.inf else int(self._total)
            self._bar.update(self._num_done)
        why = slots.reason
        if limit < slots.count // self._plan.size:
            why = f"parallelism={limit}; {why}"
        if trials == 1 and self._plan.is_gang:
            self.say(f"{self._plan.size} processes at once ({why})")
            return
        at_once = f"all at once ({why})" if trials <= limit else f"{limit} at once ({why})"
        count = "Trials" if trials == math.inf else f"{trials} trial{'' if trials == 1 else 's'}"
        self.say(f"{count}, {at_once}")

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self.shown:
            tqdm.write(text, file=sys.stdout)
            sys.stdout.flush()

    def run_ended(self) -> None:
        """Show how the time of the slots was used, and how to continue a run that was stopped."""
        if self._run.idle:
            self.say(f"The slots were {self._run.idle}")
        if self._run.timeline:
            self.say(self._run.timeline)
        if self._run.reason:
            self.say(f"{self._run!r}")
            self.say(f"What it finished: experiment.load({self._run.path!r})")
            if self._run.state != RunState.COMPLETE and self._plan.repeatable:
                self.say(f"To finish it: experiment.resume({self._run.path!r})")

    def show_output(self, trial: Trial, last: bool = False) -> None:
        """Show what a trial has printed since the last call.

        Args:
            trial: the trial.
            last: the attempt is over; also show a last line without a line end.
        """
        if not self.shown:
            return
        for name, tail in self._tails.setdefault(trial.number, self._new_tails(trial)).items():
            self._show_lines(trial, name, tail, last)
        if last:
            del self._tails[trial.number]

    def _new_tails(self, trial: Trial) -> dict[str, LogTail]:
        logs = dict(list(self._plan.logs.items())[:MAX_LOGS])
        return {name: LogTail(storage.join(trial.path, file)) for name, file in logs.items()}

    def _show_lines(self, trial: Trial, name: str, tail: LogTail, last: bool) -> None:
        lines = [line for line in tail.lines(last) if not _NOISE.search(line)]
        if tail.skipped:
            lines.insert(0, f"... {tail.skipped} bytes are in {tail.url}")
            tail.skipped = 0
        label = name if name and len(self._run.trials) == 1 else f"trial {trial.number} {name}"
        if lines:
            self.say("\n".join(f"[{label.strip()}] {line}" for line in lines))

    def trial_started(self, trial: Trial, attempt: int) -> None:
        """Show the hosts on which the ranks of a gang run."""
        if not (self.shown and self._plan.is_gang):
            return
        ranks = json.loads(storage.read(TrialPaths(trial.path).attempt(attempt)))["ranks"]
        places = [f"{name} at {rank['endpoint']}" for name, rank in ranks.items()]
        more = f" and {len(places) - MAX_LOGS} more" if len(places) > MAX_LOGS else ""
        prefix = f"attempt {attempt}: " if attempt else ""
        self.say(f"{prefix}{', '.join(places[:MAX_LOGS])}{more}")

    def trial_ended(self, trial: Trial) -> None:
        """Count a trial that has ended; show a line for each that has not completed.

        Where there is no progress bar, show a line for each trial.
        """
        self._num_done += 1
        self._counts[str(trial.state)] += 1
        if self._run.repeats > 1:
            best = self._run.top(1)
            self._best = best[0].value if best else None
        elif trial.value is not None and (self._best is None or self._beats(trial.value)):
            self._best = trial.value
        if self._bar is not None:
            self._bar.update()
        if self.shown and (self._is_text or trial.state != TrialState.COMPLETE):
            self._show_result(trial)

    def _show_result(self, trial: Trial) -> None:
        # In a run of many trials, at most one line in five seconds: more cannot be read.
        if self._total > 50 and time.monotonic() - self._last_line_s < 5.0:
            return
        self._last_line_s = time.monotonic()
        total = "" if self._total == math.inf else f"/{self._total:g}"
        params = "".join(f" {k}={table.cell(v)}" for k, v in trial.params.items())
        number, name = trial.last_value, self._run.metric or "value"
        value = "" if number is None else f": {name} {number:.5g}"
        why = f" ({trial.summary[:100]})" if trial.error else ""
        self.say(
            f"[{self._num_done}{total}] trial {trial.number}{params} {trial.state}{value}{why}"
        )

    def _beats(self, value: float) -> bool:
        best = self._best or 0.0
        return value > best if self._run.direction == "max" else value < best

    def show_counts(self, running: Sequence[Trial], newest: Trial | None, steps: Steps) -> None:
        """Update the counts, the best value and the table of the running trials.

        Args:
            running: the trials that run now.
            newest: the trial that has reported last.
            steps: the last step that each trial has reported, by the number of the trial.
        """
        if self._bar is None:
            return
        counts: dict[str, Any] = {"running": len(running), "done": self._counts["COMPLETE"]}
        for state in ("PRUNED", "FAILED", "INVALID", "LOST", "CANCELLED"):
            if self._counts[state]:
                counts[state.lower()] = self._counts[state]
        if self._best is not None:
            word = "highest" if self._run.direction == "max" else "lowest"
            counts["best"] = f"{self._best:.4g} ({word})"
        if newest and newest.state == TrialState.RUNNING:
            values = " ".join(f"{k}={v:.4g}" for k, v in list(newest.metrics.items())[:2])
            counts[f"trial {newest.number}"] = values
        self._bar.set_postfix(counts, refresh=True)
        if not self._plan.is_gang:
            self._table.show(running, steps)
