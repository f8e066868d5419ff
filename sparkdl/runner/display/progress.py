"""Runs on the driver. Display a run while it goes on: counts, results, output of the trials."""

import json
import math
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Any

from tqdm import tqdm

from sparkdl.cluster.plan import Plan
from sparkdl.cluster.slots import Slots
from sparkdl.files import storage
from sparkdl.files.layout import TrialPaths
from sparkdl.runner.display.batch_log import is_summarized
from sparkdl.runner.display.live_table import LiveTable
from sparkdl.runner.display.notebook_bar import NotebookBar, is_notebook
from sparkdl.runner.display.progress_lines import (
    LineTimes,
    duration_text,
    estimate_left_s,
    progress_text,
)
from sparkdl.runner.display.trial_output import MAX_LOGS, TrialOutput
from sparkdl.runner.harmless import harmless
from sparkdl.runs import Run, Trial, table
from sparkdl.runs.remedies import is_in_shell
from sparkdl.runs.states import TrialState

Steps = Mapping[int, int]

# In a run of more trials than MANY, at most one line in LINE_S seconds: more cannot be read. The
# first failures are shown at once.
MANY = 50
LINE_S = 5.0
MAX_FAILURES = 20

# A line shows this many numbers of a trial.
MAX_NUMBERS = 5
# Characters of the reason of a failure: its remedy stands at the end.
MAX_REASON = 400


class Progress:
    """A progress bar, or lines where there is no terminal, and the output of the trials.

    A context manager. No failure of the display reaches the run.

    Args:
        run: the run.
        plan: the processes of a trial.
        is_shown: False shows nothing at all.
        logs: the output of trials to show, see `TrialOutput`.

    Attributes:
        is_shown: True if anything is shown.
    """

    def __init__(self, run: Run, plan: Plan, is_shown: bool, logs: str = "all") -> None:
        self._run = run
        self._plan = plan
        self.is_shown = is_shown
        self._bar: Any = None
        self._is_notebook = is_notebook()
        self._is_text = not sys.stderr.isatty() and not self._is_notebook
        self._output = TrialOutput(run, plan, logs, self.say, not self._is_text)
        self._last_line_s = 0.0
        self._num_failures = 0
        self._num_unshown = 0
        self._at_once = 1
        self._begun_s = time.monotonic()
        self._line_times = LineTimes(self._begun_s)
        self._estimated_s = -LINE_S
        self._estimate_s: float | None = None
        self._has_noted_end = False
        self._counts = Counter(str(trial.state) for trial in run.trials)
        best = run.top(1)
        self._best = best[0].value if best else None
        self._num_done = 0
        self._total = float(len(run.trials))
        self._table = LiveTable(run.metric or "value")

    def __enter__(self) -> "Progress":
        self._open()
        return self

    @harmless
    def _open(self) -> None:
        if self.is_shown and self._is_notebook:
            self._bar = NotebookBar(self._run.name)
            self._table = LiveTable(self._run.metric or "value", self._bar)
        elif self.is_shown and not self._is_text:
            bar_format = "{desc} {n_fmt}/{total_fmt} |{bar}| {elapsed}{postfix}"
            self._bar = tqdm(total=0, desc=self._run.name, bar_format=bar_format)

    @harmless
    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._table.__exit__()
            self._bar.close()
            self._bar = None

    @harmless
    def announce(self, trials: float, limit: int, slots: Slots) -> None:
        """Show the number of trials, the number at once, and the reason for that limit.

        Args:
            trials: number of trials that will run; infinity for a search without an end.
            limit: number of trials at once.
            slots: the slots of the cluster.
        """
        self._num_done = sum(trial.state.is_final for trial in self._run.trials)
        self._total = self._num_done + trials
        self._at_once = limit
        self.say(self._extent(trials, limit, slots))
        if self._bar is not None:
            self._bar.total = None if trials == math.inf else int(self._total)
            self._bar.update(self._num_done)

    def _extent(self, trials: float, limit: int, slots: Slots) -> str:
        why = slots.reason
        if limit < slots.count // self._plan.size:
            why = f"parallelism={limit}; {why}"
        if trials == 1 and self._plan.is_gang:
            most = f" to {len(self._plan.members)}" if self._plan.grows else ""
            return f"{self._plan.size}{most} processes at once ({why})"
        at_once = f"all at once ({why})" if trials <= limit else f"{limit} at once ({why})"
        count = "Trials" if trials == math.inf else f"{trials} trial{'' if trials == 1 else 's'}"
        return f"{count}, {at_once}"

    @harmless
    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self.is_shown:
            # At once: what the program prints meanwhile must not come before the end of the line.
            tqdm.write(f"{text}\n", file=sys.stdout, end="")
            sys.stdout.flush()

    @harmless
    def run_ended(self) -> None:
        """Show how the time of the slots was used, and how to continue a run that was stopped."""
        if self._run.idle:
            self.say(f"The slots were {self._run.idle}")
        if self._run.timeline:
            self.say(self._run.timeline)
        if self._run.reason:
            self.say(f"{self._run!r}")
            if is_in_shell():
                return  # The command shows the table, and its error says how to go on.
            self.say(f"What it finished: experiment.load({self._run.path!r})")
            remedy = self._run.how_to_finish()
            if remedy and not is_summarized(self._run):
                self.say(remedy.strip().removesuffix("."))

    @harmless
    def show_output(self, trial: Trial, last: bool = False) -> None:
        """Show what a trial has printed since the last call.

        Args:
            trial: the trial.
            last: the attempt is over; also show a last line without a line end.
        """
        if self.is_shown:
            self._output.show_new(trial, last)

    def show_outputs(self, trials: Sequence[Trial]) -> None:
        """Show what running trials have printed since the last call."""
        # On a remote store, each log costs a request.
        is_local = storage.is_local(self._run.path)
        for trial in trials if is_local else trials[:MAX_LOGS]:
            self.show_output(trial)

    @harmless
    def trial_started(self, trial: Trial, attempt: int) -> None:
        """Show the hosts on which the ranks of a gang run."""
        if not (self.is_shown and self._plan.is_gang):
            return
        ranks = json.loads(storage.read(TrialPaths(trial.path).attempt(attempt)))["ranks"]
        places = [f"{name} at {rank['endpoint']}" for name, rank in ranks.items()]
        more = f" and {len(places) - MAX_LOGS} more" if len(places) > MAX_LOGS else ""
        prefix = f"attempt {attempt}: " if attempt else ""
        self.say(f"{prefix}{', '.join(places[:MAX_LOGS])}{more}")

    @harmless
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
            if self.is_shown:
                self._output.show_best(trial)
        if self._bar is not None:
            self._bar.update()
        if self.is_shown and (self._is_text or trial.state != TrialState.COMPLETE):
            self._show_result(trial)

    def _show_result(self, trial: Trial) -> None:
        is_failure = trial.state in (TrialState.FAILED, TrialState.INVALID)
        self._num_failures += is_failure
        is_soon = self._total > MANY and time.monotonic() - self._last_line_s < LINE_S
        if is_soon and not (is_failure and self._num_failures <= MAX_FAILURES):
            self._num_unshown += 1
            return
        self._last_line_s = time.monotonic()
        more = f" ({self._num_unshown} more have ended)" if self._num_unshown else ""
        self._num_unshown = 0
        total = "" if self._total == math.inf else f"/{self._total:g}"
        params = "".join(f" {k}={table.cell(v)}" for k, v in trial.params.items())
        last, name = trial.last_value, self._run.metric or "value"
        value = _numbers(trial, self._run.metric) if last is None else f": {name} {last:.5g}"
        why = f" ({shorten(trial.summary, MAX_REASON, placeholder=' ...')})" if trial.error else ""
        is_elsewhere = trial.host not in (None, socket.gethostname())
        where = f" on {trial.host}" if why and is_elsewhere else ""
        number = f"[{self._num_done}{total}] trial {trial.number}"
        self.say(f"{number}{params} {trial.state}{value}{where}{why}{more}")

    def _beats(self, value: float) -> bool:
        best = self._best or 0.0
        return value > best if self._run.direction == "max" else value < best

    @harmless
    def show_counts(self, running: Sequence[Trial], newest: Trial | None, steps: Steps) -> None:
        """Update the counts, the best value and the table of the running trials.

        Args:
            running: the trials that run now.
            newest: the trial that has reported last.
            steps: the last step that each trial has reported, by the number of the trial.
        """
        self._note_end_of_program()
        if self.is_shown and self._is_text and self._line_times.is_due(time.monotonic()):
            self._show_heartbeat(newest, steps)
        if self._bar is None:
            return
        counts: dict[str, Any] = {"running": len(running), "complete": self._counts["COMPLETE"]}
        if num_paused := sum(trial.state == TrialState.PAUSED for trial in self._run.trials):
            counts["paused"] = num_paused
        for state in ("PRUNED", "FAILED", "INVALID", "LOST", "CANCELLED"):
            if self._counts[state]:
                counts[state.lower()] = self._counts[state]
        if self._best is not None:
            word = "highest" if self._run.direction == "max" else "lowest"
            counts["best"] = f"{self._best:.4g} ({word})"
        if (left_s := self._left_s()) is not None:
            counts["left"] = duration_text(left_s)
        if newest and newest.state == TrialState.RUNNING:
            counts[f"trial {newest.number}"] = _values(newest)
        self._bar.set_postfix(counts, refresh=True)
        if not self._plan.is_gang:
            self._table.show(running, steps)

    def _left_s(self) -> float | None:
        """Return an estimate of the seconds until the end, made anew every few seconds."""
        if time.monotonic() - self._estimated_s > LINE_S:
            self._estimated_s = time.monotonic()
            self._estimate_s = estimate_left_s(
                self._run.trials, self._total, self._at_once, time.time()
            )
        return self._estimate_s

    def _show_heartbeat(self, newest: Trial | None, steps: Steps) -> None:
        best = "" if self._best is None else f"{self._run.metric or 'value'} {self._best:.5g}"
        elapsed_s = time.monotonic() - self._begun_s
        text = progress_text(self._run.trials, self._total, elapsed_s, best)
        if newest and newest.state == TrialState.RUNNING:
            step = f" at step {steps[newest.number]}" if newest.number in steps else ""
            text += f"; trial {newest.number} reported {_values(newest)}{step}"
        if (left_s := self._left_s()) is not None:
            text += f"; about {duration_text(left_s)} left"
        self.say(text)

    def _note_end_of_program(self) -> None:
        if self._has_noted_end or threading.main_thread().is_alive():
            return
        self._has_noted_end = True
        self.say(
            f"The program has ended, and Python waits for the end of run {self._run.id}. Call "
            "run.wait() at the end of a program to get the error of a run that fails."
        )


def _numbers(trial: Trial, metric: str | None) -> str:
    """Return all numbers of a trial if the user has not named the one that counts."""
    numbers = list(trial.metrics.items())[:MAX_NUMBERS] if metric is None else []
    return f": {', '.join(f'{name} {value:.5g}' for name, value in numbers)}" if numbers else ""


def _values(trial: Trial) -> str:
    return " ".join(f"{name}={value:.4g}" for name, value in list(trial.metrics.items())[:2])
