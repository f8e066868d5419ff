"""Runs on the driver. Let a sampler learn from the values that trials have reported at rungs.

The rule is that of Falkner, Klein and Hutter, "BOHB: Robust and Efficient Hyperparameter
Optimization at Scale" (2018), arXiv:1807.01774: the model is that of the largest budget with enough
observations.
"""

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from sparkdl.search.optuna_studies import new_study

# A rung is modelled from this number of observations on, beyond the number of parameters: in BOHB,
# N_min is d + 1, and a model needs two more.
MORE_POINTS = 3


class RungSampler(BaseSampler):
    """A sampler that learns from the highest rung that enough trials have reached.

    A paused trial may go on, but a trial of Optuna that has ended never changes. So each rung is a
    study of its own, in which the value of a trial at this rung is that of a complete trial. Above
    all rungs are the complete trials of the search.

    Args:
        make: returns a sampler for the rung of this number of reports; 0 stands for the search.
        storage: the storage of the study of the search.
        directions: `max` or `min`, for each metric.
        min_points: the smallest number of trials to learn from.
        random_share: the share of the points that are random.
        seed: seed of the random points.
    """

    def __init__(
        self,
        make: Callable[[int], BaseSampler],
        storage: optuna.storages.BaseStorage,
        directions: Sequence[str],
        *,
        min_points: int,
        random_share: float,
        seed: int,
    ) -> None:
        self._make = make
        self._storage = storage
        self._directions = ["maximize" if way == "max" else "minimize" for way in directions]
        self._min_points = min_points
        self._random_share = random_share
        self._random_sampler = optuna.samplers.RandomSampler(seed=seed % 2**32)
        self._chance = random.Random(seed)
        self._is_random = False
        self._sampler = make(0)
        self._rungs: dict[int, tuple[BaseSampler, Study]] = {}

    def add(
        self,
        rung: int,
        params: dict[str, Any],
        distributions: dict[str, BaseDistribution],
        *values: float,
    ) -> None:
        """Add the values of a trial at a rung.

        Args:
            rung: the number of reports.
            params: the sampled parameters of the trial.
            distributions: their distributions.
            *values: the value of each metric that the trial has reported there.
        """
        if rung not in self._rungs:
            study = new_study(
                study_name=f"rung-{rung}", storage=self._storage, directions=self._directions
            )
            self._rungs[rung] = self._make(rung), study
        sampler, study = self._rungs[rung]
        study.add_trial(
            optuna.create_trial(params=params, distributions=distributions, values=values)
        )
        # Only `ask`, which nobody calls here, lets a study read its trials anew for a sampler.
        study = optuna.load_study(study_name=study.study_name, storage=self._storage)
        self._rungs[rung] = sampler, study

    def _level(self, study: Study) -> tuple[BaseSampler, Study]:
        """Return the sampler and the study with the trials to learn from."""
        if self._is_random:
            return self._random_sampler, study
        levels = [
            (self._sampler, study),
            *(self._rungs[rung] for rung in sorted(self._rungs)[::-1]),
        ]
        for sampler, level in levels:
            complete = level.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            num_params = max((len(trial.params) for trial in complete[:1]), default=0)
            if len(complete) >= max(self._min_points, num_params + MORE_POINTS):
                return sampler, level
        return self._random_sampler, study

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Decide whether the next point is random."""
        self._is_random = self._chance.random() < self._random_share
        sampler, level = self._level(study)
        sampler.before_trial(level, _outside(trial))

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """See `BaseSampler`."""
        sampler, level = self._level(study)
        return sampler.infer_relative_search_space(level, _outside(trial))

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """See `BaseSampler`."""
        sampler, level = self._level(study)
        return sampler.sample_relative(level, _outside(trial), search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """See `BaseSampler`."""
        sampler, level = self._level(study)
        return sampler.sample_independent(level, _outside(trial), param_name, param_distribution)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """See `BaseSampler`."""
        self._sampler.after_trial(study, trial, state, values)


def _outside(trial: FrozenTrial) -> FrozenTrial:
    """Return a trial that has the number of no trial of a rung: samplers leave out their own."""
    outside = copy.copy(trial)
    outside.number = -1
    return outside
