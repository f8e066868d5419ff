"""Runs on the driver (pure). Notice that the name of the metric is wrong, before all trials ran."""

import difflib
import math
from collections.abc import Sequence

from sparkdl.options import Options
from sparkdl.runs import RunState, Trial
from sparkdl.runs.states import WRONG_METRIC, lacks_metric
from sparkdl.search.settings import SearchSettings

# In a run of this many trials or more, a metric that no trial has ends the run: after a trial that
# has a similar name, or after this number of trials.
MANY, MAX_LACKING = 10, 3

SIMILAR = 0.8


class WrongMetric:
    """The rule that ends a long run whose trials lack the metric that the user has named.

    A trial may lack the metric although its name is right, if the function returns early. A name
    that is close to a name which the trial has is misspelt, though; any other name is wrong if the
    first trials all lack the metric. A user who sets `fail_fast_identical` has decided otherwise.

    Args:
        options: the options, with the metric.
        search: the settings of a search; None for a run whose trials are known.
        trials: all trials of the run, to which a search adds.

    Example:
        >>> trials = [Trial(i, {}, "") for i in range(10)]
        >>> trials[0].error = "metric 'acuracy' was neither returned nor reported; got accuracy"
        >>> trials[0].metrics = {"accuracy": 0.5}
        >>> WrongMetric(Options(metric="acuracy"), None, trials).trial_ended(trials[0])[1][:53]
        "the first trial that ended had no 'acuracy', which me"
    """

    def __init__(
        self,
        options: Options,
        search: SearchSettings | None,
        trials: Sequence[Trial],
    ) -> None:
        self._metric = options.metric
        self._is_excused = options.metric is None or options.fail_fast_identical is not None
        self._search = search
        self._trials = trials
        self._num_lacking = 0

    def trial_ended(self, trial: Trial) -> tuple[RunState, str] | None:
        """Return the state and the reason with which the run ends, None if it goes on."""
        metric, search = self._metric, self._search
        if self._is_excused or metric is None or not lacks_metric(trial.error, metric):
            return None
        self._num_lacking += 1
        num_trials = search.max_configurations or math.inf if search else len(self._trials)
        names = list(dict.fromkeys([*trial.outputs, *trial.metrics]))
        near = difflib.get_close_matches(metric, names, n=1, cutoff=SIMILAR)
        if num_trials < MANY or not (near or self._num_lacking >= MAX_LACKING):
            return None
        # Also a trial that runs may have reported the metric.
        self._is_excused = any(metric in {*t.metrics, *t.outputs} for t in self._trials)
        if self._is_excused:
            return None
        hint = f"Did you mean {near[0]!r}? " if near else ""
        number = self._num_lacking
        lacking = "the first trial" if number == 1 else f"the first {number} trials"
        return RunState.FAILED, (
            f"{lacking} that ended had no {metric!r}, {WRONG_METRIC}, but "
            f"{', '.join(names) or 'nothing'}. {hint}Start the run again with another metric="
        )
