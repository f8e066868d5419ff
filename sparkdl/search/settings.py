"""Runs on the driver (pure). Define and validate the settings of a search."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl.errors import ConfigError, suggest
from sparkdl.options import check_count, plain_number, suggest_synonym
from sparkdl.runs.redact import mask_params
from sparkdl.search.pruners import PRUNERS, NamedPruner
from sparkdl.search.space.grid import to_json_value
from sparkdl.search.space.spaces import Space

__all__ = ["ALGORITHMS", "PRUNERS", "SearchSettings", "check_name"]

ALGORITHMS = ("random", "grid", "tpe", "gp", "cmaes", "nsga2", "qmc")

# Names of algorithms and pruners in other libraries, in lower case and without spaces.
_SYNONYMS = {
    **dict.fromkeys(("bayes", "bayesian", "bo", "hyperopt"), "tpe"),
    **dict.fromkeys(("randomsearch", "random_search"), "random"),
    **dict.fromkeys(("gridsearch", "grid_search"), "grid"),
    **dict.fromkeys(("nsgaii", "nsga-ii"), "nsga2"),
    **dict.fromkeys(("sha", "successive_halving", "successivehalving"), "asha"),
    **dict.fromkeys(("cma-es", "cma"), "cmaes"),
}


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """The space of a search, the sampler and pruner, and the stopping rules.

    Attributes:
        space: the parameters and their dimensions; a function that takes an `optuna.Trial` and
            returns the parameters; or None if the training function requests its parameters from
            an `optuna.Trial`.
        algorithm: a name, or an Optuna sampler.
        pruner: a name, a dict from a name to arguments, an Optuna pruner, or None.
        num_trials: number of configurations to try; None for no limit.
        stop: target value of each metric, by name; a trial that reaches a target ends the search;
            with repeats, a configuration whose mean does.
        patience: end after this number of configurations in a row without an improvement; with
            repeats, their means are compared.
        max_slot_hours: end when the trials have used this number of slot hours.
        initial_params: the first configurations; the sampler chooses their missing parameters.
        repeats: number of trials of each configuration, each with its own seed.
    """

    space: Space | Callable[[Any], dict[str, Any]] | None
    algorithm: Any = "tpe"
    pruner: Any = None
    num_trials: int | None = None
    stop: Mapping[str, float] | None = None
    patience: int | None = None
    max_slot_hours: float | None = None
    initial_params: Sequence[Mapping[str, Any]] = ()
    repeats: int = 1

    def __post_init__(self) -> None:
        for name in ("num_trials", "patience", "repeats", "max_slot_hours"):
            object.__setattr__(self, name, plain_number(getattr(self, name)))
        rows: Any = self.initial_params
        if isinstance(rows, list | tuple) and all(isinstance(row, Mapping) for row in rows):
            converted = [
                {name: to_json_value(name, value) for name, value in row.items()} for row in rows
            ]
            object.__setattr__(self, "initial_params", converted)

    def check(
        self, metrics: Sequence[str], timeout_s: float | None, secrets: Sequence[str] = ()
    ) -> None:
        """Validate the settings.

        Args:
            metrics: names of the metrics that the search optimizes.
            timeout_s: time limit of the whole run, in seconds.
            secrets: values that must not be stored.

        Raises:
            ConfigError: if a setting is invalid; the message says how to fix it.
        """
        check_name("algorithm", self.algorithm, ALGORITHMS)
        check_name("pruner", self.pruner, (None, *PRUNERS))
        if isinstance(self.pruner, str | Mapping):
            NamedPruner.of(self.pruner)
        self._check_numbers()
        self._check_several(metrics)
        self._check_stopping_rule(timeout_s)
        self._check_stop(metrics)
        self._check_space(secrets)

    def _check_several(self, metrics: Sequence[str]) -> None:
        """Validate the settings of a search with several metrics."""
        if len(metrics) < 2:
            return
        rules = {
            "pruner": (self.pruner is not None, "Optuna prunes by one metric only."),
            "patience": (
                self.patience is not None,
                "a search may still find trials that are better in another metric than the first.",
            ),
            "algorithm": (_is_cmaes(self.algorithm), "CMA-ES optimizes one metric only."),
        }
        for name, (is_invalid, why) in rules.items():
            if is_invalid:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}, but the search has the metrics "
                    f"{', '.join(metrics)}; {why} Remove {name}=, or name one metric."
                )

    def _check_stop(self, metrics: Sequence[str]) -> None:
        if not isinstance(self.stop, Mapping | None):
            raise ConfigError(f"stop is {self.stop!r}; expected a dict from metric to number.")
        for name, value in (self.stop or {}).items():
            if name not in metrics:
                raise ConfigError(
                    f"stop has {name!r}, whose direction is unknown; expected one of "
                    f"metric={', '.join(metrics)}.{suggest(name, metrics)}"
                )
            if not isinstance(value, int | float) or math.isnan(value):
                raise ConfigError(f"stop[{name!r}] is {value!r}; expected a number.")

    def _check_space(self, secrets: Sequence[str]) -> None:
        rows: Any = self.initial_params
        if not isinstance(rows, list | tuple) or not all(isinstance(row, Mapping) for row in rows):
            raise ConfigError(f"initial_params is {rows!r}; expected a list of dicts.")
        for number, row in enumerate(rows):
            if mask_params(row, secrets) != row:
                raise ConfigError(
                    f"initial_params[{number}] has values that look like credentials. Credentials "
                    "are not stored, so the search could not be resumed. Search over names of the "
                    "credentials instead."
                )
        if isinstance(self.space, Space):
            for params in self.initial_params:
                self.space.check(params)
            for name, dimension in self.space.to_dict().items():
                choices = {name: dimension.get("choices", [])}
                if mask_params(choices, secrets) != choices:
                    raise ConfigError(
                        f"space[{name!r}] has values that look like credentials. Credentials are "
                        "not stored, so the search could not be resumed. Search over names of the "
                        "credentials instead."
                    )
        elif self.algorithm == "grid":
            raise ConfigError("algorithm='grid' requires space= to be a dict.")

    def _check_numbers(self) -> None:
        for name in ("num_trials", "patience", "repeats"):
            value = getattr(self, name)
            if value is not None:
                check_count(name, value)
        hours = self.max_slot_hours
        if hours is not None and not (isinstance(hours, int | float) and hours > 0):
            raise ConfigError(f"max_slot_hours is {hours!r}; expected a number above 0.")

    def _check_stopping_rule(self, timeout_s: float | None) -> None:
        rules = (self.num_trials, timeout_s, self.stop, self.patience, self.max_slot_hours)
        if self.algorithm != "grid" and all(rule is None for rule in rules):
            raise ConfigError(
                "the search has no stopping rule. Pass at least one of num_trials=, timeout_s=, "
                "stop=, patience= or max_slot_hours=."
            )

    @property
    def max_configurations(self) -> int | None:
        """The largest number of configurations; None if the number is not limited."""
        size = self.grid_size
        return self.num_trials if size is None else min(size, self.num_trials or size)

    @property
    def grid_size(self) -> int | None:
        """The number of points of a grid search; None for any other search."""
        if self.algorithm != "grid" or not isinstance(self.space, Space):
            return None
        return math.prod(len(values) for values in self.space.grid().values())

    @property
    def style(self) -> str:
        """The origin of the parameters: a `space`, a `function`, or the `objective` itself."""
        if isinstance(self.space, Space):
            return "space"
        return "objective" if self.space is None else "function"

    def space_to_dict(self) -> Any:
        """Return the space as a dict for JSON, or the style if the space is not a dict."""
        return self.space.to_dict() if isinstance(self.space, Space) else self.style

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as a dict for JSON; Optuna's objects are replaced by their names."""
        return {
            "space": self.space.to_dict() if isinstance(self.space, Space) else None,
            "style": self.style,
            "algorithm": _name_of(self.algorithm),
            "pruner": _name_of(self.pruner),
            "num_trials": self.num_trials,
            "stop": self.stop,
            "patience": self.patience,
            "max_slot_hours": self.max_slot_hours,
            "initial_params": [dict(params) for params in self.initial_params],
            "repeats": self.repeats,
        }


def _is_cmaes(algorithm: Any) -> bool:
    # The classes are compared by name, as importing Optuna takes a second.
    names = [cls.__name__ for cls in type(algorithm).__mro__]
    return algorithm == "cmaes" or "CmaEsSampler" in names


def _name_of(algorithm: Any) -> Any:
    is_name = algorithm is None or isinstance(algorithm, str | Mapping)
    return algorithm if is_name else f"{type(algorithm).__name__} object"


def check_name(option: str, value: Any, known: Sequence[str | None]) -> None:
    """Validate the name of an algorithm or a pruner; objects are not validated here.

    Args:
        option: `algorithm` or `pruner`.
        value: a name, an object, or None.
        known: the valid names.

    Raises:
        ConfigError: if the name is unknown.
    """
    if not isinstance(value, str) or value in known:
        return  # `sampler_of` and `pruner_of` validate the type of an object.
    names = [name for name in known if name]
    hint = suggest_synonym(value.lower().replace(" ", ""), names, _SYNONYMS)
    raise ConfigError(
        f"{option} is {value!r}.{hint} Expected one of {', '.join(names)}, or an Optuna "
        f"{'sampler' if option == 'algorithm' else 'pruner'}."
    )
