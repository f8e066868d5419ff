"""Runs on the driver. The drift between a reference and other data: `drift` and `thresholds`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql import functions as F

from sparkdl import profiles
from sparkdl.errors import ConfigError
from sparkdl.monitoring.counts import Features, counts_by_group, features_of
from sparkdl.monitoring.drift_table import Drift
from sparkdl.monitoring.metrics import METRICS, Counts, check_metrics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEFAULT_METRICS = ("psi", "js")
MIN_ROWS = 500

# By metric: one number for all features, or a number for each feature.
Thresholds = Mapping[str, float | Mapping[str, float]]


def drift(
    reference: Any,
    df: "DataFrame",
    *,
    metrics: Sequence[str] = DEFAULT_METRICS,
    columns: Sequence[str] | None = None,
    by: str | None = None,
    thresholds: Thresholds | None = None,
    min_rows: int = MIN_ROWS,
) -> Drift:
    """Compare a DataFrame with the data that a model was trained with. Spark reads it once.

    Args:
        reference: a version of a model that was exported with `profile=`, its name such as
            `loans/3` or `loans@stable`, a profile (see `monitoring.profile`), or the DataFrame of
            the training.
        df: the data to compare, with the columns of the reference.
        metrics: the distances to compute. For all features: `psi`, the population stability index
            over ten bins of equal numbers of rows; `js`, the Jensen-Shannon distance, `hellinger`
            and `l_infinity` over bins by Doane's rule. For numbers: `ks`, the Kolmogorov-Smirnov
            statistic, and `wasserstein`, in standard deviations of the reference. For categories:
            `chi_squared`, a p-value, which needs `pip install 'sparkdl-platform[monitoring]'`.
        columns: the features to compare, or columns of arrays, for all of their elements; by
            default all of the reference.
        by: a column of `df`; the rows of each of its values, such as a day, are compared apart.
        thresholds: values of metrics beyond which a feature has drifted, for all features or for
            each, such as `{"psi": 0.2, "js": {"age": 0.15}}`. See `monitoring.thresholds`. By
            default 0.2 for `psi` and 0.1 for the others, or the value that a group of this size
            reaches by chance, if this is larger: fewer than 5 % of groups without drift have an
            alarm, however many features are compared. For `chi_squared`, a p-value of 0.01 divided
            by the number of comparisons in a group.
        min_rows: with fewer rows, no feature of a group has drifted: its status is `too few rows`.

    Returns:
        A `Drift`: a table of features and metrics, which shows itself in a terminal and in a
        notebook.

    Raises:
        ConfigError: if an argument is invalid or a column is missing; no Spark job has started.

    Example:
        >>> from sparkdl import monitoring
        >>> from pyspark.sql import SparkSession
        >>> spark = SparkSession.builder.getOrCreate()
        >>> train = spark.range(1000).selectExpr("id % 7 as size")
        >>> later = spark.range(1000).selectExpr("id % 7 + 3 as size")
        >>> found = monitoring.drift(train, later, metrics=["ks"])
        >>> found.drifted
        ['size']
    """
    names = check_metrics(metrics)
    limits = check_thresholds(thresholds or {})
    if by is not None:
        profiles.known_columns(df, [by])
    features = features_of(reference, df, columns)
    group = profiles.known_columns(df, [by])[0] if by else F.lit(None).cast("string")
    counts = counts_by_group(df, features, group, names)
    rows = [
        row
        for value, by_feature in counts.items()
        for row in drift_rows(by_feature, features, names, limits, min_rows, {by or "": value})
    ]
    return replace(Drift.of(rows, by), remarks=tuple(profiles.remarks(features)))


def drift_rows(
    counts: Mapping[str, Counts],
    features: Features,
    metrics: Sequence[str],
    limits: Thresholds,
    min_rows: int,
    first: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Return the rows of the table for a group: one for each feature and metric."""
    compared = [
        (name, metric)
        for name, feature in features.items()
        for metric in metrics
        if METRICS[metric].applies_to(feature["kind"])
    ]
    rows = []
    for name, metric_name in compared:
        feature, metric = features[name], METRICS[metric_name]
        num_rows = int(counts[name]["n"][0])
        value = metric.value(feature, counts[name])
        limit = threshold(limits, metric_name, name, profiles.column_of(name, feature))
        if limit is None:
            limit = metric.limit(feature, counts[name], len(compared))
        status = "drift" if metric.has_drifted(value, limit) else "ok"
        row = {
            **first,
            "feature": name,
            "metric": metric_name,
            "value": value,
            "threshold": limit,
            "status": status if num_rows >= min_rows else "too few rows",
            "rows": num_rows,
            "nulls": int(counts[name]["nulls"][0]),
        }
        rows.append(row)
    return rows


def threshold(limits: Thresholds, metric: str, feature: str, column: str) -> float | None:
    """Return the threshold that the user has set; that of a column holds for its elements."""
    limit = limits.get(metric)
    if isinstance(limit, Mapping):
        limit = limit.get(feature, limit.get(column))
    return None if limit is None else float(limit)


def check_thresholds(limits: Thresholds) -> Thresholds:
    """Return thresholds.

    Raises:
        ConfigError: if a metric is unknown, or a threshold is no number from 0 on.
    """
    check_metrics([*limits, "psi"])
    for metric, limit in limits.items():
        for number in limit.values() if isinstance(limit, Mapping) else [limit]:
            if not isinstance(number, int | float) or not number >= 0:
                raise ConfigError(
                    f"the threshold of {metric!r} is {number!r}; expected a number from 0 on."
                )
    return limits


def thresholds(
    reference: Any,
    df: "DataFrame",
    *,
    by: str,
    metrics: Sequence[str] = DEFAULT_METRICS,
    columns: Sequence[str] | None = None,
    num_stds: float = 3.0,
) -> dict[str, dict[str, float]]:
    """Return thresholds from the chunks of data that has not drifted, such as the training data.

    The threshold of a feature is the mean of the metric over the chunks, plus some standard
    deviations (of the population, as NannyML computes it). Small chunks differ from the reference
    by chance alone, and such thresholds give fewer false alarms than fixed ones.

    Args:
        reference: see `drift`.
        df: the data.
        by: the column of `df` whose values tell the chunks apart. The chunks should have about as
            many rows as the data to be compared with the thresholds.
        metrics, columns: see `drift`.
        num_stds: the number of standard deviations.

    Returns:
        For each metric a number for each feature: the argument `thresholds` of `drift` and `watch`.

    Raises:
        ConfigError: if an argument is invalid, or a metric is a p-value.

    Example:
        >>> from sparkdl import monitoring
        >>> from pyspark.sql import SparkSession
        >>> spark = SparkSession.builder.getOrCreate()
        >>> train = spark.range(1000).selectExpr("id % 7 as size", "id % 4 as week")
        >>> limits = monitoring.thresholds(train, train, by="week", columns=["size"])
        >>> sorted(limits)
        ['js', 'psi']
    """
    for name in check_metrics(metrics):
        if METRICS[name].is_p_value:
            raise ConfigError(f"{name!r} is a p-value: compare it with a fixed threshold.")
    table = drift(reference, df, metrics=metrics, columns=columns, by=by, min_rows=0).table
    result: dict[str, dict[str, float]] = {}
    for names, values in table.groupby(["metric", "feature"])["value"]:
        metric, feature = (str(name) for name in names)
        result.setdefault(metric, {})[feature] = float(values.mean() + num_stds * np.std(values))
    return result
