"""Runs on the driver. The drift and performance of a model's requests, and unread lines."""

from typing import Any

from sparkdl.models.version import ModelVersion
from sparkdl.models.watch_files import ResultFiles, folder_of
from sparkdl.ui.plain import shown

__all__ = ["drift_rows", "left_out_rows", "performance_rows"]

# Windows of a row, and files that are read for them.
NUM_WINDOWS = 48


def drift_rows(version: ModelVersion) -> list[dict[str, Any]]:
    """Return a row for each feature and metric with its last windows, what has drifted first."""
    table = ResultFiles(folder_of(version)).read_windows(last=NUM_WINDOWS)
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in table.astype({"version": "object"}).to_dict(orient="records"):
        key = row["feature"], row["metric"], _number(row["version"])
        groups.setdefault(key, []).append({str(name): value for name, value in row.items()})
    rows = []
    for windows in groups.values():
        last = windows[-1]
        names = ("feature", "metric", "role", "status")
        numbers = ("version", "value", "threshold", "rows")
        rows.append(
            {
                **{name: last[name] for name in names},
                **{name: _number(last[name]) for name in numbers},
                "windows": [_window(row) for row in windows[-NUM_WINDOWS:]],
            }
        )
    drifted = {"drift": 0, "ok": 1}
    return sorted(rows, key=lambda row: (drifted.get(row["status"], 2), row["feature"]))


def left_out_rows(version: ModelVersion) -> list[dict[str, Any]]:
    """Return a row for each reason for which lines of the log were left out."""
    found = ResultFiles(folder_of(version)).read_left_out()
    return [{"reason": reason, **counted} for reason, counted in found.items()]


def performance_rows(version: ModelVersion) -> list[dict[str, Any]]:
    """Return a row for each of the last windows whose labels have come, the newest one first."""
    table = ResultFiles(folder_of(version)).read_performance()
    rows = table.astype({"version": "object"}).sort_values("window").to_dict(orient="records")
    numbers = ("version", "value", "requests", "labelled")
    return [
        {"window": _time(row["window"]), "metric": row["metric"]}
        | {name: _number(row[name]) for name in numbers}
        for row in rows[-NUM_WINDOWS:][::-1]
    ]


def _time(moment: Any) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _window(row: dict[str, Any]) -> dict[str, Any]:
    return {"start": _time(row["window"]), "status": row["status"], "value": _number(row["value"])}


def _number(value: Any) -> Any:
    """Return a number of a table as one for JSON; None for a missing one."""
    if value is None or value != value:
        return None
    number = float(value)
    return shown(int(number) if number.is_integer() else number)
