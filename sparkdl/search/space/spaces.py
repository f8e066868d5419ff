"""Runs anywhere (pure). Define search spaces: a dimension for each parameter of a search."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from sparkdl.errors import ConfigError, named_type, suggest
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

__all__ = ["Categorical", "Conditional", "Dimension", "Float", "Int", "Space"]

_logger = logging.getLogger("sparkdl.search")
# Stands for the value of a parameter that was not chosen.
_MISSING: Any = object()
_NO_VALUES: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Conditional(Categorical):
    """A choice among values, each of which has further parameters of its own.

    Attributes:
        spaces: the space of the further parameters of each choice, in the order of the choices.
    """

    spaces: tuple["Space", ...] = field(default=())

    def space_of(self, sampled: Any) -> "Space":
        """Return the space of the parameters that exist with a choice, as Optuna samples it."""
        return self.spaces[self.all_values().index(sampled)]

    def to_dict(self) -> dict[str, Any]:
        """Return the dimension as a dict for JSON, see `Space.from_dict`."""
        return {**super().to_dict(), "spaces": [space.to_dict() for space in self.spaces]}


@dataclass(frozen=True)
class Space:
    """The parameters of a search, each with its dimension.

    A parameter of a `Conditional` exists only with one of its choices. The values that Optuna
    samples are a flat dict, too; the parameter has its own name there, unless parameters of this
    name have different dimensions, see `_key`.

    Attributes:
        dimensions: the dimension of each parameter, by name.

    Raises:
        ConfigError: if two parameters that exist together have the same name.

    Example:
        >>> space = Space.of({"learning_rate": Float(1e-4, 1e-1, log=True), "layers": [1, 2, 3]})
        >>> space.dimensions["layers"]
        Categorical(choices=(1, 2, 3))
        >>> Space.from_dict(space.to_dict()) == space
        True
        >>> momentum = {"momentum": Float(0, 0.9, step=0.3)}
        >>> Space.of({"optimizer": {"adam": {}, "sgd": momentum}}).num_points()
        5
    """

    dimensions: Mapping[str, Dimension]
    KINDS: ClassVar[str] = (
        "search.Float, search.Int, search.Categorical, a list of values, or a dict from each "
        "choice to the parameters that exist only with it"
    )

    def __post_init__(self) -> None:
        places: dict[str, str] = {}
        for name, dimension in self.dimensions.items():
            spaces = dimension.spaces if isinstance(dimension, Conditional) else ()
            inner = {own for space in spaces for own, _ in space.all_dimensions()}
            for own in [name, *inner]:
                if own in places:
                    raise ConfigError(
                        f"the space has two parameters {own!r}, in {places[own]!r} and in "
                        f"{name!r}, which may exist together. Rename one of them."
                    )
            places |= dict.fromkeys([name, *inner], name)
            if name in inner:
                raise ConfigError(
                    f"the choices of {name!r} have a parameter {name!r}, too. Rename one of them."
                )

    @classmethod
    def of(cls, dimensions: Mapping[str, Any]) -> "Space":
        """Create a space from the dict that the user wrote; a list stands for `Categorical`.

        Raises:
            ConfigError: if a name or a dimension is invalid; the message names the parameter.
        """
        if not isinstance(dimensions, Mapping) or not dimensions:
            raise ConfigError(
                f"space is {dimensions!r}; expected a dict from each parameter to {cls.KINDS}."
            )
        return cls._of(dimensions)

    @classmethod
    def _of(cls, dimensions: Mapping[str, Any], place: str = "") -> "Space":
        return cls(
            {
                check_param_name(name): cls._dimension(f"{place}{name!r}", value)
                for name, value in dimensions.items()
            }
        )

    @classmethod
    def _dimension(cls, place: str, value: Any) -> Dimension:
        if isinstance(value, Float | Int | Categorical):
            return value
        if isinstance(value, tuple) and len(value) == 2 and {*map(type, value)} <= {int, float}:
            low, high = sorted(value)
            _logger.warning(
                "space[%s] is %r, which stands for two choices. For a range, pass "
                "search.Float(%r, %r) or search.Int; for two choices, pass a list.",
                *(place, value, low, high),
            )
        if isinstance(value, list | tuple | range) and value:
            return Categorical(list(value))
        if isinstance(value, Mapping) and value:
            return cls._conditional(place, value)
        raise ConfigError(
            f"space[{place}] is {value!r}, {named_type(value)}; expected {cls.KINDS}. "
            f"Write [{value!r}] for a constant value."
        )

    @classmethod
    def _conditional(cls, place: str, dimensions: Mapping[Any, Any]) -> Conditional:
        for choice, params in dimensions.items():
            if not isinstance(params, Mapping):
                raise ConfigError(
                    f"space[{place}][{choice!r}] is {params!r}; expected a dict of the parameters "
                    f"that exist only with {choice!r}, {{}} for none. Write a list for choices "
                    "without parameters of their own."
                )
        spaces = [
            cls._of(params, f"{place}][{choice!r}][") for choice, params in dimensions.items()
        ]
        return Conditional(list(dimensions), tuple(spaces))

    def to_dict(self) -> dict[str, Any]:
        """Return the space as a dict for JSON, see `from_dict`."""
        return {name: dimension.to_dict() for name, dimension in self.dimensions.items()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Space":
        """Create a space from the dict that `to_dict` returned."""
        dimensions: dict[str, Dimension] = {}
        for name, values in fields.items():
            if "spaces" in values:
                spaces = tuple(cls.from_dict(space) for space in values["spaces"])
                dimensions[name] = Conditional(values["choices"], spaces)
            else:
                dimensions[name] = dimension_from_dict(values)
        return cls(dimensions)

    # ---- all parameters, also those that exist only with some choices

    def all_dimensions(self) -> Iterator[tuple[str, Dimension]]:
        """Yield the name and the dimension of all parameters."""
        for name, dimension in self.dimensions.items():
            yield name, dimension
            for space in dimension.spaces if isinstance(dimension, Conditional) else ():
                yield from space.all_dimensions()

    def ends(self) -> dict[str, list[Any]]:
        """Return the extreme values of each parameter: the bounds, zero, and all choices."""
        ends: dict[str, list[Any]] = {}
        for name, dimension in self.all_dimensions():
            ends.setdefault(name, []).extend(dimension.ends())
        return ends

    def name_sets(self) -> set[frozenset[str]]:
        """Return the sets of names of parameters that exist together."""
        sets = {frozenset[str]()}
        for name, dimension in self.dimensions.items():
            spaces = dimension.spaces if isinstance(dimension, Conditional) else (Space({}),)
            own = {names | {name} for space in spaces for names in space.name_sets()}
            sets = {one | other for one in sets for other in own}
        return sets

    def distributions(self) -> "dict[str, BaseDistribution]":
        """Return the distributions that Optuna samples from, of all parameters."""
        return {key: dimension.distribution() for key, dimension in self._keyed("", self)}

    def common_distributions(self) -> "dict[str, BaseDistribution]":
        """Return those of the parameters that all points have; none if all points have the same."""
        every = self.distributions()
        common = {key: every[key] for name in self.dimensions if (key := self._key("", name))}
        return common if len(common) < len(every) else {}

    def _keyed(self, path: str, root: "Space") -> Iterator[tuple[str, Dimension]]:
        for name, dimension in self.dimensions.items():
            key = root._key(path, name)
            yield key, dimension
            if isinstance(dimension, Conditional):
                for value, space in zip(dimension.all_values(), dimension.spaces, strict=True):
                    yield from space._keyed(f"{key}={value!r}.", root)

    def _key(self, path: str, name: str) -> str:
        """Return the name of a parameter for Optuna, which has one distribution for each name."""
        return f"{path}{name}" if name in self._ambiguous else name

    @cached_property
    def _ambiguous(self) -> set[str]:
        first: dict[str, Dimension] = {}
        return {name for name, d in self.all_dimensions() if first.setdefault(name, d) != d}

    # ---- points

    def choose(self, sample: Callable[[str, Dimension], Any]) -> dict[str, Any]:
        """Return a point, as Optuna samples it.

        Args:
            sample: returns the sampled value of a parameter, given its name for Optuna and its
                dimension. It is called for the parameters that exist with the earlier values.
        """
        return {key: value for key, _, _, value in self._walk(lambda key, _, d: sample(key, d))}

    def _walk(
        self, value_of: Callable[[str, str, Dimension], Any], path: str = "", root: Any = None
    ) -> Iterator[tuple[str, str, Dimension, Any]]:
        """Yield the key, name, dimension and sampled value of each parameter that exists.

        Parameters for which `value_of` returns `_MISSING` are left out.
        """
        root = root or self
        for name, dimension in self.dimensions.items():
            key = root._key(path, name)
            value = value_of(key, name, dimension)
            if value is _MISSING:
                continue
            yield key, name, dimension, value
            if isinstance(dimension, Conditional):
                yield from dimension.space_of(value)._walk(value_of, f"{key}={value!r}.", root)

    def params(self, sampled: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters for the training function, given the values that Optuna sampled."""
        walked = self._walk(lambda key, name, dimension: sampled.get(key, _MISSING))
        return {name: dimension.value(value) for _, name, dimension, value in walked}

    def sampled(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that Optuna samples for these parameters of the training function."""
        return {key: value for key, _, _, value in self._walk_params(params)}

    def _walk_params(self, params: Mapping[str, Any]) -> Iterator[tuple[str, str, Dimension, Any]]:
        return self._walk(
            lambda key, name, dimension: (
                dimension.sampled(params[name]) if name in params else _MISSING
            )
        )

    def is_point(self, sampled: Mapping[str, Any]) -> bool:
        """Return True if there are values of all parameters that exist with these values."""
        missing = []

        def look(key: str, name: str, dimension: Dimension) -> Any:
            if key not in sampled:
                missing.append(key)
            return sampled.get(key, _MISSING)

        return len([*self._walk(look)]) == len(sampled) and not missing

    def has(self, params: Mapping[str, Any]) -> bool:
        """Return True if the space has exactly these parameters and contains their values."""
        try:
            self.check(params)
        except ConfigError:
            return False
        return self.is_point(self.sampled(params))

    def check(self, params: Mapping[str, Any]) -> None:
        """Validate values that the user chose; parameters may be missing.

        Raises:
            ConfigError: if a parameter is unknown or does not exist with the other values, or the
                space does not contain its value.
        """
        valid_names = [name for name, _ in self.all_dimensions()]
        for name in params:
            if name not in valid_names:
                raise ConfigError(
                    f"unknown parameter {name!r}; the space has "
                    f"{', '.join(dict.fromkeys(valid_names))}.{suggest(name, valid_names)}"
                )
        checked = self._check(params)
        for name in params:
            if name not in checked:
                raise ConfigError(
                    f"{name!r} does not exist with these parameters: it belongs to a choice that "
                    f"{dict(params)!r} does not have. Add that choice, or remove {name!r}."
                )

    def _check(self, params: Mapping[str, Any]) -> set[str]:
        """Validate the values of the parameters that exist; return their names."""
        names = set()
        for name, dimension in self.dimensions.items():
            if name not in params:
                continue
            value = params[name]
            names.add(name)
            if not dimension.has(value):
                raise ConfigError(f"{name}={value!r} is not a value of {dimension!r}.")
            if isinstance(dimension, Conditional):
                names |= dimension.space_of(dimension.sampled(value))._check(params)
        return names

    # ---- all points of a space without continuous dimensions

    def num_points(self, fixed: Mapping[str, Any] = _NO_VALUES) -> int | None:
        """Return the number of points; None if a dimension is continuous.

        Args:
            fixed: the only value of these parameters, as Optuna samples it.
        """
        return self._num_points(fixed, "", self)

    def _num_points(self, fixed: Mapping[str, Any], path: str, root: "Space") -> int | None:
        numbers = []
        for name, dimension in self.dimensions.items():
            key = root._key(path, name)
            if isinstance(dimension, Conditional):
                values = [fixed[key]] if key in fixed else dimension.all_values()
                inner = [
                    dimension.space_of(value)._num_points(fixed, f"{key}={value!r}.", root)
                    for value in values
                ]
                numbers.append(_combined(sum, inner))
            else:
                numbers.append(1 if key in fixed else dimension.num_values)
        return _combined(math.prod, numbers)

    def points(self, fixed: Mapping[str, Any] = _NO_VALUES) -> Iterator[dict[str, Any]]:
        """Yield all points, as Optuna samples them.

        Args:
            fixed: the only value of these parameters, as Optuna samples it.
        """
        return self._points([*self.dimensions.items()], fixed, "", self)

    def _points(
        self,
        remaining: list[tuple[str, Dimension]],
        fixed: Mapping[str, Any],
        path: str,
        root: "Space",
    ) -> Iterator[dict[str, Any]]:
        """Yield the points of the dimensions that are left; the last name varies fastest."""
        if not remaining:
            yield {}
            return
        (name, dimension), *others = remaining
        key = root._key(path, name)
        for value in [fixed[key]] if key in fixed else dimension.all_values() or []:
            inner: Iterator[dict[str, Any]] = iter([{}])
            if isinstance(dimension, Conditional):
                space = dimension.space_of(value)
                inner = space._points([*space.dimensions.items()], fixed, f"{key}={value!r}.", root)
            for more in inner:
                for rest in self._points(others, fixed, path, root):
                    yield {key: value, **more, **rest}

    def check_finite(self) -> None:
        """Validate that a grid search can try all points.

        Raises:
            ConfigError: if a dimension is continuous.
        """
        for name, dimension in self.all_dimensions():
            if dimension.num_values is None:
                raise ConfigError(
                    f"algorithm='grid' needs a step in space[{name!r}], which is {dimension!r}. "
                    "Set its step, or write a list of values."
                )


def _combined(combine: Callable[[list[int]], int], numbers: list[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return combine(known) if len(known) == len(numbers) else None
