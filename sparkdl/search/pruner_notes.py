"""Runs on the driver. Notes about a pruner that stops nothing, or almost everything."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkdl.runs import Trial
from sparkdl.runs.states import TrialState

# The number of trials after which it is known how a pruner behaves.
NUM_FIRST = 20


class PrunerNotes:
    """Watches the reports of a search with a pruner, and writes each note once.

    Args:
        pruner: the pruner of the search; None for a search without one.
        metrics: the metrics that the pruner compares.
        notify: shows a line to the user.
    """

    def __init__(self, pruner: Any, metrics: Sequence[str], notify: Callable[[str], None]) -> None:
        self._pruner = pruner
        self._metrics = metrics
        self._notify = notify
        self._num_heard: Counter[int] = Counter()
        self._names: set[str] = set()
        self._num_ended = 0
        self._stopped_at_once: list[int] = []
        self._first_step = 0
        self._is_silent = pruner is None

    def on_reports(self, reports: Sequence[tuple[Trial, int, Mapping[str, float]]]) -> None:
        """Take note of all reports, also of those without the metric."""
        self._names.update(name for _, _, metrics in reports for name in metrics)

    def on_report_to_pruner(self, trial: Trial, step: int) -> None:
        """Take note of a report that the pruner hears."""
        self._num_heard[trial.number] += 1
        if self._num_heard[trial.number] == 1:
            self._first_step = step

    def on_stop(self, trial: Trial) -> None:
        """Take note of a trial that the pruner stops."""
        if self._num_heard[trial.number] != 1 or trial.number in self._stopped_at_once:
            return
        self._stopped_at_once.append(trial.number)
        if self._num_ended < NUM_FIRST and len(self._stopped_at_once) == NUM_FIRST // 2 + 1:
            self._notify(
                f"Note: {len(self._stopped_at_once)} of the first {NUM_FIRST} trials were stopped "
                f"at their first report, which had step {self._first_step}. {self._remedy()}"
            )

    def _remedy(self) -> str:
        if isinstance(self._pruner, str | Mapping):
            name = self._pruner if isinstance(self._pruner, str) else next(iter(self._pruner))
            return f"To let each trial report 10 times, pass pruner={{{name!r}: {{'grace': 10}}}}."
        return (
            "A pruner of Optuna counts steps: create it for steps of this size, or pass "
            "pruner='asha', which counts reports."
        )

    def on_end(self, trial: Trial) -> None:
        """Take note of a trial that has ended."""
        self._num_ended += 1
        if self._is_silent or trial.state != TrialState.COMPLETE:
            return
        self._is_silent = True
        if self._num_heard:
            return
        if self._names:
            names = " and ".join(map(repr, self._metrics))
            what = f"no value of {names} from trial {trial.number}, which reported "
            what += ", ".join(sorted(self._names))
            remedy = "Report the metric with context.report, or name another one with metric=."
            if len(self._metrics) > 1:
                what = what.replace("value of", "step with values of")
                remedy = "Report all of the metrics with context.report at the same step."
        else:
            what = f"no report from trial {trial.number}, so that no trial can be stopped early"
            remedy = "Call context.report after each epoch, or remove pruner=."
        self._notify(f"Note: the pruner has received {what}. {remedy}")
