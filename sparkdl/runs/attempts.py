"""Runs on the driver. The reports of a trial that was attempted several times."""

import math
from collections.abc import Sequence
from typing import Any


def merge_attempts(attempts: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the rows of all attempts, each up to the step at which a later attempt began.

    Args:
        attempts: the reported rows of each attempt, earliest attempt first.

    Example:
        >>> first = [{"step": 1}, {"step": 2}, {"step": 3, "cut": True}]
        >>> merge_attempts([first, [{"step": 3}, {"step": 4}]])
        [{'step': 1}, {'step': 2}, {'step': 3}, {'step': 4}]
    """
    merged: list[dict[str, Any]] = []
    end = math.inf
    for rows in reversed(attempts):
        merged = [row for row in rows if row["step"] < end] + merged
        end = min(end, rows[0]["step"]) if rows else end
    return merged
