"""Runs on the driver. Models on the page: their versions, their origin, and their drift."""

from typing import Any

from sparkdl.models.registry import alias_history, get
from sparkdl.models.version import ModelVersion
from sparkdl.models.watch_files import ResultFiles, folder_of
from sparkdl.ui.plain import plain_value

# Windows of a row, and files that are read for them.
NUM_WINDOWS = 48


def row(version: ModelVersion) -> dict[str, Any]:
    """Return the row of a version in a table."""
    exported = version.details.get("exported", {})
    return {
        "model": version.name,
        "version": version.version,
        "aliases": list(version.aliases),
        "metrics": {name: plain_value(value) for name, value in version.metrics.items()},
        "run": version.run,
        "trial": version.trial,
        "user": exported.get("user"),
        "time": exported.get("time"),
    }


def details(name: str, number: int, root: str) -> dict[str, Any]:
    """Return everything about a version.

    Raises:
        ModelNotFoundError: if there is no such version.
        ConfigError: if `name` is no name of a model.
    """
    version = get(name, number, root=root)
    lineage = version.lineage
    params = lineage.pop("params", None) or {}
    files = version.details.get("files", {})
    moves = [move for alias in version.aliases for move in alias_history(name, alias, root=root)]
    return {
        **row(version),
        "path": version.path,
        "signature": version.signature,
        "params": {name: plain_value(value) for name, value in params.items()},
        "lineage": {name: plain_value(value) for name, value in lineage.items() if value},
        "files": {name: file.get("bytes") for name, file in files.items()},
        "moves": [vars(move) for move in moves],
        "features": _features(version.profile),
        "drift": _drift_rows(version),
        "left_out": _left_out_rows(version),
        "performance": _performance_rows(version),
    }


def _features(profile: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the columns of the training data, without their histograms."""
    features = (profile or {}).get("features", {})
    names = ("kind", "n", "nulls", "mean", "std", "min", "max", "num_distinct")
    return [
        {"name": column, **{name: plain_value(values.get(name)) for name in names}}
        for column, values in features.items()
    ]


# ---- the drift and performance of a model's requests, and unread lines


def _drift_rows(version: ModelVersion) -> list[dict[str, Any]]:
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
    order = {"drift": 0, "ok": 1}
    return sorted(rows, key=lambda row: (order.get(row["status"], 2), row["feature"]))


def _left_out_rows(version: ModelVersion) -> list[dict[str, Any]]:
    """Return a row for each reason for which lines of the log were left out."""
    left_out = ResultFiles(folder_of(version)).read_left_out()
    return [{"reason": reason, **lines} for reason, lines in left_out.items()]


def _performance_rows(version: ModelVersion) -> list[dict[str, Any]]:
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
    return plain_value(int(number) if number.is_integer() else number)
