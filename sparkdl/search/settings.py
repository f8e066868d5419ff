"""Runs on the driver (pure). What a search was asked for, beside what every verb takes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl.errors import ConfigError, suggest
from sparkdl.runs.redact import mask_params
from sparkdl.search.space.grid import plain
from sparkdl.search.space.spaces import Space

__all__ = ["ALGORITHMS", "PRUNERS", "Search", "check_name"]

ALGORITHMS = ("random", "grid", "tpe", "gp", "cmaes", "nsga2", "qmc")
PRUNERS = ("median", "asha", "hyperband")

# What people of other systems call them.
_ELSEWHERE = {
    **dict.fromkeys(("bayes", "bayesian", "bo", "hyperopt"), "tpe"),
    **dict.fromkeys(("randomsearch", "random_search"), "random"),
    **dict.fromkeys(("gridsearch", "grid_search"), "grid"),
    **dict.fromkeys(("nsgaii", "nsga-ii"), "nsga2"),
    **dict.fromkeys(("sha", "successive_halving", "successivehalving"), "asha"),
    **dict.fromkeys(("cma-es", "cma"), "cmaes"),
}


@dataclass(frozen=True)
class Search:
    """What is varied, who proposes, and when it is enough.

    Attributes:
        space: the parameters and their values; a function that takes an `optuna.Trial` and returns
            the parameters; or None, and the training function asks an `optuna.Trial` for them.
        algorithm, pruner: the name of one, or an Optuna sampler and pruner.
        num_trials: how many configurations to try; None for no end.
        stop: numbers that are good enough, by metric.
        patience: end after so many configurations without a better one.
        max_slot_hours: end when trials have used so many hours of slots.
        initial_params: the first configurations; what they leave out is proposed.
        repeats: trials of each configuration, with a seed each.
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
        given: Any = self.initial_params
        if isinstance(given, list | tuple) and all(isinstance(row, Mapping) for row in given):
            kept = [{name: plain(name, value) for name, value in row.items()} for row in given]
            object.__setattr__(self, "initial_params", kept)

    def check(
        self, metrics: Sequence[str], timeout_s: float | None, secrets: Sequence[str] = ()
    ) -> None:
        """See that it can be done.

        Args:
            metrics: the names of the numbers that count.
            timeout_s: seconds for the whole run.
            secrets: values that may not be kept.

        Raises:
            ConfigError: it cannot; the message says what to write.
        """
        check_name("algorithm", self.algorithm, ALGORITHMS)
        check_name("pruner", self.pruner, (None, *PRUNERS))
        self._check_numbers()
        self._check_end(timeout_s)
        if len(metrics) > 1 and self.pruner is not None:
            raise ConfigError(
                f"pruner is {self.pruner!r}, and there are the metrics {', '.join(metrics)}; "
                "Optuna prunes by one number only. Leave pruner out."
            )
        if not isinstance(self.stop, Mapping | None):
            raise ConfigError(f"stop is {self.stop!r}; expected a dict from metric to number.")
        for name, value in (self.stop or {}).items():
            if name not in metrics:
                raise ConfigError(
                    f"stop has {name!r}; expected one of metric={', '.join(metrics)}, whose "
                    f"direction is known.{suggest(name, metrics)}"
                )
            if not isinstance(value, int | float):
                raise ConfigError(f"stop[{name!r}] is {value!r}; expected a number.")
        self._check_space(secrets)

    def _check_space(self, secrets: Sequence[str]) -> None:
        given: Any = self.initial_params
        is_list = isinstance(given, list | tuple)
        if not is_list or not all(isinstance(params, Mapping) for params in given):
            raise ConfigError(f"initial_params is {given!r}; expected a list of dicts.")
        if isinstance(self.space, Space):
            for params in self.initial_params:
                self.space.check(params)
            for name, kept in self.space.kept().items():
                choices = {name: kept.get("choices", [])}
                if mask_params(choices, secrets) != choices:
                    raise ConfigError(
                        f"space[{name!r}] has values that look like credentials, which are not "
                        "kept, so that the search could not be resumed. Search over names of them."
                    )
        elif self.algorithm == "grid":
            raise ConfigError("algorithm='grid' needs a space that is written down, as a dict.")

    def _check_numbers(self) -> None:
        for name in ("num_trials", "patience", "repeats"):
            value = getattr(self, name)
            if value is not None and (
                not isinstance(value, int) or isinstance(value, bool) or value < 1
            ):
                raise ConfigError(f"{name} is {value!r}; expected a whole number of at least 1.")
        hours = self.max_slot_hours
        if hours is not None and not (isinstance(hours, int | float) and hours > 0):
            raise ConfigError(f"max_slot_hours is {hours!r}; expected a number above 0.")

    def _check_end(self, timeout_s: float | None) -> None:
        ends = (self.num_trials, timeout_s, self.stop, self.patience, self.max_slot_hours)
        if self.algorithm != "grid" and all(end is None for end in ends):
            raise ConfigError(
                "a search without an end: pass num_trials=, timeout_s=, stop=, patience= or "
                "max_slot_hours=."
            )

    @property
    def count(self) -> int | None:
        """How many configurations there are at most; None where no number ends it."""
        if self.algorithm != "grid" or not isinstance(self.space, Space):
            return self.num_trials
        size = math.prod(len(values) for values in self.space.grid().values())
        return min(size, self.num_trials or size)

    @property
    def style(self) -> str:
        """Where parameters come from: a `space`, a `function`, or the `objective` itself."""
        if isinstance(self.space, Space):
            return "space"
        return "objective" if self.space is None else "function"

    def kept_space(self) -> Any:
        """The space as JSON can hold it; of one that is not written down its style."""
        return self.space.kept() if isinstance(self.space, Space) else self.style

    def kept(self) -> dict[str, Any]:
        """As JSON can hold it; objects of Optuna's by their text."""
        return {
            "space": self.space.kept() if isinstance(self.space, Space) else None,
            "style": self.style,
            "algorithm": _named(self.algorithm),
            "pruner": _named(self.pruner),
            "num_trials": self.num_trials,
            "stop": self.stop,
            "patience": self.patience,
            "max_slot_hours": self.max_slot_hours,
            "initial_params": [dict(params) for params in self.initial_params],
            "repeats": self.repeats,
        }


def _named(one: Any) -> str | None:
    return one if one is None or isinstance(one, str) else f"{type(one).__name__} object"


def check_name(what: str, given: Any, known: Sequence[str | None]) -> None:
    """See that an algorithm or a pruner is a name that is known; an object passes.

    Raises:
        ConfigError: it is another name.
    """
    if not isinstance(given, str) or given in known:
        return  # None, or an object: whether it is one of Optuna's, the study sees.
    names = [name for name in known if name]
    near = _ELSEWHERE.get(given.lower().replace(" ", ""))
    hint = f" Did you mean {near!r}?" if near in names else suggest(given.lower(), names)
    raise ConfigError(
        f"{what} is {given!r}.{hint} Expected one of {', '.join(names)}, or an Optuna "
        f"{'sampler' if what == 'algorithm' else 'pruner'}."
    )
