"""Runs anywhere (pure). Spaces: what values each parameter of a search may take."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sparkdl.errors import ConfigError
from sparkdl.search.space.dimensions import Categorical, Dimension, Float, Int, restored
from sparkdl.search.space.grid import checked_name

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = ["Categorical", "Dimension", "Float", "Int", "Space"]


@dataclass(frozen=True)
class Space:
    """The parameters of a search, each with the values that it may take.

    Example:
        >>> space = Space.of({"learning_rate": Float(1e-4, 1e-1, log=True), "layers": [1, 2, 3]})
        >>> space.dimensions["layers"]
        Categorical(choices=(1, 2, 3))
        >>> Space.restored(space.kept()) == space
        True
    """

    dimensions: Mapping[str, Dimension]
    KINDS: ClassVar[str] = "search.Float, search.Int, search.Categorical or a list of values"

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Space":
        """From what the person wrote; a list stands for `Categorical`.

        Raises:
            ConfigError: it is no space; the message names the parameter.
        """
        if not isinstance(given, Mapping) or not given:
            raise ConfigError(
                f"space is {given!r}; expected a dict from each parameter to {cls.KINDS}."
            )
        return cls({checked_name(name): cls._dimension(name, v) for name, v in given.items()})

    @classmethod
    def _dimension(cls, name: str, value: Any) -> Dimension:
        if isinstance(value, Float | Int | Categorical):
            return value
        if isinstance(value, list | tuple | range) and value:
            return Categorical(list(value))
        raise ConfigError(
            f"space[{name!r}] is {value!r}, a {type(value).__name__}; expected {cls.KINDS}. "
            f"Write [{value!r}] for a value that stays the same."
        )

    def kept(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {name: dimension.kept() for name, dimension in self.dimensions.items()}

    @classmethod
    def restored(cls, kept: Mapping[str, Any]) -> "Space":
        """From what `kept` gave."""
        return cls({name: restored(one) for name, one in kept.items()})

    def distributions(self) -> "dict[str, BaseDistribution]":
        """What Optuna samples from."""
        return {name: dimension.distribution() for name, dimension in self.dimensions.items()}

    def params(self, sampled: Mapping[str, Any]) -> dict[str, Any]:
        """What the training function gets for what was sampled."""
        return {name: self.dimensions[name].value(one) for name, one in sampled.items()}

    def sampled(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """What was sampled where the training function got this."""
        return {name: self.dimensions[name].sampled(one) for name, one in params.items()}

    def has(self, params: Mapping[str, Any]) -> bool:
        """Whether these are values of all its parameters."""
        return params.keys() == self.dimensions.keys() and all(
            self.dimensions[name].has(value) for name, value in params.items()
        )

    def check(self, params: Mapping[str, Any]) -> None:
        """See that the person's own values lie in the space; parameters may be missing.

        Raises:
            ConfigError: one does not.
        """
        for name, value in params.items():
            if name not in self.dimensions:
                known = ", ".join(self.dimensions)
                raise ConfigError(f"{name!r} is no parameter of the space, which has {known}.")
            if not self.dimensions[name].has(value):
                raise ConfigError(f"{name}={value!r} does not lie in {self.dimensions[name]!r}.")

    def grid(self) -> dict[str, list[Any]]:
        """All that is sampled from each dimension.

        Raises:
            ConfigError: one has no end of values.
        """
        values = {name: dimension.every() for name, dimension in self.dimensions.items()}
        for name, found in values.items():
            if found is None:
                raise ConfigError(
                    f"algorithm='grid' needs a step in space[{name!r}], which is "
                    f"{self.dimensions[name]!r}; or write a list of values."
                )
        return {name: found for name, found in values.items() if found is not None}
