"""Runs on the driver (pure). Define and validate the settings of a search."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sparkdl.errors import ConfigError, suggest
from sparkdl.options import check_count, plain_number, suggest_synonym
from sparkdl.search.population_settings import PBT, REPLAY, PopulationSettings, is_scheduled
from sparkdl.search.pruners import PRUNERS, NamedPruner, check_pruner_of_several
from sparkdl.search.space.constraints import Constraints
from sparkdl.search.space.grid import to_json_value
from sparkdl.search.space.points import UntriedPoints, count_points
from sparkdl.search.space.spaces import Space
from sparkdl.secrets.masks import mask_params

__all__ = ["ALGORITHMS", "ALL_ALGORITHMS", "PRUNERS", "SearchSettings", "check_name"]

# Algorithms that go with every pruner, and without one.
ALGORITHMS = ("random", "grid", "tpe", "gp", "cmaes", "nsga2", "qmc")
BOHB = "bohb"
ALL_ALGORITHMS = (*ALGORITHMS, BOHB, PBT)

# Names of algorithms and pruners in other libraries, in lower case and without spaces.
_SYNONYMS = {
    **dict.fromkeys(("bayes", "bayesian", "bo", "hyperopt"), "tpe"),
    **dict.fromkeys(("randomsearch", "random_search"), "random"),
    **dict.fromkeys(("gridsearch", "grid_search"), "grid"),
    **dict.fromkeys(("nsgaii", "nsga-ii"), "nsga2"),
    **dict.fromkeys(("sha", "successive_halving", "successivehalving"), "asha"),
    **dict.fromkeys(("cma-es", "cma"), "cmaes"),
    **dict.fromkeys(("population", "populationbasedtraining", "population_based_training"), "pbt"),
}

# Points of a space that are counted one by one, which takes about a second.
MAX_COUNTED = 200_000

# Samplers of Optuna whose points are chosen by the user, or end when all points were tried.
_OWN_RULES = ("BruteForceSampler", "GridSampler", "PartialFixedSampler")


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """The space of a search, the sampler and pruner, and the stopping rules.

    Attributes:
        space: the parameters and their dimensions; a function that takes an `optuna.Trial` and
            returns the parameters; or None if the training function requests its parameters from
            an `optuna.Trial`.
        algorithm: a name, `pbt` with arguments in a dict, or an Optuna sampler.
        pruner: a name, a dict from a name to arguments, an Optuna pruner, or None.
        num_trials: number of configurations to try; None for no limit.
        stop: target value of each metric, by name; a trial that reaches a target ends the search;
            with repeats, a configuration whose mean does.
        patience: end after this number of configurations in a row without an improvement; with
            repeats, their means are compared.
        max_slot_hours: end when the trials have used this number of slot hours.
        initial_params: the first configurations; the sampler chooses their missing parameters.
        repeats: number of trials of each configuration, each with its own seed.
        constraints: expressions that the parameters of each configuration satisfy.
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
    constraints: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("num_trials", "patience", "repeats", "max_slot_hours"):
            object.__setattr__(self, name, plain_number(getattr(self, name)))
        texts: Any = self.constraints
        if isinstance(texts, str | list):
            texts = (texts,) if isinstance(texts, str) else tuple(texts)
            object.__setattr__(self, "constraints", texts)
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
        check_name("algorithm", self.algorithm, ALL_ALGORITHMS)
        check_name("pruner", self.pruner, (None, *PRUNERS))
        if isinstance(self.pruner, str | Mapping):
            NamedPruner.of(self.pruner)
        self._check_numbers()
        self._check_several(metrics)
        self._check_population(metrics)
        self._check_promotion()
        self._check_stopping_rule(timeout_s)
        self._check_stop(metrics)
        self._check_constraints()
        self._check_space(secrets)

    def _check_several(self, metrics: Sequence[str]) -> None:
        """Validate the settings of a search with several metrics."""
        if len(metrics) < 2:
            return
        check_pruner_of_several(self.pruner, metrics)
        rules = {
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

    def _check_population(self, metrics: Sequence[str]) -> None:
        """Validate the settings of population based training."""
        if not self.is_scheduled or self.is_replay:
            return
        size = PopulationSettings.of(self.algorithm).population
        rules = {
            "space": (not isinstance(self.space, Space), "which can perturb only a dict"),
            "pruner": (self.pruner is not None, "which replaces bad members itself"),
            "repeats": (self.repeats != 1, "whose members differ in their parameters"),
            "metric": (len(metrics) > 1, "which compares members by one metric"),
            "num_trials": (
                self.num_trials is not None and self.num_trials < size,
                f"whose population has {size} members, and each interval of a member is a trial",
            ),
        }
        for name, (is_invalid, why) in rules.items():
            if is_invalid:
                value = [*metrics] if name == "metric" else getattr(self, name)
                raise ConfigError(f"{name} is {value!r}, but algorithm is 'pbt', {why}.")

    def _check_promotion(self) -> None:
        """Validate the settings of a search whose trials pause and go on."""
        if not self.promotes:
            if self.algorithm == BOHB:
                raise ConfigError(
                    "algorithm='bohb' learns from trials that pause at the rungs of a pruner. Pass "
                    "pruner={'hyperband': {'promote': True, 'max_reports': 27}}, with the number "
                    "of reports of a whole trial, or algorithm='tpe'."
                )
            return
        rules = {
            "space": (not isinstance(self.space, Space), "a dict"),
            "repeats": (self.repeats != 1, "1, as trials of other parameters are compared"),
        }
        for name, (is_invalid, expected) in rules.items():
            if is_invalid:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}, but the pruner promotes trials, which "
                    f"needs {name}= to be {expected}. Change it, or remove 'promote'."
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
                self.check_params(params)
            for name, dimension in self.space.all_dimensions():
                choices = {name: list(getattr(dimension, "choices", ()))}
                if mask_params(choices, secrets) != choices:
                    raise ConfigError(
                        f"space[{name!r}] has values that look like credentials. Credentials are "
                        "not stored, so the search could not be resumed. Search over names of the "
                        "credentials instead."
                    )
        elif self.algorithm == "grid":
            raise ConfigError("algorithm='grid' requires space= to be a dict.")

    def check_params(self, params: Mapping[str, Any]) -> None:
        """Validate parameters that the user has chosen; some may be missing.

        Raises:
            ConfigError: if the space does not have them, or they break a constraint.
        """
        if not isinstance(self.space, Space):
            return
        self.space.check(params)
        if broken := self.parsed_constraints.broken(params):
            raise ConfigError(
                f"the parameters {dict(params)!r} break the constraint {broken!r}. Change one of "
                "them, or the constraint."
            )

    def _check_constraints(self) -> None:
        texts: Any = self.constraints
        if not isinstance(texts, list | tuple):
            raise ConfigError(
                f"constraints is {texts!r}; expected a list of expressions, such as "
                "['units * layers <= 256']."
            )
        if not texts:
            return
        if not isinstance(self.space, Space):
            raise ConfigError(
                "constraints= requires space= to be a dict. An objective or a function can choose "
                "its parameters so that they satisfy them."
            )
        if not _may_be_corrected(self.algorithm):
            raise ConfigError(
                f"constraints= cannot be combined with {_name_of(self.algorithm)}, which chooses "
                "by rules of its own. Pass the name of an algorithm."
            )
        self.parsed_constraints.try_ends(self.space.ends())
        points = UntriedPoints(self.space, self.parsed_constraints, self.num_points)
        if points.draw(random.Random(0)) is None:
            error = self.parsed_constraints.first_error
            raise ConfigError(
                f"no parameters in the space satisfy constraints={[*texts]!r}"
                f"{error and f': {error}'}. Change them, or extend the space."
            )

    @cached_property
    def parsed_constraints(self) -> Constraints:
        """The constraints.

        Raises:
            ConfigError: if one is invalid.
        """
        names = (
            [name for name, _ in self.space.all_dimensions()]
            if isinstance(self.space, Space)
            else []
        )
        return Constraints(self.constraints, names)

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
        size = self.num_points
        return self.num_trials if size is None else min(size, self.num_trials or size)

    @cached_property
    def num_points(self) -> int | None:
        """The number of points that satisfy the constraints, each of which is tried once at most.

        It is None if points may be tried again: if the space is not finite or not a dict, or the
        algorithm is an Optuna sampler that chooses by rules of its own; and if the points are too
        many to count those that satisfy the constraints.
        """
        if not isinstance(self.space, Space) or self.is_scheduled:
            return None
        if not _may_be_corrected(self.algorithm):
            return None
        if self.algorithm == "grid":
            self.space.check_finite()
        most = math.inf if self.algorithm == "grid" else MAX_COUNTED
        return count_points(self.space, self.parsed_constraints, most)

    @property
    def is_scheduled(self) -> bool:
        """True if a trial continues from the checkpoint of another trial of the run."""
        return is_scheduled(self.algorithm)

    @property
    def promotes(self) -> bool:
        """True if trials pause at the rungs of the pruner, and the best go on later."""
        is_named = isinstance(self.pruner, str | Mapping)
        return is_named and NamedPruner.of(self.pruner).promotes

    @property
    def is_replay(self) -> bool:
        """True if the trials repeat those of another run, see `experiment.replay`."""
        return isinstance(self.algorithm, Mapping) and REPLAY in self.algorithm

    @property
    def is_open_ended(self) -> bool:
        """True if neither the user nor a grid says how many configurations there will be."""
        return self.num_trials is None and self.algorithm != "grid"

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
            "constraints": list(self.constraints),
        }


def _is_cmaes(algorithm: Any) -> bool:
    # The classes are compared by name, as importing Optuna takes a second.
    names = [cls.__name__ for cls in type(algorithm).__mro__]
    return algorithm == "cmaes" or "CmaEsSampler" in names


def _may_be_corrected(algorithm: Any) -> bool:
    """Return True unless the algorithm is an object that chooses points by rules of its own."""
    if isinstance(algorithm, str | Mapping):
        return True
    # The classes are compared by name, as importing Optuna takes a second.
    cls = type(algorithm)
    return cls.__module__.startswith("optuna.") and cls.__name__ not in _OWN_RULES


def _name_of(algorithm: Any) -> Any:
    is_name = algorithm is None or isinstance(algorithm, str | Mapping)
    return algorithm if is_name else f"{type(algorithm).__name__} object"


def check_name(option: str, value: Any, valid_names: Sequence[str | None]) -> None:
    """Validate the name of an algorithm or a pruner; objects are not validated here.

    Args:
        option: `algorithm` or `pruner`.
        value: a name, an object, or None.
        valid_names: the valid names.

    Raises:
        ConfigError: if the name is unknown.
    """
    if not isinstance(value, str) or value in valid_names:
        return  # `sampler_of` and `pruner_of` validate the type of an object.
    names = [name for name in valid_names if name]
    hint = suggest_synonym(value.lower().replace(" ", ""), names, _SYNONYMS)
    raise ConfigError(
        f"{option} is {value!r}.{hint} Expected one of {', '.join(names)}, or an Optuna "
        f"{'sampler' if option == 'algorithm' else 'pruner'}."
    )
