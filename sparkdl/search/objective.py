"""Runs in the training process.

An objective in Optuna's own style: it asks a trial for its parameters.

The study is on the driver. What is asked goes there through the trial's files, and so does the
answer: some hundredths of a second on a shared disk, some seconds through an object store.
"""

import datetime
from collections.abc import Callable, Sequence
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)
from optuna.trial import BaseTrial

from sparkdl import context
from sparkdl.runs.redact import mask_params

__all__ = ["AskingTrial", "call_objective"]


def call_objective(
    objective: Callable[[Any], Any], prunes: bool, metrics: Sequence[str | None]
) -> Any:
    """Call an objective with a trial that asks the driver.

    Args:
        objective: the person's function.
        prunes: the search has a pruner.
        metrics: the names of the numbers that it returns.
    """
    trial = AskingTrial(prunes)
    returned = objective(trial)
    if not trial.user_attrs:
        return returned
    values = [returned] if len(metrics) == 1 else returned
    names = [name or "value" for name in metrics]
    return {**trial.user_attrs, **dict(zip(names, values, strict=True))}


class AskingTrial(BaseTrial):
    """What an objective gets, with the methods of `optuna.Trial`.

    Args:
        prunes: the search has a pruner.
    """

    def __init__(self, prunes: bool) -> None:
        self._prunes = prunes
        self._params: dict[str, Any] = {}
        self._distributions: dict[str, BaseDistribution] = {}
        self._attrs: dict[str, Any] = {}
        self._constraints: dict[str, float] = {}
        self._started = datetime.datetime.now()

    def _suggest(self, name: str, distribution: BaseDistribution) -> Any:
        choices = {name: list(getattr(distribution, "choices", ()))}
        if mask_params(choices) != choices:  # What is asked is written down.
            raise ValueError(
                f"the choices of {name!r} look like credentials, which are not kept. Choose among "
                "names of them."
            )
        asked = distribution_to_json(distribution)
        value = context.this_reporter().ask(suggest=name, distribution=asked)
        self._params[name], self._distributions[name] = value, distribution
        return value

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """A number between `low` and `high`."""
        return float(self._suggest(name, FloatDistribution(low, high, log=log, step=step)))

    def suggest_uniform(self, name: str, low: float, high: float) -> float:
        """See `suggest_float`."""
        return self.suggest_float(name, low, high)

    def suggest_loguniform(self, name: str, low: float, high: float) -> float:
        """See `suggest_float`."""
        return self.suggest_float(name, low, high, log=True)

    def suggest_discrete_uniform(self, name: str, low: float, high: float, q: float) -> float:
        """See `suggest_float`."""
        return self.suggest_float(name, low, high, step=q)

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        """A whole number between `low` and `high`."""
        return int(self._suggest(name, IntDistribution(low, high, log=log, step=step)))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """One of `choices`: None, or booleans, numbers and strings."""
        return self._suggest(name, CategoricalDistribution(choices))

    def report(self, value: float, step: int) -> None:
        """Report the metric's number at a step; only the first of a step counts."""
        reporter = context.this_reporter()
        reporter.write({"value": float(value)}, step)

    def should_prune(self) -> bool:
        """Whether the pruner says stop, by all that was reported until now."""
        return self._prunes and bool(context.this_reporter().ask(should_prune=True))

    def set_user_attr(self, key: str, value: Any) -> None:
        """Keep a value with what the objective returns: it is in the trial's `outputs`."""
        self._attrs[key] = value

    def set_constraint(self, key: str, value: float) -> None:
        """Say how much a constraint is violated, above 0, or met."""
        context.this_reporter().ask(constraint=key, of=float(value))
        self._constraints[key] = float(value)

    @property
    def params(self) -> dict[str, Any]:
        """What was asked for until now."""
        return dict(self._params)

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Where that was sampled from."""
        return dict(self._distributions)

    @property
    def user_attrs(self) -> dict[str, Any]:
        """What `set_user_attr` kept."""
        return dict(self._attrs)

    @property
    def datetime_start(self) -> datetime.datetime | None:
        """When the objective was called."""
        return self._started

    @property
    def number(self) -> int:
        """The trial's number."""
        return context.current().trial

    @property
    def constraints(self) -> dict[str, float]:
        """What `set_constraint` kept."""
        return dict(self._constraints)
