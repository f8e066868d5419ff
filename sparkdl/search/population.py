"""Runs on the driver (pure). Population based training: decide how each member continues.

The rules are those of Jaderberg et al., "Population Based Training of Neural Networks" (2017),
arXiv:1711.09846: truncation selection, and exploration by perturbing or resampling.
"""

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from sparkdl.runs import Trial, TrialState
from sparkdl.search.population_settings import PopulationSettings
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.dimensions import Dimension
from sparkdl.search.space.points import UntriedPoints
from sparkdl.search.space.spaces import Space

# A member waits while it has trained more than this many intervals more than the least trained one.
# The search ends with the share of the slowest member in any case, so waiting costs little.
MAX_LEAD = 2

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

    def next(self, trials: Sequence[Trial], num_trials: int | None = None) -> Interval | None:
        """Return the next interval; None while it depends on results of trials that run.

        Args:
            trials: all trials of the run, in the order of their numbers.
            num_trials: the number of trials of the whole search; None for no limit.
        """
        members: dict[int, list[Trial]] = {}
        for trial in trials:
            if trial.member is not None:
                members.setdefault(trial.member, []).append(trial)
        size = self._settings.population
        if len(members) < size:
            return Interval(len(members), self.first_params(len(members)))
        going = {m: own for m, own in members.items() if len(own) < _share(m, size, num_trials)}
        # A failed interval does not advance its member.
        trained = {m: sum(self._is_good(t) for t in own) for m, own in going.items()}
        for member in sorted(going, key=lambda m: (trained[m], m)):
            own = going[member]
            if trained[member] > min(trained.values()) + MAX_LEAD:
                return None
            if not own[-1].state.is_final:
                continue
            if not self._is_good(own[-1]) and not any(map(self._is_good, trials)):
                # Another member may soon have a checkpoint.
                if not all(trial.state.is_final for trial in trials):
                    continue
                return Interval(member, self._drawn(self._chance(len(trials))))
            return self._continued(own, members, self._chance(len(trials)))
        return None

    def _chance(self, number: int) -> random.Random:
        """Return the source of chance for a trial."""
        return random.Random(f"{self._seed} {number}")

    def first_params(self, member: int) -> dict[str, Any]:
        """Return the parameters with which a member begins."""
        fixed = self._initial[member] if member < len(self._initial) else {}
        return self._drawn(self._chance(member), fixed)

    def _drawn(
        self, chance: random.Random, fixed: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, Any]:
        """Return random parameters, some of which the user may have chosen."""
        point = self._points.draw(chance, self._space.sampled(fixed))
        # Constraints that cannot be satisfied are refused before the run starts.
        return {**fixed} if point is None else self._space.params(point)

    def _continued(
        self, own: Sequence[Trial], members: Mapping[int, Sequence[Trial]], chance: random.Random
    ) -> Interval:
        """Return the next interval of a member, given the trials of all members."""
        last = own[-1]
        member = last.member or 0
        # All members are compared by their latest interval that has ended, however long they have
        # trained, so that nobody waits.
        ended = [[trial for trial in trials if trial.state.is_final] for trials in members.values()]
        ranked = sorted(
            (trials[-1] for trials in ended if trials),
            key=lambda trial: (-self._score(trial), trial.number),
        )
        num_replaced = min(math.ceil(len(ranked) * self._settings.quantile), len(ranked) // 2)
        best = [t for t in ranked[:num_replaced] if self._score(t) > self._score(last)]
        if self._is_good(last):
            if not best or last not in ranked[len(ranked) - num_replaced :]:
                return Interval(member, dict(last.params), last.number)
        elif not best:  # Of few members; or none is better now, but there was a good interval.
            good = [trial for trial in ranked if self._is_good(trial)]
            earlier = own if any(map(self._is_good, own)) else itertools.chain(*members.values())
            best = good or [[trial for trial in earlier if self._is_good(trial)][-1]]
        winner = chance.choice(best)
        return Interval(member, self._explored(winner.params, chance), winner.number)

    def _is_good(self, trial: Trial) -> bool:
        """Return True if a member can continue from a trial."""
        return self._score(trial) > -math.inf

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


def _share(member: int, size: int, num_trials: int | None) -> float:
    """Return the number of trials of a member, so that all members train equally long."""
    return math.inf if num_trials is None else num_trials // size + (member < num_trials % size)
