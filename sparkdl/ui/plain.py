"""Runs anywhere. Values as JSON that every browser reads."""

import json
import math
from collections.abc import Mapping
from typing import Any


def to_plain_json(value: Any) -> str:
    """Return a value as JSON. Numbers that are not finite become text, as JSON has none.

    Example:
        >>> to_plain_json({"loss": float("nan"), "step": 3})
        '{"loss": "nan", "step": 3}'
    """
    try:
        return json.dumps(value, allow_nan=False, default=str)
    except ValueError:
        return json.dumps(_all_finite(value), allow_nan=False, default=str)


def _all_finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _all_finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_all_finite(item) for item in value]
    return value


def plain_value(value: Any) -> Any:
    """Return a value of a user for a table: a number, a text, or None.

    Example:
        >>> plain_value(0.5), plain_value(True), plain_value([64, 32]), plain_value(None)
        (0.5, 'True', '[64, 32]', None)
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or isinstance(value, str):
        return value
    return value if is_number and math.isfinite(value) else str(value)
