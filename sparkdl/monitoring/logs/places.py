"""Runs anywhere. The places of a model's features in the inputs and outputs of its requests."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.monitoring.logs.log_forms import Event, Tensors

# The feature that a tensor is, or the features that the elements of its rows are.
Names = Mapping[str, str | Sequence[str]]

# A tensor, True if it is an output, and the element of its rows.
_Place = tuple[str, bool, int | None]

_logger = logging.getLogger("sparkdl.monitoring")


@dataclass(frozen=True)
class Place:
    """The place of a feature.

    Attributes:
        feature: the name of the feature.
        kind: its kind in the profile: `number`, `array` or `category`.
        tensor: the name of the tensor.
        is_output: the tensor is an output.
        element: the place in a row of the tensor; None if the whole row is the feature.
        is_boolean: the feature is one of `true` and `false`, for which a model may get 1 and 0.
    """

    feature: str
    kind: str
    tensor: str
    is_output: bool = False
    element: int | None = None
    is_boolean: bool = False

    def column(self, tensors: Tensors) -> list[Any] | None:
        """Return the value of each row; None if the tensor is not there."""
        rows = tensors.get(self.tensor, tensors.get(""))
        if not isinstance(rows, list):
            return None
        if self.element is not None:
            rows = [_element(row, self.element) for row in rows]
        conversion = _boolean if self.is_boolean else _CONVERSIONS[self.kind]
        return [conversion(row) for row in rows]


def places_of(
    features: Mapping[str, Mapping[str, Any]],
    signature: Mapping[str, Any] | None,
    columns: Sequence[str] | None = None,
    inputs: Names | None = None,
    outputs: Names | None = None,
    has_others: bool = False,
) -> tuple[Place, ...]:
    """Return the places of the features of a profile.

    Args:
        features: the features of the profile by name.
        signature: the `inputs` and `outputs` of the model; None if they are not known.
        columns: the features to look for; by default all that the model has.
        inputs, outputs: the features that tensors are, where the names differ.
        has_others: these may name others than the features of the profile.

    Raises:
        ConfigError: if a feature is no input and no output of the model, or if one number is to be
            that of a tensor with several values in a row.

    Example:
        >>> features = {"age": {"kind": "number"}, "p": {"kind": "number"}}
        >>> [(p.tensor, p.element) for p in places_of(features, None, inputs={"x": ["p", "age"]})]
        [('x', 1), ('x', 0)]
    """
    tensors: dict[str, Any] = {"inputs": {}, "outputs": {}, **(signature or {})}
    _warn_of_others({"inputs": inputs or {}, "outputs": outputs or {}}, tensors)
    origins: dict[str, _Place] = {
        **_places_by_feature(inputs or {}, False),
        **_places_by_feature(outputs or {}, True),
    }
    others = _unprofiled_features(origins, tensors, features) if has_others else {}
    names = list(columns or (n for n in features if features[n]["kind"] in _CONVERSIONS))
    names += [name for name in others if name not in names]
    features = {**features, **others}
    if unknown := [name for name in (*names, *origins) if name not in features]:
        raise ConfigError(f"the reference has no feature {unknown[0]!r}; it has {list(features)}.")
    for side, is_output in (("inputs", False), ("outputs", True)):
        for tensor in tensors[side]:
            origins.setdefault(tensor, (tensor, is_output, None))
    if signature is None:
        origins = {**{name: (name, False, None) for name in names}, **origins}
    missing = [name for name in names if name not in origins]
    if missing and (columns or len(missing) == len(names)):
        raise ConfigError(
            f"the feature {missing[0]!r} of the reference is no input and no output of the model, "
            f"which has the inputs {list(tensors['inputs'])} and the outputs "
            f"{list(tensors['outputs'])}. Say which features they are: "
            "inputs={'x': ['age', 'income']}, outputs={'output_0': 'score'}."
        )
    places = tuple(
        Place(
            name,
            features[name]["kind"],
            *origins[name],
            features[name].get("type") == "boolean",
        )
        for name in names
        if name in origins
    )
    for place in places:
        _check_size(
            place, tensors["outputs" if place.is_output else "inputs"].get(place.tensor, {})
        )
    return places


def _warn_of_others(names: Mapping[str, Names], tensors: Mapping[str, Any]) -> None:
    """Warn of tensors that the model does not have; what is in front of it may log others."""
    for side, named in names.items():
        unknown = [tensor for tensor in named if tensor not in tensors[side]]
        if tensors[side] and unknown:
            _logger.warning(
                "%s names %r, which the model does not have: its %s are %s. Where the log has no "
                "such name either, the values are null.",
                *(side, unknown[0], side, ", ".join(map(repr, tensors[side]))),
            )


def _check_size(place: Place, description: Mapping[str, Any]) -> None:
    """Refuse a feature of one value for a tensor with several values in a row."""
    sizes = [size for size in (description.get("shape") or [None])[1:] if size is not None]
    num = math.prod(sizes)
    if num > 1 and place.element is None and place.kind != "array":
        side = "outputs" if place.is_output else "inputs"
        names = [f"{place.feature}_{i}" for i in range(2)]
        raise ConfigError(
            f"{place.feature!r} is one value, and {place.tensor!r} of the {side} of the model has "
            f"{num} in a row. Name each: {side}={{{place.tensor!r}: [{names[0]!r}, {names[1]!r}, "
            "...]}."
        )


def _unprofiled_features(
    origins: Mapping[str, _Place], tensors: Mapping[str, Any], features: Mapping[str, Any]
) -> dict[str, Any]:
    """Return features for names that are in no profile: texts, or else numbers."""
    kinds = {}
    for name, (tensor, is_output, _) in origins.items():
        if name in features:
            continue
        description = tensors["outputs" if is_output else "inputs"].get(tensor, {})
        kinds[name] = {"kind": "category" if description.get("dtype") == "string" else "number"}
    return kinds


def _places_by_feature(names: Names, is_output: bool) -> dict[str, _Place]:
    places: dict[str, _Place] = {}
    for tensor, value in names.items():
        if isinstance(value, str):
            places[value] = tensor, is_output, None
        else:
            places |= {name: (tensor, is_output, i) for i, name in enumerate(value)}
    return places


def rows_of(event: Event, places: Sequence[Place]) -> dict[str, list[Any]] | None:
    """Return the values of the rows of an event by feature.

    A feature of the side that an event does not tell of is left out.

    Returns:
        The values; None if the event has tensors, and none of them is a feature.
    """
    columns: dict[str, list[Any]] = {}
    sides = {False: event.inputs, True: event.outputs}
    for place in places:
        if tensors := sides[place.is_output]:
            column = place.column(tensors)
            if column is not None:
                columns[place.feature] = column
    num_rows = max(map(len, columns.values()), default=0)
    if not columns:
        tells = any(sides[place.is_output] for place in places)
        return None if tells else {}
    return {
        place.feature: column if len(column) == num_rows else [None] * num_rows
        for place in places
        if sides[place.is_output]
        for column in [columns.get(place.feature, [])]
    }


# ---- values


def _element(row: Any, element: int) -> Any:
    return row[element] if isinstance(row, list) and element < len(row) else None


def _single(value: Any) -> Any:
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value


def _number(value: Any) -> float | None:
    value = _single(value)
    return float(value) if isinstance(value, int | float) else None


def _text(value: Any) -> str | None:
    value = _single(value)
    if isinstance(value, bool):
        return str(value).lower()  # As Spark casts it.
    if value is None or isinstance(value, list | dict):
        return None
    return str(value)


def _boolean(value: Any) -> str | None:
    value = _single(value)
    return _text(bool(value) if value in (0, 1) else value)


def _array(value: Any) -> list[float | None] | None:
    if not isinstance(value, list):
        return None
    numbers: list[float | None] = []
    for item in value:
        numbers += (_array(item) or []) if isinstance(item, list) else [_number(item)]
    return numbers


_CONVERSIONS = {"number": _number, "category": _text, "array": _array}
