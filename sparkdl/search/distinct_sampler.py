"""Runs on the driver. Correct a sampler that proposes points that may not be tried."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from sparkdl.search.space.points import UntriedPoints
from sparkdl.search.space.spaces import Dimension, Space

# The sampler is asked this many times for a point; after that, a random one is taken. With few
# points left, or while trials run whose values it does not know, it proposes the same ones again.
MAX_PROPOSALS = 5


class DistinctSampler(BaseSampler):
    """A sampler of points that satisfy the constraints, none of which is proposed twice.

    Points that the user has chosen, in trials that were enqueued, are proposed as they are.

    Args:
        sampler: proposes points.
        space: the space.
        points: the points of this space that may be tried.
        seed: seed of the random points.
    """

    def __init__(
        self, sampler: BaseSampler, space: Space, points: UntriedPoints, seed: int
    ) -> None:
        self._sampler = sampler
        self._space = space
        self._distributions = space.distributions()
        self._points = points
        self._choose = random.Random(seed)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the whole space: all parameters are sampled together, to compare them."""
        return dict(self._distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return a point that may be tried; if there is none, what the sampler proposes."""
        user_params = trial.system_attrs.get("fixed_params", {})
        fixed = {name: user_params[name] for name in self._distributions if name in user_params}
        own = self._sampler.infer_relative_search_space(study, trial)
        for _ in range(MAX_PROPOSALS):
            proposed = self._sampler.sample_relative(study, trial, own)
            point = self._point(study, trial, {**proposed, **fixed})
            if self._points.has(point):
                return point
        drawn = self._points.draw(self._choose, fixed)
        return point if drawn is None else drawn

    def _point(self, study: Study, trial: FrozenTrial, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a point with known values; the sampler chooses the others one by one."""

        def sample(name: str, dimension: Dimension) -> Any:
            if name in values:
                return values[name]
            if dimension.num_values == 1:  # Samplers are not asked for such a value.
                return (dimension.all_values() or [])[0]
            return self._sampler.sample_independent(study, trial, name, self._distributions[name])

        return self._space.choose(sample)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a value for a parameter that is not in the space."""
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """See `BaseSampler`."""
        self._sampler.before_trial(study, trial)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """See `BaseSampler`."""
        self._sampler.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        """See `BaseSampler`."""
        self._sampler.reseed_rng()
