"""Runs anywhere (pure). What values one parameter of a search may take."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sparkdl.errors import ConfigError
from sparkdl.search.space.grid import plain

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = ["Categorical", "Dimension", "Float", "Int", "restored"]


@dataclass(frozen=True)
class Float:
    """A number between two others, both included.

    Attributes:
        low, high: the bounds.
        log: sample the logarithm evenly, so that small values are as likely as large ones.
        step: only `low`, `low + step`, and so on, up to `high`.
        mirror: what is sampled as x stands for `mirror - x`, which must stay within the bounds.
            With `log` values near `high` are sampled more densely, with `mirror=low + high`.

    Raises:
        ConfigError: the bounds, or what goes with them, cannot be.

    Example:
        >>> Float(1e-4, 1e-1, log=True).kept()
        {'type': 'Float', 'low': 0.0001, 'high': 0.1, 'log': True}
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None
    mirror: float | None = None

    def __post_init__(self) -> None:
        _check_range(self, int | float)

    def kept(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return _kept(self)

    def distribution(self) -> "BaseDistribution":
        """What Optuna samples from."""
        from optuna.distributions import FloatDistribution

        low, high = _sampled_bounds(self)
        return FloatDistribution(low, high, log=self.log, step=self.step)

    def value(self, sampled: Any) -> Any:
        """What the training function gets for what was sampled."""
        if self.mirror is None:
            return sampled
        return min(max(self.mirror - sampled, self.low), self.high)

    def sampled(self, value: Any) -> Any:
        """What was sampled where the training function got this."""
        low, high = _sampled_bounds(self)
        return value if self.mirror is None else min(max(self.mirror - value, low), high)

    def has(self, value: object) -> bool:
        """Whether this is one of its values."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not self.low <= value <= self.high:  # type: ignore[operator]
            return False
        steps = (value - self.low) / self.step if self.step else 0.0  # type: ignore[operator]
        return math.isclose(steps, round(steps), rel_tol=1e-12, abs_tol=1e-8)

    def every(self) -> list[Any] | None:
        """All that is sampled, in order; None if that has no end."""
        if self.step is None:
            return None
        low, high, step = _decimals(self)
        return [float(low + i * step) for i in range(int((high - low) // step) + 1)]


@dataclass(frozen=True)
class Int(Float):
    """A whole number between two others, both included; its arguments are those of `Float`.

    Example:
        >>> Int(16, 256, log=True).has(64), Int(1, 9, step=2).has(4)
        (True, False)
    """

    low: int
    high: int
    log: bool = False
    step: int = 1
    mirror: int | None = None

    def __post_init__(self) -> None:
        _check_range(self, int)

    def distribution(self) -> "BaseDistribution":
        """See `Float`."""
        from optuna.distributions import IntDistribution

        low, high = _sampled_bounds(self)
        return IntDistribution(low, high, log=self.log, step=self.step)

    def has(self, value: object) -> bool:
        """See `Float`."""
        return isinstance(value, int) and super().has(value)

    def every(self) -> list[Any]:
        """See `Float`."""
        low, high = _sampled_bounds(self)
        return list(range(low, high + 1, self.step))


@dataclass(frozen=True)
class Categorical:
    """One of some values, between which there is no order.

    Attributes:
        choices: numbers, strings, booleans, None, or lists and dicts of such, all different. A
            tuple becomes a list, as which it comes back from a run directory.

    Raises:
        ConfigError: they are no such list.

    Example:
        >>> Categorical(["adam", "sgd"]).has("adam")
        True
    """

    choices: Sequence[Any]

    def __post_init__(self) -> None:
        if isinstance(self.choices, str | Mapping) or not isinstance(self.choices, Sequence):
            raise ConfigError(f"choices is {self.choices!r}; expected a list of values.")
        if not self.choices:
            raise ConfigError("choices is empty; expected at least one value.")
        choices = tuple(_listed(plain("choices", c)) for c in self.choices)
        object.__setattr__(self, "choices", choices)
        seen: dict[Any, Any] = {}
        for choice in choices:
            if choice != choice:
                raise ConfigError("choices has NaN, which equals nothing; leave it out.")
            if (key := self.sampled(choice)) in seen:
                raise ConfigError(
                    f"choices has {seen[key]!r} and {choice!r}, which cannot be told apart; leave "
                    "one out."
                )
            seen[key] = choice

    def kept(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"type": "Categorical", "choices": list(self.choices)}

    def distribution(self) -> "BaseDistribution":
        """What Optuna samples from."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution([self.sampled(choice) for choice in self.choices])

    def value(self, sampled: Any) -> Any:
        """What the training function gets for what was sampled."""
        return next(choice for choice in self.choices if self.sampled(choice) == sampled)

    def sampled(self, value: Any) -> Any:
        """What was sampled where the training function got this."""
        # Optuna holds no lists and dicts.
        is_plain = value is None or isinstance(value, bool | int | float | str)
        return value if is_plain else json.dumps(value, sort_keys=True)

    def has(self, value: object) -> bool:
        """Whether this is one of its values."""
        value = _listed(value)
        return any(choice == value and type(choice) is type(value) for choice in self.choices)

    def every(self) -> list[Any]:
        """All that is sampled."""
        return [self.sampled(choice) for choice in self.choices]


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _listed(item) for name, item in value.items()}
    return value


Dimension = Float | Int | Categorical
_TYPES: dict[str, type[Any]] = {"Float": Float, "Int": Int, "Categorical": Categorical}


def restored(kept: Mapping[str, Any]) -> Dimension:
    """From what `kept` gave."""
    values = dict(kept)
    found: Dimension = _TYPES[values.pop("type")](**values)
    return found


def _kept(dimension: Float) -> dict[str, Any]:
    defaults = {field.name: field.default for field in fields(dimension)}
    values = {k: v for k, v in asdict(dimension).items() if v != defaults[k]}
    return {"type": type(dimension).__name__, **values}


def _sampled_bounds(dimension: Float) -> tuple[Any, Any]:
    low, high = dimension.low, dimension.high
    if dimension.mirror is not None:
        return dimension.mirror - high, dimension.mirror - low
    if isinstance(dimension, Int):
        return low, low + (high - low) // dimension.step * dimension.step
    if dimension.step is None:
        return low, high
    first, last, step = _decimals(dimension)
    return low, float(first + (last - first) // step * step)


def _decimals(dimension: Float) -> list[Decimal]:
    """The bounds and the step. Optuna counts in decimals, and warns where `high` is no step."""
    return [Decimal(str(number)) for number in (dimension.low, dimension.high, dimension.step)]


def _check_range(dimension: Float, kind: Any) -> None:
    given = {name: getattr(dimension, name) for name in ("low", "high", "step", "mirror")}
    for name, value in given.items():
        optional = value is None and (name == "mirror" or (name == "step" and kind is not int))
        is_number = isinstance(value, kind) and not isinstance(value, bool)
        if not optional and not (is_number and abs(value) < math.inf):
            whole = "a whole number" if kind is int else "a number"
            raise ConfigError(f"{dimension!r}: {name} is {value!r}; expected {whole}.")
    if dimension.low > dimension.high:
        raise ConfigError(f"{dimension!r}: `low <= high` must hold; swap them.")
    if dimension.step is not None and dimension.step <= 0:
        raise ConfigError(f"{dimension!r}: `step > 0` must hold.")
    has_step = dimension.step not in ((1,) if kind is int else (None,))
    if has_step and (dimension.log or dimension.mirror is not None):
        raise ConfigError(f"{dimension!r}: log=True and mirror take no step.")
    if dimension.log and _sampled_bounds(dimension)[0] <= 0:
        raise ConfigError(f"{dimension!r}: log=True needs bounds above 0; raise low.")
