"""Runs on the driver. Models, their versions and their origin on the page."""

from typing import Any

from sparkdl.models.registry import alias_history, get
from sparkdl.models.version import ModelVersion
from sparkdl.ui.model_drift import drift_rows, left_out_rows, performance_rows
from sparkdl.ui.plain import shown

__all__ = ["details", "row"]


def row(version: ModelVersion) -> dict[str, Any]:
    """Return the row of a version in a table."""
    exported = version.details.get("exported", {})
    return {
        "model": version.name,
        "version": version.version,
        "aliases": list(version.aliases),
        "metrics": {name: shown(value) for name, value in version.metrics.items()},
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
        "params": {name: shown(value) for name, value in params.items()},
        "lineage": {name: shown(value) for name, value in lineage.items() if value},
        "files": {name: file.get("bytes") for name, file in files.items()},
        "moves": [vars(move) for move in moves],
        "features": _features(version.profile),
        "drift": drift_rows(version),
        "left_out": left_out_rows(version),
        "performance": performance_rows(version),
    }


def _features(profile: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the columns of the training data, without their histograms."""
    features = (profile or {}).get("features", {})
    names = ("kind", "n", "nulls", "mean", "std", "min", "max", "num_distinct")
    return [
        {"name": column, **{name: shown(known.get(name)) for name in names}}
        for column, known in features.items()
    ]
