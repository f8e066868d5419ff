"""Runs on the driver (pure). maggy's search space, and the dimensions that it stands for."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparkdl.search.space.dimensions import Categorical, Dimension, Float, Int

__all__ = ["Searchspace", "dimensions_of"]


class Searchspace:
    """Hyperparameters by name, each with a type and the values that it may have.

    A hyperparameter is `("DOUBLE", [low, high])`, `("INTEGER", [low, high])`,
    `("DISCRETE", [values])` or `("CATEGORICAL", [values])`. Its values are also an attribute.

    Args:
        **kwargs: the hyperparameters.

    Raises:
        ValueError, AssertionError: see `add`.

    Example:
        >>> space = Searchspace(kernel=("INTEGER", [2, 8]))
        Hyperparameter added: kernel
        >>> space.add("dropout", ("DOUBLE", [0.01, 0.99]))
        Hyperparameter added: dropout
        >>> space.kernel, space.names()
        ([2, 8], {'kernel': 'INTEGER', 'dropout': 'DOUBLE'})
    """

    DOUBLE = "DOUBLE"
    INTEGER = "INTEGER"
    DISCRETE = "DISCRETE"
    CATEGORICAL = "CATEGORICAL"

    def __init__(self, **kwargs: Any) -> None:
        self._hparam_types: dict[str, str] = {}
        for name, value in kwargs.items():
            self.add(name, value)

    def add(self, name: str, value: Any) -> None:
        """Add a hyperparameter.

        Args:
            name: its name.
            value: its type and a list: the bounds of DOUBLE and INTEGER, the values of the others.

        Raises:
            ValueError: if the name is taken, or the type or the list is invalid.
            AssertionError: if there are not two bounds, or the lower one is not below the other.
        """
        if getattr(self, name, None) is not None:
            raise ValueError(f"Hyperparameter name is reserved: {name}. Choose another one.")
        kind = _type_of(name, value)
        self._hparam_types[name] = kind
        setattr(self, name, value[1])
        print(f"Hyperparameter added: {name}")

    def to_dict(self) -> dict[str, tuple[str, Any]]:
        """Return the type and the values by name; `Searchspace(**space.to_dict())` is a copy."""
        return dict(zip(self._hparam_types, self.values(), strict=True))

    def names(self) -> dict[str, str]:
        """Return the type of each hyperparameter by its name."""
        return self._hparam_types

    def get(self, name: str, default: Any = None) -> Any:
        """Return the values of a hyperparameter, or the default if there is none of this name."""
        return getattr(self, name) if name in self._hparam_types else default

    def keys(self) -> list[str]:
        """Return the names in the order in which they were added."""
        return list(self._hparam_types)

    def values(self) -> list[tuple[str, Any]]:
        """Return the types and the values in the order in which they were added."""
        return [(kind, self.get(name)) for name, kind in self._hparam_types.items()]

    def items(self) -> Iterator[dict[str, Any]]:
        """Return an iterator of dicts with `name`, `type` and `values`."""
        return iter(self)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for name, (kind, values) in self.to_dict().items():
            yield {"name": name, "type": kind, "values": values}

    def __contains__(self, name: object) -> bool:
        return name in self._hparam_types

    def __str__(self) -> str:
        return self.json()

    def json(self) -> str:
        """Return the types and the values by name as JSON."""
        return json.dumps(self.to_dict(), sort_keys=True)

    def get_random_parameter_values(self, num: int) -> list[dict[str, Any]]:
        """Return random values of all hyperparameters, `num` times."""
        choose = random.Random()
        dimensions = dimensions_of(self)
        return [{name: d.draw(choose) for name, d in dimensions.items()} for _ in range(num)]

    def transform(self, hparams: Sequence[Any], normalize_categorical: bool = False) -> list[float]:
        """Return values as numbers: between 0 and 1, and the position of a category.

        Args:
            hparams: a value of each hyperparameter.
            normalize_categorical: let the position be between 0 and 1, too.

        Raises:
            NotImplementedError: if a hyperparameter is DISCRETE.
        """
        return [
            _scale(spec, value, normalize_categorical)
            for spec, value in zip(self, hparams, strict=True)
        ]

    def inverse_transform(
        self, transformed_hparams: Sequence[float], normalize_categorical: bool = False
    ) -> list[Any]:
        """Return the values that `transform` has changed; the arguments are its own."""
        return [
            _unscaled(spec, value, normalize_categorical)
            for spec, value in zip(self, transformed_hparams, strict=True)
        ]

    @staticmethod
    def dict_to_list(hparams: Mapping[str, Any]) -> list[Any]:
        """Return the values without their names."""
        return list(hparams.values())

    def list_to_dict(self, hparams: Sequence[Any]) -> dict[str, Any]:
        """Return values by the names of the hyperparameters.

        Raises:
            ValueError: if their numbers differ.
        """
        if len(hparams) != len(self._hparam_types):
            raise ValueError(
                f"hparams has {len(hparams)} values; expected one for each of "
                f"{', '.join(self._hparam_types) or 'no names'}."
            )
        return dict(zip(self._hparam_types, hparams, strict=True))


def dimensions_of(space: Searchspace) -> dict[str, Dimension]:
    """Return the dimension of sparkdl for each hyperparameter.

    Example:
        >>> dimensions_of(Searchspace(pool=("INTEGER", [2, 8])))["pool"].to_dict()
        Hyperparameter added: pool
        {'type': 'Int', 'low': 2, 'high': 8}
    """
    return {spec["name"]: _dimension(spec["type"], spec["values"]) for spec in space}


def _dimension(kind: str, values: Any) -> Dimension:
    if kind == Searchspace.DOUBLE:
        return Float(float(values[0]), float(values[1]))
    return Int(*values) if kind == Searchspace.INTEGER else Categorical(list(values))


def _type_of(name: str, value: Any) -> str:
    """Return the type of a hyperparameter, in capitals."""
    if not isinstance(value, tuple | list):
        raise ValueError(
            f"Value is not an appropriate tuple: {name} is {value!r}; expected a tuple such as "
            '("INTEGER", [2, 8]).'
        )
    if len(value) != 2:
        raise ValueError(
            f"Hyperparameter tuple has to be of length two and format (type, list): {name} is "
            f"{value!r}."
        )
    kind, values = str(value[0]).upper(), value[1]
    if kind not in ("DOUBLE", "INTEGER", "DISCRETE", "CATEGORICAL"):
        raise ValueError(
            "Hyperparameter type is not of type DOUBLE, INTEGER, DISCRETE or CATEGORICAL: "
            f"{name} is {value!r}."
        )
    if not len(values):
        raise ValueError(
            f"Hyperparameter feasible region list cannot be empty: {name} is {value!r}."
        )
    if kind in ("DOUBLE", "INTEGER"):
        _check_bounds(name, kind, values)
    return kind


def _check_bounds(name: str, kind: str, bounds: Sequence[Any]) -> None:
    if len(bounds) != 2:  # maggy raises AssertionError, which its programs may catch.
        raise AssertionError(
            "For DOUBLE or INTEGER type parameters, list can only contain upper and lower bounds: "
            f"{name} has {bounds!r}."
        )
    types, words = ((int,), "integer") if kind == "INTEGER" else ((int, float), "integer or float")
    if any(type(bound) not in types for bound in bounds):
        raise ValueError(
            f"Hyperparameter boundaries for type {kind} need to be {words}: {name} has {bounds!r}."
        )
    if not bounds[0] < bounds[1]:
        raise AssertionError(
            f"Lower bound {bounds[0]} must be less than upper bound {bounds[1]}: {name}."
        )


def _scale(spec: Mapping[str, Any], value: Any, normalize: bool) -> float:
    kind, values = spec["type"], spec["values"]
    if kind in ("DOUBLE", "INTEGER"):
        number = int(value) if kind == "INTEGER" else float(value)
        return float(min(max((number - values[0]) / (values[1] - values[0]), 0.0), 1.0))
    _check_categorical(kind)
    position: int = values.index(value)
    return position / max(1, len(values) - 1) if normalize else position


def _unscaled(spec: Mapping[str, Any], value: float, normalize: bool) -> Any:
    kind, values = spec["type"], spec["values"]
    if kind in ("DOUBLE", "INTEGER"):
        number = float(value) * (values[1] - values[0]) + values[0]
        return round(number) if kind == "INTEGER" else number
    _check_categorical(kind)
    return values[round(value * (len(values) - 1)) if normalize else int(value)]


def _check_categorical(kind: str) -> None:
    if kind != Searchspace.CATEGORICAL:
        raise NotImplementedError(
            f"a hyperparameter is {kind}, which has no place between 0 and 1; expected DOUBLE, "
            "INTEGER or CATEGORICAL."
        )
