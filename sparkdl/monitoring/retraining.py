"""Runs on the driver. Decide from what was watched whether a model should be trained again."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas as pd

from sparkdl.errors import ConfigError
from sparkdl.models import ModelVersion
from sparkdl.models.registry import find
from sparkdl.models.watch_files import ResultFiles
from sparkdl.monitoring.drift_table import MAX_NAMES, OTHER_VERSION, as_text
from sparkdl.monitoring.results import files_of
from sparkdl.training.metric_names import direction_of_name

DAY_S = 86_400


@dataclass(frozen=True)
class Decision:
    """The answer of `should_retrain`, which is true if there is a reason.

    Attributes:
        reasons: a sentence for each reason to train again.

    Example:
        >>> bool(Decision(())), bool(Decision(("accuracy was 0.8 ...",)))
        (False, True)
    """

    reasons: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.reasons)

    def __str__(self) -> str:
        return "; ".join(self.reasons) or "there is no reason to train again"


def should_retrain(
    model: Any,
    *,
    min_drifted: int = 3,
    last: int = 24,
    columns: Sequence[str] | None = None,
    metrics: Sequence[str] | None = None,
    performance: pd.DataFrame | None = None,
    limits: Mapping[str, float] | None = None,
    min_labelled: int = 100,
    max_age_s: float | None = None,
    root: str | None = None,
) -> Decision:
    """Return the reasons to train a model again: drift, performance, age.

    Args:
        model: a version of a model that is watched, its name, or the folder of the results.
        min_drifted: drift is a reason if a feature has drifted in this number of windows ...
        last: ... of the last ones with requests to the version.
        columns: the features that count, or columns of arrays, for all of their elements; by
            default all.
        metrics: the metrics that count; by default all that were watched.
        performance: a table of `monitoring.performance`, whose last window with labels counts; by
            default the performance that was kept with the windows, see its argument `watched`.
        limits: by metric of that table the worst value that is good enough, such as
            `{"accuracy": 0.9}`; the name tells whether larger is better.
        min_labelled: windows with fewer labels do not count.
        max_age_s: seconds since the export after which a version is too old; None for no limit.
        root: the folder that holds the runs and the models.

    Raises:
        ConfigError: if nothing was watched, or an argument is invalid.

    Example:
        >>> from sparkdl import monitoring
        >>> monitoring.should_retrain("/nowhere/drift")
        Traceback (most recent call last):
        sparkdl.errors.ConfigError: there are no results of a watch in /nowhere/drift. ...
    """
    if not 1 <= min_drifted <= last:
        raise ConfigError(f"got {min_drifted=} and {last=}; expected 1 <= min_drifted <= last.")
    if performance is not None and limits is None:
        raise ConfigError("performance= needs limits=, such as {'accuracy': 0.9}.")
    files = files_of(model, root)
    reasons = _drift_reasons(files.read_windows(), columns, metrics, min_drifted, last)
    if limits is not None:
        table = _watched_performance(files, limits) if performance is None else performance
        reasons += _performance_reasons(table, limits, min_labelled)
    if max_age_s is not None:
        reasons += _age_reasons(model, root, max_age_s)
    return Decision(tuple(reasons))


def _drift_reasons(
    table: pd.DataFrame,
    columns: Sequence[str] | None,
    metrics: Sequence[str] | None,
    min_drifted: int,
    last: int,
) -> list[str]:
    table = table[table["status"] != OTHER_VERSION]
    for name, names in (("feature", columns), ("metric", metrics)):
        if names is not None and len(table):
            table = table[table[name].isin(_watched(list(table[name].unique()), names, name))]
    windows = sorted(table["window"].unique())[-last:]
    drifted = table[table["window"].isin(windows) & (table["status"] == "drift")]
    counts = drifted.groupby("feature", sort=False)["window"].nunique()
    counts = counts[counts >= min_drifted]
    if len(counts) > MAX_NAMES:
        return [
            f"{len(counts)} features have drifted in {min_drifted} or more of the last "
            f"{len(windows)} windows: {as_text(list(counts.index))}"
        ]
    return [
        f"{feature} has drifted in {count} of the last {len(windows)} windows"
        for feature, count in counts.items()
    ]


def _watched(values: Sequence[str], names: Sequence[str], kind: str) -> list[str]:
    """Return the values with some names; the name of a column of arrays has its elements.

    Raises:
        ConfigError: if there is none with one of the names.
    """
    found = []
    for name in names:
        some = [value for value in values if value == name or value.startswith(f"{name}[")]
        if not some:
            raise ConfigError(f"no {kind} {name!r} was watched, but {', '.join(values)}.")
        found += some
    return found


def _watched_performance(files: ResultFiles, limits: Mapping[str, float]) -> pd.DataFrame:
    """Return the performance that was kept with the windows, with a column for each metric."""
    table = files.read_performance()
    number = str((files.read_options() or {}).get("model")).rpartition("/")[2]
    if number.isdecimal():
        table = table[table["version"].isna() | (table["version"] == int(number))]
    for metric in limits:
        if metric not in set(table["metric"]):
            raise ConfigError(
                f"there is no performance {metric!r} in {files.folder}. Pass performance=, or call "
                "monitoring.performance(..., watched=...) before."
            )
    parts = [part.rename(columns={"value": str(name)}) for name, part in table.groupby("metric")]
    return pd.concat(parts, ignore_index=True)


def _performance_reasons(
    table: pd.DataFrame, limits: Mapping[str, float], min_labelled: int
) -> list[str]:
    reasons = []
    for metric, limit in limits.items():
        if metric not in table.columns:
            raise ConfigError(f"the performance has no {metric!r}; it has {list(table.columns)}.")
        direction = direction_of_name(metric)
        if direction is None:
            raise ConfigError(f"the name {metric!r} does not tell whether larger is better.")
        labelled = table[(table["labelled"] >= min_labelled) & table[metric].notna()]
        last = labelled[labelled["window"] == labelled["window"].max()]
        for row in last.to_dict(orient="records"):
            value = float(row[metric])
            if value < limit if direction == "max" else value > limit:
                side = "below" if direction == "max" else "above"
                reasons.append(
                    f"{metric} was {value:.4g} in the window of {row['window']:%Y-%m-%d %H:%M}, "
                    f"{side} {limit:.4g} ({row['labelled']} labels)"
                )
    return reasons


def _age_reasons(model: Any, root: str | None, max_age_s: float) -> list[str]:
    version = _version_of(model, root)
    text = version.details.get("exported", {}).get("time")
    if text is None:
        raise ConfigError(f"{version!r} does not say when it was exported: leave out max_age_s.")
    age_s = time.time() - datetime.fromisoformat(text).timestamp()
    if age_s <= max_age_s:
        return []
    days = f"{age_s / DAY_S:.1f} days old, more than {max_age_s / DAY_S:.1f}"
    return [f"{version.name}/{version.version} is {days}"]


def _version_of(model: Any, root: str | None) -> ModelVersion:
    if isinstance(model, ModelVersion):
        return model
    name = str((files_of(model, root).read_options() or {}).get("model"))
    if "/" not in name:
        raise ConfigError("a profile has no age: pass max_age_s for a version of a model only.")
    return find(name, root)
