"""Inference logs for tests: requests by the hour, some unlike the training data."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sparkdl.profiles.categories import Categories
from sparkdl.profiles.distribution import Distribution
from sparkdl.profiles.histograms import Edges
from sparkdl.profiles.moments import Moments, Shape

__all__ = [
    "HOUR_MS",
    "PROFILE",
    "START_MS",
    "add_requests",
    "expected",
    "numbers",
    "request",
    "windows",
    "write_log",
]

HOUR_MS = 3_600_000
START_MS = 1_763_978_400_000  # 2025-11-24 10:00 UTC, so that no request lies in the future


def numbers(values: Any) -> dict[str, Any]:
    """The fields of a feature of a profile."""
    values = np.asarray(values, np.float64)
    moments, distribution = Moments.of(values), Distribution.of(values)
    described = distribution.values(), distribution.counts
    shape = Shape.of(moments, *described)
    counts = Edges.of(moments, shape, distribution).count(*described)
    fields = {"kind": "number", "type": "double", "n": len(values), "nulls": 0}
    return {**fields, **moments.fields(shape), **counts.fields()}


# Of 1000 rows: `age` from 0 to 1, and the words `a` and `b`.
PROFILE: dict[str, Any] = {
    "format": 2,
    "features": {
        "age": numbers(np.arange(1000) / 1000),
        "word": {
            "kind": "category",
            "type": "string",
            "n": 1000,
            "nulls": 0,
            **Categories({"a": 500, "b": 500}).fields(),
        },
    },
}


def request(number: int, time_ms: int, is_unlike: bool = False, **fields: Any) -> dict[str, Any]:
    """Return a record of two rows; `is_unlike` makes the inputs unlike the training data."""
    ages = [number % 50 / 50 + (5.0 if is_unlike else 0.0), number % 50 / 50 + 0.01]
    known = {"id": f"r{number}", "time": time_ms, "model": "m", "version": 3, "rows": 2}
    tensors = {
        "inputs": {"age": [[age] for age in ages], "word": ["a", "b"]},
        "outputs": {"y": [0]},
    }
    return {**known, "status": 200, **tensors, **fields}


def add_requests(
    log: Path, hour: int, num: int = 100, is_unlike: bool = False, minute: int = 0, **fields: Any
) -> None:
    """Append requests of the given hour after `START_MS` to the file of a server."""
    path = log / f"date=2025-11-{24 + (10 + hour) // 24}/hour={(10 + hour) % 24:02}/w-1.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    begin = START_MS + hour * HOUR_MS + minute * 60_000
    with path.open("a") as file:
        for number in range(num):
            file.write(json.dumps(request(number, begin + number, is_unlike, **fields)) + "\n")


def write_log(log: Path, drifted: list[bool]) -> None:
    """Write an hour of requests for each value, True for inputs unlike the training data."""
    for hour, is_unlike in enumerate(drifted):
        add_requests(log, hour, is_unlike=is_unlike)


def windows(table: pd.DataFrame) -> list[tuple[int, str, str, str, int]]:
    """The hour, feature, metric, status and number of rows of each row of the results."""
    hours = (table["window"] - pd.Timestamp(START_MS, unit="ms", tz="UTC")) // pd.Timedelta("1h")
    columns = [hours, table["feature"], table["metric"], table["status"], table["rows"]]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def expected(statuses: list[str], rows: int = 200) -> list[tuple[int, str, str, str, int]]:
    """The windows of requests of which only `age` may have drifted."""
    return [
        (hour, feature, metric, status if feature == "age" else "ok", rows)
        for hour, status in enumerate(statuses)
        for feature in ("age", "word")
        for metric in ("js", "psi")
    ]
