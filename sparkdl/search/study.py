"""Runs on the driver.

Optuna's study of a run: it proposes configurations and hears how they did.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState as State

from sparkdl.errors import ConfigError
from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial
from sparkdl.search.samplers import pruner_of, sampler_of
from sparkdl.search.settings import Search
from sparkdl.search.space.grid import plain
from sparkdl.search.space.spaces import Space
from sparkdl.search.trial_source import Refused

__all__ = ["Study", "Told"]

_DIRECTIONS = {
    "max": optuna.study.StudyDirection.MAXIMIZE,
    "min": optuna.study.StudyDirection.MINIMIZE,
}
_STATES = {TrialState.COMPLETE: State.COMPLETE, TrialState.PRUNED: State.PRUNED}


@dataclass(frozen=True)
class Told:
    """What the journal knows of a configuration beside its parameters and its end.

    Attributes:
        reports: what it reported of the metric, by step.
        suggested: what was asked for, where the space is not written down: each value, and the
            JSON of its distribution.
        attrs: what sampler and pruner remember of it.
    """

    reports: dict[int, float] = field(default_factory=dict)
    suggested: dict[str, tuple[Any, str]] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)


class Study:
    """The study lives on the driver, in memory: what it was told is in the run's journal.

    Args:
        search: what is varied, and who proposes.
        objectives: the direction of each metric.
        seed: of the sampler.
        name: of the study.

    Attributes:
        prunes: it may stop trials.
        is_exhausted: the sampler has no more.

    Raises:
        ConfigError: the sampler or pruner is none, or lacks a package.
    """

    def __init__(
        self, search: Search, objectives: Mapping[str, str], seed: int, name: str = "study"
    ) -> None:
        self._search, self._metrics = search, list(objectives)
        self._space = search.space
        self.prunes = search.pruner is not None
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # It says that it was made.
        try:
            self._study = optuna.create_study(
                # Hyperband's brackets depend on it: after a resume they must be the same.
                study_name=name,
                directions=[_DIRECTIONS[direction] for direction in objectives.values()],
                sampler=sampler_of(search.algorithm, seed),
                pruner=pruner_of(search.pruner),
            )
        finally:
            optuna.logging.set_verbosity(verbosity)
        self._trials: dict[int, optuna.Trial] = {}
        self._seen: dict[int, set[int]] = {}
        self._broken: set[int] = set()
        self._kinds: dict[str, BaseDistribution] = {}
        self._queue: Iterator[dict[str, Any]] = iter(())
        self.is_exhausted = False

    # ---- before the first trial

    def plan(self, done: int = 0) -> None:
        """Queue what is not for the sampler to choose: initial values, and the points of a grid.

        Args:
            done: how many configurations there are already.
        """
        queue: Iterable[dict[str, Any]] = [dict(p) for p in self._search.initial_params]
        if isinstance(self._space, Space):
            queue = [self._space.sampled(params) for params in queue]
            if self._search.algorithm == "grid":
                queue = _ordered(self._space.grid(), queue)
        self._queue = itertools.islice(queue, done, self._search.count)

    def learn(self, trials: Sequence[Trial], metric_of: Callable[[Trial, str], Any]) -> int:
        """Take over finished trials of another run whose parameters lie in the space.

        Returns:
            How many those were.
        """
        if not isinstance(self._space, Space):
            return 0
        found = 0
        for trial in trials:
            values = [metric_of(trial, name) for name in self._metrics]
            is_good = trial.state == TrialState.COMPLETE and None not in values
            if is_good and self._space.has(trial.params):
                self.add(trial.params, TrialState.COMPLETE, values)
                found += 1
        return found

    def again(self, configuration: int, params: Mapping[str, Any], told: "Told") -> None:
        """A configuration that was proposed before, and is to be run."""
        sampled, distributions = self._sampled(params, told)
        self._study.enqueue_trial(sampled)
        self._trials[configuration] = self._study.ask(distributions)
        for step, value in told.reports.items():
            self.report(configuration, step, value)
            self.should_prune(configuration)

    def add(
        self,
        params: Mapping[str, Any],
        state: TrialState,
        values: Sequence[float] | None = None,
        told: "Told | None" = None,
    ) -> None:
        """A configuration that has ended before; `values` of the metrics if it is COMPLETE."""
        told, ended = told or Told(), _STATES.get(state, State.FAIL)
        sampled, distributions = self._sampled(params, told)
        reports = {step: value for step, value in told.reports.items() if math.isfinite(value)}
        if ended is State.PRUNED and reports:
            values = [reports[max(reports)]]
        self._study.add_trial(
            optuna.create_trial(
                state=ended,
                values=None if ended is State.FAIL else values,
                params=sampled,
                distributions=distributions,
                intermediate_values=reports,
                system_attrs=dict(told.attrs),
            )
        )

    def _sampled(
        self, params: Mapping[str, Any], told: "Told"
    ) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
        if isinstance(self._space, Space):
            return self._space.sampled(params), self._space.distributions()
        read = optuna.distributions.json_to_distribution
        distributions = {name: read(kept) for name, (_, kept) in told.suggested.items()}
        self._kinds |= distributions
        return {name: value for name, (value, _) in told.suggested.items()}, distributions

    # ---- while trials run

    def ask(self, configuration: int) -> dict[str, Any]:
        """The parameters of a new configuration; none yet where the objective asks for them."""
        for params in itertools.islice(self._queue, 1):
            self._study.enqueue_trial(params)
        if isinstance(self._space, Space):
            trial = self._study.ask(self._space.distributions())
            params = self._space.params(trial.params)
        else:
            trial = self._study.ask()
            params = {}
        self._trials[configuration] = trial
        if callable(self._space):
            given = self._space(trial)
            if not isinstance(given, Mapping):
                raise ConfigError(f"space returned {given!r}; expected a dict of parameters.")
            params = {name: plain(name, value) for name, value in given.items()}
        return params

    def suggest(self, configuration: int, name: str, kept: str) -> Any:
        """The value of one parameter, for an objective that asks for it.

        Args:
            configuration: its number.
            name: the parameter.
            kept: the JSON of the distribution to sample from.

        Raises:
            Refused: it was asked for before, from another kind of distribution.
        """
        trial = self._trials[configuration]
        distribution = optuna.distributions.json_to_distribution(kept)
        try:
            # All trials of a study must agree on its kind; Optuna says so with a plain ValueError.
            before = self._kinds.setdefault(name, distribution)
            optuna.distributions.check_distribution_compatibility(before, distribution)
        except ValueError as exc:
            raise Refused(str(exc)) from exc
        if isinstance(distribution, FloatDistribution):
            bounds: tuple[Any, Any] = distribution.low, distribution.high
            return trial.suggest_float(name, *bounds, step=distribution.step, log=distribution.log)
        if isinstance(distribution, IntDistribution):
            bounds = distribution.low, distribution.high
            return trial.suggest_int(name, *bounds, step=distribution.step, log=distribution.log)
        return trial.suggest_categorical(name, distribution.choices)  # type: ignore[attr-defined]

    def suggested(self, configuration: int) -> dict[str, tuple[Any, str]]:
        """What was asked for so far, see `Told`."""
        trial, write = self._trials[configuration], optuna.distributions.distribution_to_json
        return {n: (trial.params[n], write(d)) for n, d in trial.distributions.items()}

    def report(self, configuration: int, step: int, value: float) -> None:
        """Take over what a trial reported; only the first of a step counts."""
        seen = self._seen.setdefault(configuration, set())
        if not math.isfinite(value):
            self._broken.add(configuration)  # No pruner and no sampler is ever told of it.
        elif step >= 0 and step not in seen:  # A lost attempt may have reported it before.
            seen.add(step)
            self._trials[configuration].report(value, step)

    def should_prune(self, configuration: int) -> bool:
        """Whether a configuration should be stopped, by what it has reported.

        Ask once after each report: some pruners remember that they were asked.
        """
        if not self.prunes:
            return False
        broken = configuration in self._broken
        return broken or bool(self._trials[configuration].should_prune())

    def restart(self, configuration: int) -> None:
        """Its function failed and runs again: what it reported counts no more."""
        trial = self._trials[configuration]
        self.tell(configuration, TrialState.FAILED)
        self._study.enqueue_trial(trial.params)
        self._trials[configuration] = self._study.ask(trial.distributions)

    def constrain(self, configuration: int, name: str, value: float) -> None:
        """Take over by how much a configuration violates a constraint."""
        self._trials[configuration].set_constraint(name, value)

    def tell(
        self, configuration: int, state: TrialState, values: Sequence[float] | None = None
    ) -> dict[str, Any]:
        """How a configuration ended; `values` of the metrics if it is COMPLETE.

        Returns:
            What sampler and pruner remember of it, for `add`.
        """
        trial, told = self._trials.pop(configuration), _STATES.get(state, State.FAIL)
        self._seen.pop(configuration, None)
        self._broken.discard(configuration)
        whole = told is State.COMPLETE and values and all(map(math.isfinite, values))
        if told is State.COMPLETE and not whole:
            told = State.FAIL
        try:
            self._study.tell(trial, values if whole else None, told)
        except RuntimeError as exc:
            if "Study.stop" not in str(exc):
                raise
            self.is_exhausted = True  # So a sampler says that it has no more; it was told.
        kept = self._study.get_trials(deepcopy=False)[trial.number].system_attrs
        return {name: value for name, value in kept.items() if _is_json(value)}


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def _ordered(
    grid: Mapping[str, Sequence[Any]], first: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The points of a grid, each once; those that have the values of `first` come first.

    Example:
        >>> list(_ordered({"a": [1, 2], "b": [3, 4]}, [{"b": 4}]))
        [{'a': 1, 'b': 4}, {'a': 1, 'b': 3}, {'a': 2, 'b': 3}, {'a': 2, 'b': 4}]
    """

    def points() -> Iterator[dict[str, Any]]:
        return (
            dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())
        )

    chosen: list[dict[str, Any]] = []
    for params in first:
        fits = (p for p in points() if params.items() <= p.items() and p not in chosen)
        chosen += itertools.islice(fits, 1)
    yield from chosen
    yield from (point for point in points() if point not in chosen)
