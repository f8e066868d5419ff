"""Runs anywhere (pure). Define the dimensions of a search space: Float, Int and Categorical."""

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sparkdl.errors import ConfigError
from sparkdl.options import plain_number
from sparkdl.search.space.grid import to_json_value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


@dataclass(frozen=True)
class Float:
    """A number in a range that includes both bounds.

    Attributes:
        low, high: the bounds.
        log: sample the logarithm uniformly, so that small values are as likely as large ones.
        step: restrict the values to `low`, `low + step`, and so on, up to `high`.
        mirror: sample x and pass `mirror - x`, which must stay within the bounds. With `log=True`
            and `mirror=low + high`, values near `high` are sampled more densely.

    Raises:
        ConfigError: if a bound or an option is invalid, or the options contradict each other.

    Example:
        >>> Float(1e-4, 1e-1, log=True).to_dict()
        {'type': 'Float', 'low': 0.0001, 'high': 0.1, 'log': True}
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None
    mirror: float | None = None

    def __post_init__(self) -> None:
        _take_plain_numbers(self)
        _check_range(self, int | float)

    def to_dict(self) -> dict[str, Any]:
        """Return the dimension as a dict for JSON, see `dimension_from_dict`."""
        return _range_to_dict(self)

    def distribution(self) -> "BaseDistribution":
        """Return the distribution that Optuna samples from."""
        from optuna.distributions import FloatDistribution

        low, high = _sampled_bounds(self)
        return FloatDistribution(low, high, log=self.log, step=self.step)

    def value(self, sampled: Any) -> Any:
        """Return the value for the training function, given the value that Optuna sampled."""
        if self.mirror is None:
            return sampled
        return min(max(self.mirror - sampled, self.low), self.high)

    def sampled(self, value: Any) -> Any:
        """Return the value that Optuna samples for this value of the training function."""
        low, high = _sampled_bounds(self)
        return value if self.mirror is None else min(max(self.mirror - value, low), high)

    def has(self, value: object) -> bool:
        """Return True if the dimension contains the value."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not self.low <= value <= self.high:  # type: ignore[operator]
            return False
        steps = (value - self.low) / self.step if self.step else 0.0  # type: ignore[operator]
        return math.isclose(steps, round(steps), rel_tol=1e-12, abs_tol=1e-8)

    def all_values(self) -> list[Any] | None:
        """Return all values that Optuna can sample, in order; None if the range is continuous."""
        if self.step is None:
            return None
        low, _, step = _decimals(self)
        return [float(low + i * step) for i in range(self.num_values or 0)]

    def ends(self) -> list[Any]:
        """Return the extreme values for the training function: the bounds, and zero."""
        return [value for value in dict.fromkeys((self.low, self.high, 0)) if self.has(value)]

    def draw(self, choose: random.Random) -> Any:
        """Return a random value, as Optuna samples it."""
        low, high = _sampled_bounds(self)
        if self.num_values is not None:
            first, _, step = _decimals(self)
            return float(first + choose.randrange(self.num_values) * step)
        if self.log:
            value = math.exp(choose.uniform(math.log(low), math.log(high)))
            return float(min(max(value, low), high))
        return choose.uniform(low, high)

    def perturb(self, sampled: Any, factor: float, choose: random.Random) -> Any:
        """Return a value near another one; both are values that Optuna samples.

        Args:
            sampled: the value.
            factor: multiply by it or divide by it, with equal probability.
            choose: the source of chance.
        """
        low, high = _sampled_bounds(self)
        is_up = choose.random() < 0.5
        value = sampled * factor if is_up == (sampled >= 0) else sampled / factor
        if value == sampled:  # Zero.
            value += (0.1 if is_up else -0.1) * (high - low)
        value = float(min(max(value, low), high))
        if self.step is None:
            return value
        first, _, step = _decimals(self)
        return float(first + _steps(value - low, sampled - low, self.step, is_up) * step)

    @property
    def num_values(self) -> int | None:
        """The number of values that Optuna can sample; None if the range is continuous."""
        if self.step is None:
            return None
        low, high, step = _decimals(self)
        return int((high - low) // step) + 1


@dataclass(frozen=True)
class Int(Float):
    """A whole number in a range that includes both bounds; the arguments are those of `Float`.

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
        _take_plain_numbers(self)
        _check_range(self, int)

    def distribution(self) -> "BaseDistribution":
        """See `Float`."""
        from optuna.distributions import IntDistribution

        low, high = _sampled_bounds(self)
        return IntDistribution(low, high, log=self.log, step=self.step)

    def has(self, value: object) -> bool:
        """See `Float`."""
        return isinstance(value, int) and super().has(value)

    def all_values(self) -> list[Any]:
        """See `Float`."""
        low, high = _sampled_bounds(self)
        return list(range(low, high + 1, self.step))

    def perturb(self, sampled: Any, factor: float, choose: random.Random) -> Any:
        """See `Float`."""
        low, high = _sampled_bounds(self)
        is_up = choose.random() < 0.5
        value = sampled * factor if is_up == (sampled >= 0) else sampled / factor
        if value == sampled:  # Zero.
            value += self.step if is_up else -self.step
        value = min(max(value, low), high)
        return low + _steps(value - low, sampled - low, self.step, is_up) * self.step

    def draw(self, choose: random.Random) -> Any:
        """See `Float`."""
        low, high = _sampled_bounds(self)
        if self.log:
            value = math.exp(choose.uniform(math.log(low - 0.5), math.log(high + 0.5)))
            return min(max(round(value), low), high)
        return choose.randrange(low, high + 1, self.step)


@dataclass(frozen=True)
class Categorical:
    """A choice among values that have no order.

    Attributes:
        choices: the values, all different: numbers, strings, booleans, None, or lists and dicts of
            these. A tuple becomes a list, because JSON in the run directory has no tuples.

    Raises:
        ConfigError: if `choices` is not a list of such values, or has equal values.

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
        choices = tuple(to_json_value("choices", c) for c in self.choices)
        object.__setattr__(self, "choices", choices)
        by_key: dict[Any, Any] = {}
        for choice in choices:
            if choice != choice:
                raise ConfigError("choices has NaN, which is not equal to itself; remove it.")
            if (key := self.sampled(choice)) in by_key:
                raise ConfigError(
                    f"choices has {by_key[key]!r} and {choice!r}, which cannot be distinguished; "
                    "remove one of them."
                )
            by_key[key] = choice

    def to_dict(self) -> dict[str, Any]:
        """Return the dimension as a dict for JSON, see `dimension_from_dict`."""
        return {"type": "Categorical", "choices": list(self.choices)}

    def distribution(self) -> "BaseDistribution":
        """Return the distribution that Optuna samples from."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution([self.sampled(choice) for choice in self.choices])

    def value(self, sampled: Any) -> Any:
        """Return the value for the training function, given the value that Optuna sampled."""
        return next(choice for choice in self.choices if self.sampled(choice) == sampled)

    def sampled(self, value: Any) -> Any:
        """Return the value that Optuna samples for this value of the training function."""
        # Choices of Optuna cannot be lists or dicts.
        is_scalar = value is None or isinstance(value, bool | int | float | str)
        return value if is_scalar else json.dumps(value, sort_keys=True)

    def has(self, value: object) -> bool:
        """Return True if the dimension contains the value."""
        value = to_json_value("value", value)
        return any(choice == value and type(choice) is type(value) for choice in self.choices)

    def all_values(self) -> list[Any]:
        """Return all values that Optuna can sample."""
        return [self.sampled(choice) for choice in self.choices]

    def ends(self) -> list[Any]:
        """Return all choices."""
        return list(self.choices)

    def draw(self, choose: random.Random) -> Any:
        """Return a random choice, as Optuna samples it."""
        return choose.choice(self.all_values())

    def perturb(self, sampled: Any, factor: float, choose: random.Random) -> Any:
        """Return the same choice: no other one is near it."""
        return sampled

    @property
    def num_values(self) -> int:
        """The number of choices."""
        return len(self.choices)


Dimension = Float | Int | Categorical
_TYPES: dict[str, type[Any]] = {"Float": Float, "Int": Int, "Categorical": Categorical}


def dimension_from_dict(fields: Mapping[str, Any]) -> Dimension:
    """Create a dimension from the dict that its `to_dict` returned."""
    values = dict(fields)
    dimension: Dimension = _TYPES[values.pop("type")](**values)
    return dimension


def _range_to_dict(dimension: Float) -> dict[str, Any]:
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


def _steps(value: float, before: float, step: float, is_up: bool) -> int:
    """Return the number of steps nearest to a value, and if it is that of before, the next one.

    All values are distances from the low bound. A value beyond a bound stays at it.
    """
    number, old = round(value / step), round(before / step)
    if number == old and value != before:
        return max(0, old + (1 if is_up else -1))
    return number


def _decimals(dimension: Float) -> list[Decimal]:
    """Return the low bound, the high bound and the step as decimals.

    Optuna computes in decimals too, and warns if `high` is not a whole number of steps above `low`.
    """
    return [Decimal(str(number)) for number in (dimension.low, dimension.high, dimension.step)]


def _take_plain_numbers(dimension: Float) -> None:
    for name in ("low", "high", "step", "mirror"):
        object.__setattr__(dimension, name, plain_number(getattr(dimension, name)))


def _check_range(dimension: Float, kind: Any) -> None:
    for name in ("low", "high", "step", "mirror"):
        value = getattr(dimension, name)
        optional = value is None and (name == "mirror" or (name == "step" and kind is not int))
        is_number = isinstance(value, kind) and not isinstance(value, bool)
        if not optional and not (is_number and abs(value) < math.inf):
            expected = "a whole number" if kind is int else "a number"
            raise ConfigError(f"{dimension!r}: {name} is {value!r}; expected {expected}.")
    if dimension.low > dimension.high:
        raise ConfigError(f"{dimension!r}: `low <= high` must hold; swap them.")
    if dimension.step is not None and dimension.step <= 0:
        raise ConfigError(f"{dimension!r}: `step > 0` must hold.")
    has_step = dimension.step not in ((1,) if kind is int else (None,))
    if has_step and (dimension.log or dimension.mirror is not None):
        raise ConfigError(f"{dimension!r}: step cannot be combined with log=True or mirror.")
    if dimension.log and _sampled_bounds(dimension)[0] <= 0:
        raise ConfigError(f"{dimension!r}: log=True requires bounds above 0; raise low.")
