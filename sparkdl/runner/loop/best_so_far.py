"""Runs on the driver. Follow the best trial of a run while its trials end."""

from sparkdl.runs import ranking
from sparkdl.runs.run import Run
from sparkdl.runs.trial import Trial


class BestSoFar:
    """The best trial of a run, or its Pareto front, without a look at all trials at each end.

    Args:
        run: the run, as it is now.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._best = run.pareto if self._has_front else run.top(1)

    @property
    def _has_front(self) -> bool:
        return len(self._run.objectives) > 1

    def update(self, trial: Trial) -> Trial | None:
        """Return the trial that has become the best; None if the best is as before.

        With repeats, the new best trial may be another trial of the same configuration.

        Args:
            trial: a trial that has ended.
        """
        run = self._run
        if trial.value is None:
            return None
        # The mean of a configuration needs all its trials.
        candidates = [*self._best, trial] if run.repeats == 1 else list(run.trials)
        if self._has_front:
            best = ranking.pareto(candidates, run.objectives, run.repeats)
        else:
            best = ranking.ranked(candidates, run.direction, run.repeats)[:1]
        before = {old.number for old in self._best}
        self._best = best
        return next((new for new in best if new.number not in before), None)
