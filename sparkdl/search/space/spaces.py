"""Runs anywhere (pure). Define search spaces: a dimension for each parameter of a search."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sparkdl.errors import ConfigError
from sparkdl.search.space.dimensions import (
    Categorical,
    Dimension,
    Float,
    Int,
    dimension_from_dict,
)
from sparkdl.search.space.grid import check_param_name

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = ["Categorical", "Dimension", "Float", "Int", "Space"]

_logger = logging.getLogger("sparkdl.search")


@dataclass(frozen=True)
class Space:
    """The parameters of a search, each with its dimension.

    Attributes:
        dimensions: the dimension of each parameter, by name.

    Example:
        >>> space = Space.of({"learning_rate": Float(1e-4, 1e-1, log=True), "layers": [1, 2, 3]})
        >>> space.dimensions["layers"]
        Categorical(choices=(1, 2, 3))
        >>> Space.from_dict(space.to_dict()) == space
        True
    """

    dimensions: Mapping[str, Dimension]
    KINDS: ClassVar[str] = "search.Float, search.Int, search.Categorical or a list of values"

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Space":
        """Create a space from the dict that the user wrote; a list stands for `Categorical`.

        Raises:
            ConfigError: if a name or a dimension is invalid; the message names the parameter.
        """
        if not isinstance(given, Mapping) or not given:
            raise ConfigError(
                f"space is {given!r}; expected a dict from each parameter to {cls.KINDS}."
            )
        return cls({check_param_name(name): cls._dimension(name, v) for name, v in given.items()})

    @classmethod
    def _dimension(cls, name: str, value: Any) -> Dimension:
        if isinstance(value, Float | Int | Categorical):
            return value
        if isinstance(value, tuple) and len(value) == 2 and {*map(type, value)} <= {int, float}:
            low, high = sorted(value)
            _logger.warning(
                "space[%r] is %r, which stands for two choices. For a range, pass "
                "search.Float(%r, %r) or search.Int; for two choices, pass a list.",
                *(name, value, low, high),
            )
        if isinstance(value, list | tuple | range) and value:
            return Categorical(list(value))
        raise ConfigError(
            f"space[{name!r}] is {value!r}, a {type(value).__name__}; expected {cls.KINDS}. "
            f"Write [{value!r}] for a constant value."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the space as a dict for JSON, see `from_dict`."""
        return {name: dimension.to_dict() for name, dimension in self.dimensions.items()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Space":
        """Create a space from the dict that `to_dict` returned."""
        return cls({name: dimension_from_dict(values) for name, values in stored.items()})

    def distributions(self) -> "dict[str, BaseDistribution]":
        """Return the distributions that Optuna samples from, by parameter."""
        return {name: dimension.distribution() for name, dimension in self.dimensions.items()}

    def params(self, sampled: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters for the training function, given the values that Optuna sampled."""
        return {name: self.dimensions[name].value(value) for name, value in sampled.items()}

    def sampled(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that Optuna samples for these parameters of the training function."""
        return {name: self.dimensions[name].sampled(value) for name, value in params.items()}

    def has(self, params: Mapping[str, Any]) -> bool:
        """Return True if the space has exactly these parameters and contains their values."""
        return params.keys() == self.dimensions.keys() and all(
            self.dimensions[name].has(value) for name, value in params.items()
        )

    def check(self, params: Mapping[str, Any]) -> None:
        """Validate values that the user chose; parameters may be missing.

        Raises:
            ConfigError: if a parameter is unknown, or the space does not contain its value.
        """
        for name, value in params.items():
            if name not in self.dimensions:
                known = ", ".join(self.dimensions)
                raise ConfigError(f"unknown parameter {name!r}; the space has {known}.")
            if not self.dimensions[name].has(value):
                raise ConfigError(f"{name}={value!r} is not a value of {self.dimensions[name]!r}.")

    def grid(self) -> dict[str, list[Any]]:
        """Return all values that Optuna can sample, by parameter.

        Raises:
            ConfigError: if a dimension is continuous.
        """
        grid = {}
        for name, dimension in self.dimensions.items():
            values = dimension.all_values()
            if values is None:
                raise ConfigError(
                    f"algorithm='grid' needs a step in space[{name!r}], which is {dimension!r}. "
                    "Set its step, or write a list of values."
                )
            grid[name] = values
        return grid
