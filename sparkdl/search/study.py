"""Where it runs: D. Optuna's study of a run: it proposes configurations and hears how they did."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState as State

from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial
from sparkdl.search.adaptive import Search
from sparkdl.search.grid import plain
from sparkdl.search.samplers import pruner_of, sampler_of
from sparkdl.search.spaces import Space

__all__ = ["Study", "Told"]

_DIRECTIONS = {
    "max": optuna.study.StudyDirection.MAXIMIZE,
    "min": optuna.study.StudyDirection.MINIMIZE,
}
_STATES = {TrialState.COMPLETE: State.COMPLETE, TrialState.PRUNED: State.PRUNED}


@dataclass(frozen=True)
class Told:
    """What is known of a configuration.

    Attributes:
        params, state: its parameters, and that of its trials together.
        values: of the metrics, if it is COMPLETE.
        reports: what it reported of the metric, by step.
        suggested: what it asked for, where the space is not written down: each value, and the
            JSON of its distribution.
    """

    params: Mapping[str, Any]
    state: TrialState
    values: Sequence[float] | None = None
    reports: Mapping[int, float] = field(default_factory=dict)
    suggested: Mapping[str, tuple[Any, str]] = field(default_factory=dict)


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
        self.is_exhausted = False

    # ---- before the first trial

    def plan(self, done: int = 0) -> None:
        """Queue what is not for the sampler to choose: initial values, and the points of a grid.

        Args:
            done: how many configurations there are already.
        """
        queue = [dict(params) for params in self._search.initial_params]
        if isinstance(self._space, Space):
            queue = [self._space.sampled(params) for params in queue]
            if self._search.algorithm == "grid":
                queue = _ordered(self._space.grid(), queue)
        for params in queue[done : self._search.count]:
            self._study.enqueue_trial(params)

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
                self._add(Told(trial.params, TrialState.COMPLETE, values), State.COMPLETE)
                found += 1
        return found

    def restore(self, configuration: int, told: "Told") -> None:
        """Take over a configuration of this run, as the journal has it; finished, or to be run."""
        if told.state.is_final:
            self._add(told, _STATES.get(told.state, State.FAIL))
            return
        self._study.enqueue_trial(self._sampled(told)[0])
        self.ask(configuration)
        for step, value in told.reports.items():
            self.report(configuration, step, value)

    def _sampled(self, told: "Told") -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
        if isinstance(self._space, Space):
            return self._space.sampled(told.params), self._space.distributions()
        read = optuna.distributions.json_to_distribution
        named = {name: read(kept) for name, (_, kept) in told.suggested.items()}
        return {name: value for name, (value, _) in told.suggested.items()}, named

    def _add(self, told: "Told", state: State) -> None:
        sampled, distributions = self._sampled(told)
        reports = {step: value for step, value in told.reports.items() if math.isfinite(value)}
        values = told.values
        if state is State.PRUNED and reports:
            values = [reports[max(reports)]]
        self._study.add_trial(
            optuna.create_trial(
                state=state,
                values=None if state is State.FAIL else values,
                params=sampled,
                distributions=distributions,
                intermediate_values=reports,
            )
        )

    # ---- while trials run

    def ask(self, configuration: int) -> dict[str, Any]:
        """The parameters of a new configuration; none yet where the objective asks for them."""
        if isinstance(self._space, Space):
            trial = self._study.ask(self._space.distributions())
            params = self._space.params(trial.params)
        else:
            trial = self._study.ask()
            params = {}
        self._trials[configuration] = trial
        if callable(self._space):
            given = self._space(trial)
            params = {name: plain(name, value) for name, value in given.items()}
        return params

    def suggest(self, configuration: int, name: str, distribution: BaseDistribution) -> Any:
        """The value of one parameter, for an objective that asks for it."""
        trial = self._trials[configuration]
        if isinstance(distribution, FloatDistribution):
            low, high = distribution.low, distribution.high
            return trial.suggest_float(
                name, low, high, step=distribution.step, log=distribution.log
            )
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

    def constrain(self, configuration: int, name: str, value: float) -> None:
        """Take over by how much a configuration violates a constraint."""
        self._trials[configuration].set_constraint(name, value)

    def tell(
        self, configuration: int, state: TrialState, values: Sequence[float] | None = None
    ) -> None:
        """How a configuration ended; `values` of the metrics if it is COMPLETE."""
        trial, told = self._trials.pop(configuration), _STATES.get(state, State.FAIL)
        self._seen.pop(configuration, None)
        whole = told is State.COMPLETE and values and all(map(math.isfinite, values))
        if told is State.COMPLETE and not whole:
            told = State.FAIL
        try:
            self._study.tell(trial, values if whole else None, told)
        except RuntimeError as exc:
            if "Study.stop" not in str(exc):
                raise
            self.is_exhausted = True  # So a sampler says that it has no more; it was told.


def _ordered(
    grid: Mapping[str, Sequence[Any]], first: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The points of a grid, each once; those that have the values of `first` come first.

    Example:
        >>> _ordered({"a": [1, 2], "b": [3, 4]}, [{"b": 4}])
        [{'a': 1, 'b': 4}, {'a': 1, 'b': 3}, {'a': 2, 'b': 3}, {'a': 2, 'b': 4}]
    """
    points = [dict(zip(grid, point, strict=True)) for point in itertools.product(*grid.values())]
    wanted = []
    for params in first:
        for point in points:
            if params.items() <= point.items():
                points.remove(point)
                wanted.append(point)
                break
    return wanted + points
