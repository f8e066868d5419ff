"""Runs on the driver (pure). The values of a parameter in all trials of a run, as text."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sparkdl.runs import table

# The most values of a parameter that are listed.
MAX_LISTED = 4


def tried(params: Iterable[Mapping[str, Any]], name: str) -> str:
    """Return the values of a parameter as text, of many values the ends.

    Args:
        params: the parameters of each trial.
        name: the name of the parameter.

    Example:
        >>> tried([{"units": 16}, {"units": 32}, {"units": 16}], "units")
        '16, 32'
        >>> tried([{"units": n} for n in range(10)], "units")
        '0 to 9, 10 values'
    """
    values = list(dict.fromkeys(json.dumps(each[name]) for each in params if name in each))
    texts = [table.cell(json.loads(value)) for value in values]
    if len(texts) <= MAX_LISTED:
        return ", ".join(texts)
    numbers = [json.loads(value) for value in values]
    if all(isinstance(number, int | float) for number in numbers):
        return f"{table.cell(min(numbers))} to {table.cell(max(numbers))}, {len(texts)} values"
    return f"{', '.join(texts[:MAX_LISTED])} ... {len(texts)} values"
