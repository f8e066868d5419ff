"""Runs in the training process. Call an Optuna-style objective that requests its parameters.

The study is on the driver. Requests and answers are exchanged through the trial's files: a round
trip takes some hundredths of a second on a shared disk, and some seconds on an object store.
"""

import datetime
import os
from collections.abc import Callable, Mapping, Sequence
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
from sparkdl.secrets.masks import mask_params
from sparkdl.secrets.names import known_secrets


def call_objective(
    objective: Callable[[Any], Any], prunes: bool, metrics: Sequence[str | None]
) -> Any:
    """Call an objective with a trial that sends its requests to the driver.

    Args:
        objective: the user's function.
        prunes: True if the search has a pruner.
        metrics: names of the numbers that the objective returns.

    Returns:
        The values that the objective returned, with the user attributes of the trial if it has any.
    """
    trial = RemoteTrial(prunes)
    returned = objective(trial)
    if not trial.user_attrs:
        return returned
    values = [returned] if len(metrics) == 1 else returned
    names = [name or "value" for name in metrics]
    return {**trial.user_attrs, **dict(zip(names, values, strict=True))}


class RemoteTrial(BaseTrial):
    """The argument of an objective: a trial with the methods of `optuna.Trial`.

    Args:
        prunes: True if the search has a pruner.
    """

    def __init__(self, prunes: bool) -> None:
        self._prunes = prunes
        self._params: dict[str, Any] = {}
        self._distributions: dict[str, BaseDistribution] = {}
        self._user_attrs: dict[str, Any] = {}
        self._constraints: dict[str, float] = {}
        self._started = datetime.datetime.now()

    def _suggest(self, name: str, distribution: BaseDistribution) -> Any:
        choices = {name: list(getattr(distribution, "choices", ()))}
        # Requests are stored in the run directory.
        if mask_params(choices, known_secrets(os.environ)) != choices:
            raise ValueError(
                f"the choices of {name!r} look like credentials, which are not stored. Choose "
                "among names of the credentials instead."
            )
        text = distribution_to_json(distribution)
        value = context.this_reporter().ask(suggest=name, distribution=text)
        self._params[name] = value
        self._distributions[name] = distribution
        return value

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return a number between `low` and `high`."""
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
        """Return a whole number between `low` and `high`."""
        return int(self._suggest(name, IntDistribution(low, high, log=log, step=step)))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return one of `choices`, which are None, booleans, numbers or strings."""
        return self._suggest(name, CategoricalDistribution(choices))

    def report(self, value: float | Mapping[str, float], step: int) -> None:
        """Report the value of the metric at a step; only the first value of each step is used.

        Args:
            value: the value; a dict with several metrics, from name to value.
            step: the step.
        """
        values = value if isinstance(value, Mapping) else {"value": value}
        context.this_reporter().write({name: float(one) for name, one in values.items()}, step)

    def should_prune(self) -> bool:
        """Return True if the pruner stops the trial, given all values reported so far."""
        return self._prunes and bool(context.this_reporter().ask(should_prune=True))

    def set_user_attr(self, key: str, value: Any) -> None:
        """Add a value to the trial's `outputs`, beside the values that the objective returns."""
        self._user_attrs[key] = value

    def set_system_attr(self, key: str, value: Any) -> None:
        """Refuse; before Optuna 5, samplers of Optuna keep values of their own so."""
        raise NotImplementedError(f"{key!r} is not kept: expected set_user_attr(name, value).")

    def set_constraint(self, key: str, value: float) -> None:
        """Report a constraint: a value above 0 is the amount by which the trial violates it."""
        context.this_reporter().ask(constraint=key, of=float(value))
        self._constraints[key] = float(value)

    @property
    def params(self) -> dict[str, Any]:
        """The parameters requested so far."""
        return dict(self._params)

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """The distributions of the parameters requested so far."""
        return dict(self._distributions)

    @property
    def user_attrs(self) -> dict[str, Any]:
        """The values set by `set_user_attr`."""
        return dict(self._user_attrs)

    @property
    def system_attrs(self) -> dict[str, Any]:
        """Nothing; see `set_system_attr`."""
        return {}

    @property
    def datetime_start(self) -> datetime.datetime | None:
        """The time at which the objective was called."""
        return self._started

    @property
    def number(self) -> int:
        """The trial's number."""
        return context.current().trial

    @property
    def constraints(self) -> dict[str, float]:
        """The values set by `set_constraint`."""
        return dict(self._constraints)
