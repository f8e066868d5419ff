"""Runs on the driver. The sampler of Optuna that gives trials the budgets of `Asha`.

The algorithm is that of Li et al., "A System for Massively Parallel Hyperparameter Tuning" (2018),
arXiv:1810.05934: a configuration gets the next budget as soon as it is among the best of those that
have ended with its budget.
"""

from collections.abc import Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

__all__ = ["AshaSampler"]

BUDGET = "budget"


class AshaSampler(BaseSampler):
    """A sampler of random parameters with the smallest budget, or of promoted ones.

    What was promoted is told from the trials of the study, so that a resumed search goes on.

    Args:
        budgets: the budgets, smallest first.
        reduction: one of this number of trials is promoted.
    """

    def __init__(self, budgets: Sequence[int], reduction: int) -> None:
        self._budgets = budgets
        self._reduction = reduction
        self._random = RandomSampler()
        self._next: dict[str, Any] = {}

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Choose the parameters of the promoted configuration; random ones without any."""
        trials = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        self._next = self._promoted(trials, study.direction) or {BUDGET: self._budgets[0]}

    def _promoted(self, trials: Sequence[FrozenTrial], direction: StudyDirection) -> dict[str, Any]:
        """Return the parameters of the best configuration of the highest rung that may go on."""
        is_max = direction == StudyDirection.MAXIMIZE
        for budget, larger in reversed([*zip(self._budgets, self._budgets[1:], strict=False)]):
            ended_trials = [
                t
                for t in trials
                if t.params.get(BUDGET) == budget
                and t.state in (TrialState.COMPLETE, TrialState.PRUNED)
                and t.value is not None
            ]
            gone = [t.params for t in trials if t.params.get(BUDGET) == larger]
            ended_trials.sort(key=lambda t: t.value or 0.0, reverse=is_max)
            for best in ended_trials[: len(ended_trials) // self._reduction]:
                if (params := {**best.params, BUDGET: larger}) not in gone:
                    return params
        return {}

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return no parameters: each is chosen by `sample_independent`."""
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return no parameters, see `infer_relative_search_space`."""
        return {}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return the value of the promoted configuration, or a random one."""
        if param_name in self._next:
            return self._next[param_name]
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """End the search when a trial has the largest budget."""
        trials = study.get_trials(deepcopy=False)
        if any(t.params.get(BUDGET) == self._budgets[-1] for t in trials):
            study.stop()
