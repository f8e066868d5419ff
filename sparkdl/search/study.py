"""Runs on the driver. Wrap the Optuna study that proposes the configurations of a run."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import TrialState as OptunaState

from sparkdl.errors import ConfigError
from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial
from sparkdl.search.distinct_sampler import DistinctSampler
from sparkdl.search.optuna_studies import is_json, new_study, suggest
from sparkdl.search.pruners import NamedPruner, pruner_of
from sparkdl.search.samplers import rung_sampler_of, sampler_of
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.grid import to_json_value
from sparkdl.search.space.points import UntriedPoints, grid_points
from sparkdl.search.space.spaces import Space
from sparkdl.search.stopping import StoppingRule, stopping_rule_of
from sparkdl.search.trial_records import TrialRecord
from sparkdl.search.trial_source import RequestRefused

_OPTUNA_STATES = {
    TrialState.COMPLETE: OptunaState.COMPLETE,
    TrialState.PRUNED: OptunaState.PRUNED,
}


class Study:
    """An Optuna study in the memory of the driver; the run's journal stores its contents.

    Args:
        search: the settings of the search.
        objectives: the direction of each metric, by name.
        seed: seed of the sampler.
        name: name of the study.

    Attributes:
        prunes: True if the study may stop trials.
        is_exhausted: True if the sampler has no more points.

    Raises:
        ConfigError: if the sampler or the pruner is invalid or needs a missing package.
    """

    def __init__(
        self,
        search: SearchSettings,
        objectives: Mapping[str, str],
        seed: int,
        name: str = "study",
    ) -> None:
        self._search = search
        self._metrics = list(objectives)
        self._space = search.space
        self.prunes = search.pruner is not None and not search.promotes
        self._rule: StoppingRule | None = None  # The pruners of Optuna compare one metric.
        if self.prunes and len(objectives) > 1:
            self._rule = stopping_rule_of(NamedPruner.of(search.pruner), objectives, name)
        storage = optuna.storages.InMemoryStorage()
        self._rungs = None
        if search.promotes:
            self._rungs = rung_sampler_of(search.algorithm, seed, storage, *objectives.values())
        common = self._space.common_distributions() if isinstance(self._space, Space) else {}
        sampler = self._rungs or sampler_of(search.algorithm, seed, common, len(objectives))
        self._points = None
        if isinstance(self._space, Space) and (search.num_points is not None or search.constraints):
            limits = (search.parsed_constraints, search.num_points)
            self._points = UntriedPoints(self._space, *limits)
            sampler = DistinctSampler(sampler, self._space, self._points, seed)
        self._study = new_study(
            storage=storage,
            # Hyperband derives its brackets from the name, so a resumed run needs the same one.
            study_name=name,
            directions=[f"{direction}imize" for direction in objectives.values()],
            sampler=sampler,
            pruner=pruner_of(None if self._rule else search.pruner),
        )
        self._trials: dict[int, optuna.Trial] = {}
        self._reported_steps: dict[int, set[int]] = {}
        self._not_finite: set[int] = set()
        self._distributions: dict[str, BaseDistribution] = {}
        self._queue: Iterator[dict[str, Any]] = iter(())
        self.is_exhausted = False

    @property
    def num_untried(self) -> int | None:
        """The number of points of the space that were not tried; None if points may be repeated."""
        return None if self._points is None else self._points.num_left()

    # ---- before the first trial

    def queue_initial(self, num_done: int = 0) -> None:
        """Queue the configurations that the sampler does not choose: initial ones and grid points.

        Args:
            num_done: number of configurations that the run already has.
        """
        queue: Iterable[dict[str, Any]] = [dict(p) for p in self._search.initial_params]
        if isinstance(self._space, Space):
            queue = [self._space.sampled(params) for params in queue]
            if self._search.algorithm == "grid":
                queue = grid_points(self._space, queue)
        self._queue = itertools.islice(queue, num_done, None)

    def learn(self, trials: Sequence[Trial], metric_of: Callable[[Trial, str], Any]) -> int:
        """Add the complete trials of another run whose parameters are in the space.

        Args:
            trials: the trials of the other run.
            metric_of: returns the value of a metric, given a trial and the metric's name; None if
                the trial has no value.

        Returns:
            The number of trials that were added.
        """
        if not isinstance(self._space, Space):
            return 0
        num_added = 0
        for trial in trials:
            values = [metric_of(trial, name) for name in self._metrics]
            is_usable = trial.state == TrialState.COMPLETE and None not in values
            if is_usable and self._space.has(trial.params):
                self._add(trial.params, TrialState.COMPLETE, values, TrialRecord())
                num_added += 1
        return num_added

    def resume(
        self,
        configuration: int,
        params: Mapping[str, Any],
        record: TrialRecord,
        user_params: Mapping[str, Any] = MappingProxyType({}),
    ) -> bool:
        """Add a configuration that an earlier driver proposed and that will run again.

        Args:
            configuration: the number of the configuration.
            params: its parameters.
            record: its history in the journal.
            user_params: parameters that the user has chosen; an objective may not have requested
                them.

        Returns:
            True if the pruner would stop the configuration after its last report.
        """
        sampled, distributions = self._sampled_values(params, record)
        self._remove_point(sampled)
        self._study.enqueue_trial({**user_params, **sampled})
        self._trials[configuration] = self._study.ask(distributions)
        if self._rule:
            self._rule.restore(configuration, record.reports, *record.stops)
            return self.should_prune(configuration)
        is_stopped = False
        for step, values in record.reports.items():
            self.report(configuration, step, *values)
            is_stopped = self.should_prune(configuration)
        return is_stopped

    def add_finished(
        self,
        params: Mapping[str, Any],
        state: TrialState,
        values: Sequence[float] | None = None,
        record: TrialRecord | None = None,
        configuration: int | None = None,
    ) -> None:
        """Add a configuration that has already ended.

        Args:
            params: its parameters.
            state: its final state.
            values: the values of the metrics if the state is COMPLETE.
            record: its history in the journal.
            configuration: its number; None if the pruner does not compare it with others.
        """
        record = record or TrialRecord()
        self._remove_point(self._add(params, state, values, record))
        if self._rule and configuration is not None:
            self._rule.restore(configuration, record.reports, *record.stops)
            self._rule.end(configuration, state)

    def _remove_point(self, sampled: Mapping[str, Any]) -> None:
        if self._points is not None:
            self._points.remove(sampled)

    def _add(
        self,
        params: Mapping[str, Any],
        state: TrialState,
        values: Sequence[float] | None,
        record: TrialRecord,
    ) -> dict[str, Any]:
        """Add a configuration that has ended to the study; return its sampled values."""
        optuna_state = _OPTUNA_STATES.get(state, OptunaState.FAIL)
        sampled, distributions = self._sampled_values(params, record)
        # Optuna has no reports of several metrics.
        reports = {
            step: values[0]
            for step, values in record.reports.items()
            if len(values) == 1 and math.isfinite(values[0])
        }
        if optuna_state is OptunaState.PRUNED and reports:
            values = [reports[max(reports)]]
        self._study.add_trial(
            optuna.create_trial(
                state=optuna_state,
                values=None if optuna_state is OptunaState.FAIL else values,
                params=sampled,
                distributions=distributions,
                intermediate_values=reports,
                system_attrs=dict(record.attrs),
            )
        )
        return sampled

    def _sampled_values(
        self, params: Mapping[str, Any], record: TrialRecord
    ) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
        if isinstance(self._space, Space):
            sampled, every = self._space.sampled(params), self._space.distributions()
            return sampled, {name: every[name] for name in sampled}
        sampled = {name: value for name, (value, _) in record.suggested.items()}
        distributions = {
            name: optuna.distributions.json_to_distribution(text)
            for name, (_, text) in record.suggested.items()
        }
        self._distributions |= distributions
        return sampled, distributions

    # ---- while trials run

    def ask(
        self, configuration: int, user_params: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the parameters of a new configuration.

        The parameters are empty if the objective will request them.

        Args:
            configuration: the number of the configuration.
            user_params: parameters that the user has chosen; the sampler chooses the others.
        """
        if user_params is None:
            user_params = next(filter(self._is_untried, self._queue), None)
        elif isinstance(self._space, Space):
            user_params = self._space.sampled(user_params)
        if user_params is not None:
            self._study.enqueue_trial(dict(user_params))
        trial = self._trials[configuration] = self._study.ask()
        params: dict[str, Any] = {}
        if isinstance(self._space, Space):
            sampled = self._space.choose(
                lambda name, dimension: suggest(trial, name, dimension.distribution())
            )
            self._remove_point(sampled)
            params = self._space.params(sampled)
        if callable(self._space):
            returned = self._space(trial)
            if not isinstance(returned, Mapping):
                raise ConfigError(f"space returned {returned!r}; expected a dict of parameters.")
            params = {name: to_json_value(name, value) for name, value in returned.items()}
        return params

    def _is_untried(self, point: Mapping[str, Any]) -> bool:
        return self._points is None or self._points.num_left(point) != 0

    def suggest(self, configuration: int, name: str, distribution_json: str) -> Any:
        """Return the value of a parameter that an objective requests.

        Args:
            configuration: the number of the configuration.
            name: the parameter.
            distribution_json: the distribution to sample from, as Optuna's JSON.

        Raises:
            RequestRefused: if the parameter was requested before with an incompatible
                distribution, or the user has chosen a value that no such parameter can have.
        """
        trial = self._trials[configuration]
        distribution = optuna.distributions.json_to_distribution(distribution_json)
        try:
            # All trials of a study must use compatible distributions for a parameter; Optuna
            # raises a plain ValueError if they do not.
            first = self._distributions.setdefault(name, distribution)
            optuna.distributions.check_distribution_compatibility(first, distribution)
        except ValueError as exc:
            raise RequestRefused(str(exc)) from exc
        try:
            return suggest(trial, name, distribution)
        except ValueError as exc:  # A value of `enqueue` or `initial_params` was never checked.
            raise RequestRefused(f"the value that was chosen for {name!r}: {exc}") from exc

    def suggested(self, configuration: int) -> dict[str, tuple[Any, str]]:
        """Return the parameters requested so far, see `TrialRecord.suggested`."""
        trial = self._trials[configuration]
        to_json = optuna.distributions.distribution_to_json
        return {
            name: (trial.params[name], to_json(distribution))
            for name, distribution in trial.distributions.items()
        }

    def report(self, configuration: int, step: int, *values: float) -> None:
        """Pass reported values to the pruner; only the first ones of each step are used.

        Args:
            configuration: the number of the configuration.
            step: the step, or for a pruner that counts reports the number of the report.
            *values: a value of each metric.
        """
        if self._rule:
            self._rule.report(configuration, step, values)
        if len(self._metrics) > 1:
            return
        value = values[0]
        steps = self._reported_steps.setdefault(configuration, set())
        if not math.isfinite(value):
            self._not_finite.add(configuration)  # Samplers and pruners expect finite values.
        elif step >= 0 and step not in steps:  # A lost attempt may have reported the step before.
            steps.add(step)
            self._trials[configuration].report(value, step)

    def reach(self, params: Mapping[str, Any], rung: int, *values: float) -> None:
        """Let the sampler learn from the values of a configuration at a rung.

        Args:
            params: the parameters of the configuration.
            rung: the number of reports.
            *values: the reported value of each metric.
        """
        if self._rungs is not None and all(map(math.isfinite, values)):
            self._rungs.add(rung, *self._sampled_values(params, TrialRecord()), *values)

    def should_prune(self, configuration: int) -> bool:
        """Return True if a configuration should be stopped, given its reports.

        Call this method exactly once after each report: some pruners store each call.
        """
        if not self.prunes:
            return False
        if self._rule:
            return self._rule.why(configuration) is not None
        is_broken = configuration in self._not_finite
        return is_broken or bool(self._trials[configuration].should_prune())

    def why_stopped(self, configuration: int) -> str | None:
        """Return why a configuration with several metrics is stopped; None if it is not."""
        return self._rule.why(configuration) if self._rule else None

    def restart(self, configuration: int) -> None:
        """Discard the reports of a configuration whose function failed and runs again."""
        trial = self._trials[configuration]
        self.tell(configuration, TrialState.FAILED)
        self._study.enqueue_trial(trial.params)
        self._trials[configuration] = self._study.ask(trial.distributions)
        if self._rule:
            self._rule.restart(configuration)

    def set_constraint(self, configuration: int, name: str, value: float) -> None:
        """Set the amount by which a configuration violates a constraint."""
        self._trials[configuration].set_constraint(name, value)

    def tell(
        self, configuration: int, state: TrialState, values: Sequence[float] | None = None
    ) -> dict[str, Any]:
        """Record the end of a configuration.

        Args:
            configuration: the number of the configuration.
            state: its final state.
            values: the values of the metrics if the state is COMPLETE.

        Returns:
            The system attributes that the sampler and the pruner stored, for `TrialRecord.attrs`.
        """
        trial = self._trials.pop(configuration)
        if self._rule:
            self._rule.end(configuration, state)
        optuna_state = _OPTUNA_STATES.get(state, OptunaState.FAIL)
        self._reported_steps.pop(configuration, None)
        self._not_finite.discard(configuration)
        is_complete = optuna_state is OptunaState.COMPLETE
        has_values = is_complete and values and all(map(math.isfinite, values))
        if is_complete and not has_values:
            optuna_state = OptunaState.FAIL
        try:
            self._study.tell(trial, values if has_values else None, optuna_state)
        except RuntimeError as exc:
            if "Study.stop" not in str(exc):
                raise
            # The sampler has no more points, so it called Study.stop, which is an error outside of
            # Study.optimize. The result of this trial was recorded before.
            self.is_exhausted = True
        attrs = self._study.get_trials(deepcopy=False)[trial.number].system_attrs
        return {name: value for name, value in attrs.items() if is_json(value)}
