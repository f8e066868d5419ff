"""Runs on the driver (pure). Population based training: decide how each member continues.

The rules are those of Jaderberg et al., "Population Based Training of Neural Networks" (2017),
arXiv:1711.09846: truncation selection, and exploration by perturbing or resampling.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sparkdl.runs import Trial, TrialState
from sparkdl.search.population_settings import PopulationSettings
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.dimensions import Dimension
from sparkdl.search.space.points import UntriedPoints
from sparkdl.search.space.spaces import Space

__all__ = ["Interval", "Population", "first_intervals"]

# Perturbed parameters that break a constraint are perturbed again, at most this many times.
MAX_PERTURBATIONS = 100


@dataclass(frozen=True)
class Interval:
    """The next interval of training of a member of the population.

    Attributes:
        member: the number of the member.
        params: the parameters of the interval.
        parent: the number of the trial from whose checkpoint it continues; None at the beginning.
    """

    member: int
    params: dict[str, Any]
    parent: int | None = None


def first_intervals(search: SearchSettings, seed: int, count: int) -> list[dict[str, Any]]:
    """Return the parameters of the first trials, which depend on no result.

    Args:
        search: the settings of the search.
        seed: the seed of the run.
        count: number of trials.
    """
    population = Population(search, "max", seed)
    count = min(count, PopulationSettings.of(search.algorithm).population)
    return [population.first_params(member) for member in range(count)]


class Population:
    """The members of a population, each of which trains one interval after the other.

    Each interval is a trial. What comes next follows from the trials alone, so that a resumed run
    continues in the same way.

    Args:
        search: the settings of the search.
        direction: `max` or `min`.
        seed: the source of chance.
    """

    def __init__(self, search: SearchSettings, direction: str, seed: int) -> None:
        self._settings = PopulationSettings.of(search.algorithm)
        self._space = cast(Space, search.space)
        self._initial = search.initial_params
        self._constraints = search.parsed_constraints
        self._points = UntriedPoints(self._space, self._constraints)
        self._sign = 1.0 if direction == "max" else -1.0
        self._seed = seed

    def next(self, trials: Sequence[Trial]) -> Interval | None:
        """Return the next interval; None while all members are in one.

        Args:
            trials: all trials of the run, in the order of their numbers.
        """
        members: dict[int, list[Trial]] = {}
        for trial in trials:
            if trial.member is not None:
                members.setdefault(trial.member, []).append(trial)
        if len(members) < self._settings.population:
            return Interval(len(members), self.first_params(len(members)))
        # The member that has trained least comes first, so that members can be compared.
        free = [(len(own), member) for member, own in members.items() if own[-1].state.is_final]
        if not free:
            return None
        count, member = min(free)
        rivals = [own[count - 1] for own in members.values() if len(own) >= count]
        return self._continued(members[member], rivals, self._chance(len(trials)))

    def _chance(self, number: int) -> random.Random:
        """Return the source of chance for a trial."""
        return random.Random(f"{self._seed} {number}")

    def first_params(self, member: int) -> dict[str, Any]:
        """Return the parameters with which a member begins."""
        chance = self._chance(member)
        fixed = self._initial[member] if member < len(self._initial) else {}
        point = self._points.draw(chance, self._space.sampled(fixed))
        # Constraints that cannot be satisfied are refused before the run starts.
        return {**fixed} if point is None else self._space.params(point)

    def _continued(
        self, own: Sequence[Trial], rivals: Sequence[Trial], chance: random.Random
    ) -> Interval:
        """Return the next interval of a member, given all trials of its last generation."""
        last = own[-1]
        member = last.member or 0
        ranked = sorted(
            (trial for trial in rivals if trial.state.is_final),
            key=lambda trial: (-self._score(trial), trial.number),
        )
        num_replaced = int(len(ranked) * self._settings.quantile)
        best = [t for t in ranked[:num_replaced] if self._score(t) > self._score(last)]
        has_failed = self._score(last) == -math.inf
        if has_failed and not best:
            best = [trial for trial in ranked if self._score(trial) > -math.inf]
        if best and (has_failed or last in ranked[len(ranked) - num_replaced :]):
            winner = chance.choice(best)
            return Interval(member, self._explored(winner.params, chance), winner.number)
        if has_failed:  # Nobody is better: another try from where this one began.
            return Interval(member, self._explored(last.params, chance), last.parent)
        return Interval(member, dict(last.params), last.number)

    def _score(self, trial: Trial) -> float:
        is_valid = trial.state == TrialState.COMPLETE and trial.value is not None
        return self._sign * (trial.value or 0.0) if is_valid else -math.inf

    def _explored(self, params: Mapping[str, Any], chance: random.Random) -> dict[str, Any]:
        """Return parameters near those of a winner."""
        before = self._space.sampled(params)
        settings = self._settings

        def sample(key: str, dimension: Dimension) -> Any:
            if key not in before or chance.random() < settings.resample:
                return dimension.draw(chance)
            return dimension.perturb(before[key], settings.factor, chance)

        for _ in range(MAX_PERTURBATIONS):
            explored = self._space.params(self._space.choose(sample))
            if self._constraints.allow(explored):
                return explored
        return dict(params)
