"""Runs on the driver. The reports of a trial that was attempted several times."""

import math
from collections.abc import Sequence
from typing import Any


def merge_attempts(attempts: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the rows of all attempts, each up to the step at which a later attempt began.

    Args:
        attempts: the reported rows of each attempt, earliest attempt first. Those that are damaged
            are left out.

    Example:
        >>> first = [{"step": step, "metrics": {"loss": 0.5}} for step in (1, 2, 3)]
        >>> later = [{"step": step, "metrics": {"loss": 0.4}} for step in (3, 4)]
        >>> [(row["step"], row["metrics"]["loss"]) for row in merge_attempts([first, later])]
        [(1, 0.5), (2, 0.5), (3, 0.4), (4, 0.4)]
    """
    merged: list[dict[str, Any]] = []
    end = math.inf
    for attempt in reversed(attempts):
        rows = [row for row in attempt if _is_report(row)]
        merged = [row for row in rows if row["step"] < end] + merged
        end = min(end, rows[0]["step"]) if rows else end
    return merged


def _is_report(row: dict[str, Any]) -> bool:
    return isinstance(row.get("step"), int) and isinstance(row.get("metrics"), dict)
