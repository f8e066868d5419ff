"""Runs on the driver (pure). The arguments of population based training, and of its replay."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.options import check_count, suggest_synonym

PBT = "pbt"
# Replays the schedule of a trial; `experiment.replay` passes it.
REPLAY = "replay"

# Names of the arguments in other libraries.
_SYNONYMS = {
    **dict.fromkeys(("population_size", "n_population", "size"), "population"),
    **dict.fromkeys(("quantile_fraction", "truncation_threshold"), "quantile"),
    **dict.fromkeys(("resample_probability",), "resample"),
    **dict.fromkeys(("perturbation_factors", "perturbation", "factors"), "factor"),
}


@dataclass(frozen=True, kw_only=True)
class PopulationSettings:
    """The arguments of population based training.

    Attributes:
        population: number of members.
        quantile: the share of the members that is replaced, and the share that replaces them.
        resample: the probability with which a parameter is drawn anew rather than perturbed.
        factor: a number is perturbed by multiplication with, or division by, this factor.

    Raises:
        ConfigError: if an argument is invalid.

    Example:
        >>> PopulationSettings.of({"pbt": {"population": 4}})
        PopulationSettings(population=4, quantile=0.25, resample=0.25, factor=1.2)
    """

    population: int = 8
    quantile: float = 0.25
    resample: float = 0.25
    factor: float = 1.2

    def __post_init__(self) -> None:
        check_count("'population' of algorithm 'pbt'", self.population, 2)
        _check("quantile", self.quantile, 0.0, 0.5)
        _check("resample", self.resample, 0.0, 1.0)
        _check("factor", self.factor, 1.0, 10.0)
        if self.population * self.quantile < 1:
            raise ConfigError(
                f"'quantile' of algorithm 'pbt' is {self.quantile}, less than one of "
                f"{self.population} members. Raise quantile or population."
            )

    @classmethod
    def of(cls, algorithm: str | Mapping[str, Any]) -> "PopulationSettings":
        """Create the settings from `pbt`, or from a dict from `pbt` to its arguments.

        Raises:
            ConfigError: if an argument is unknown or invalid.
        """
        settings = {} if isinstance(algorithm, str) else algorithm.get(PBT)
        if not isinstance(settings, Mapping) or (
            not isinstance(algorithm, str) and len(algorithm) > 1
        ):
            raise ConfigError(
                f"algorithm is {algorithm!r}; expected a name, an Optuna sampler, or a dict such "
                "as {'pbt': {'population': 8, 'quantile': 0.25}}."
            )
        names = [field.name for field in fields(cls)]
        for name in settings:
            if name not in names:
                raise ConfigError(
                    f"algorithm 'pbt' has no argument {name!r}."
                    f"{suggest_synonym(str(name), names, _SYNONYMS)} Its arguments are "
                    f"{', '.join(names)}."
                )
        return cls(**settings)


def is_scheduled(algorithm: Any) -> bool:
    """Return True if a trial continues from the checkpoint of another trial of the run."""
    return isinstance(algorithm, Mapping) or algorithm == PBT


def _check(name: str, value: Any, low: float, high: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        raise ConfigError(
            f"{name!r} of algorithm 'pbt' is {value!r}; expected a number from {low:g} to {high:g}."
        )
