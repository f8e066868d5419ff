"""Runs on the driver. Let the first trial of a run show that the program works."""

import math
from collections.abc import Iterable, Mapping

from sparkdl.files.jsonl import Tail
from sparkdl.files.layout import TrialPaths
from sparkdl.runs import Run, Trial, TrialState


def has_metric(metrics: Mapping[str, float], names: Iterable[str]) -> bool:
    """Return True if a finite value of each metric of a run is among the reported ones.

    Args:
        metrics: the reported values.
        names: the metrics of the run; `value` stands for the only one, of any name.

    Example:
        >>> has_metric({"loss": 0.5}, ["value"]), has_metric({"acc": 0.5}, ["accuracy"])
        (True, False)
    """
    finite = [name for name, value in metrics.items() if math.isfinite(value)]
    # A plain number is reported as `value`, and counts as the metric.
    return bool(finite) and all(n in finite or "value" in (n, *finite) for n in names)


def first_of(ended_trials: Iterable[Trial]) -> int | None:
    """Return the number of the trial that shows whether the program works; None if one has.

    Args:
        ended_trials: the trials that ended before this driver took the run over.
    """
    trials = list(ended_trials)
    if any(trial.state in (TrialState.COMPLETE, TrialState.PRUNED) for trial in trials):
        return None
    numbers = {trial.number for trial in trials}
    return next(number for number in range(len(trials) + 1) if number not in numbers)


class SmokeTest:
    """Tells whether the other trials wait: until the first has ended or reported the metric.

    Args:
        run: the run, before its first trial starts in this process.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._first = first_of(trial for trial in run.trials if trial.state.is_final)
        self._reports = Tail()

    def __call__(self) -> bool:
        """Return True while the other trials wait."""
        if self._first is not None and self._first < len(self._run.trials):
            trial = self._run.trials[self._first]
            has_paused = trial.state == TrialState.PAUSED  # At a rung, so it has reported.
            if trial.state.is_final or has_paused or self._has_reported(trial):
                self._first = None
        return self._first is not None

    def _has_reported(self, trial: Trial) -> bool:
        if trial.state != TrialState.RUNNING:
            return False
        lines = self._reports.read([TrialPaths(trial.path).metrics])
        return any(has_metric(line["metrics"], self._run.directions) for _, line in lines)
