"""Runs on the driver. The performance of a model on requests whose true values come later."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import Column
from pyspark.sql import functions as F

from sparkdl.errors import ConfigError, suggest
from sparkdl.models.watch_files import ResultFiles
from sparkdl.monitoring.results import files_of
from sparkdl.spark.capabilities import to_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The share of a probability that the logarithm of a loss takes for 0 and 1, as in Keras.
EPSILON = 1e-7
DAY_S = 86_400.0


def _log_loss(prediction: Column, label: Column) -> Column:
    p = F.greatest(F.lit(EPSILON), F.least(F.lit(1 - EPSILON), prediction.cast("double")))
    y = label.cast("double")
    loss = -(y * F.log(p) + (1 - y) * F.log(1 - p))
    return F.avg(F.when(prediction.isNotNull(), loss))  # `least` skips nulls.


def _difference(prediction: Column, label: Column) -> Column:
    return prediction.cast("double") - label.cast("double")


_METRICS: dict[str, Callable[[Column, Column], Column]] = {
    "accuracy": lambda p, y: F.avg((p == y).cast("double")),
    "log_loss": _log_loss,
    "mae": lambda p, y: F.avg(F.abs(_difference(p, y))),
    "rmse": lambda p, y: F.sqrt(F.avg(_difference(p, y) ** 2)),
}


def performance(
    requests: "DataFrame",
    labels: "DataFrame",
    *,
    prediction: str | Column,
    label: str | Column,
    metric: str = "accuracy",
    window_s: float | None = None,
    watched: Any = None,
    root: str | None = None,
) -> pd.DataFrame:
    """Return the performance of a model by window, from labels that came after the requests.

    Requests and labels are joined by the column `id` and, if the labels have it, `row`. A client
    chooses the id with the header `X-Request-Id`, or gets it with the answer.

    Args:
        requests: the requests, as `read_log` returns them.
        labels: the true values, with the id of their request.
        prediction: the column of the predictions in `requests`, or an expression such as
            `F.col("score") > 0.5`.
        label: the column of the true values in `labels`, or an expression. For `accuracy` it has
            the type of the predictions.
        metric: `accuracy`, `log_loss` (of the probability of a label that is 1), `mae` or `rmse`.
        window_s: seconds of a window; by default those of the watch, or a day.
        watched: a model that `watch` watches: its version, name, or the folder of the results. The
            performance is kept with the windows of the watch, in place of what was known of the
            same windows, for `results` and `should_retrain`.
        root: the folder that holds the runs and the models.

    Returns:
        A table with a row for each window and version: `window`, `version`, `requests`, `labelled`
        (the number of rows whose label is known), and the metric, which is NaN without labels.

    Raises:
        ConfigError: if a column is missing, the metric is unknown, or the windows are not those of
            the watch; no Spark job has started.

    Example:
        >>> from sparkdl import monitoring
        >>> from pyspark.sql import SparkSession
        >>> spark = SparkSession.builder.getOrCreate()
        >>> requests = spark.sql("SELECT 'a' AS id, 0 AS row, timestamp '2026-11-23' AS time, "
        ...                      "3 AS version, 0.8 AS score")
        >>> labels = spark.sql("SELECT 'a' AS id, true AS is_paid")
        >>> found = monitoring.performance(
        ...     requests, labels, prediction=requests.score > 0.5, label="is_paid"
        ... )
        >>> found[["version", "requests", "labelled", "accuracy"]].values.tolist()
        [[3.0, 1.0, 1.0, 1.0]]
    """
    if metric not in _METRICS:
        raise ConfigError(f"unknown metric {metric!r}.{suggest(metric, _METRICS)}")
    files = None if watched is None else files_of(watched, root)
    window_s = _window_s(window_s, files)
    _check_columns(requests, ["id", "time", "version"], prediction, "requests")
    _check_columns(labels, ["id"], label, "labels")
    keys = ["id", "row"] if "row" in labels.columns and "row" in requests.columns else ["id"]
    predictions = requests.select(
        *keys, "time", "version", _column(prediction).alias("_prediction")
    )
    # A label that was sent twice counts once.
    truth = labels.select(*keys, _column(label).alias("_label")).dropDuplicates(keys)
    joined = predictions.join(truth, on=keys, how="left")
    window = F.window("time", f"{int(window_s * 1000)} milliseconds").alias("window")
    is_known = F.col("_label").isNotNull() & F.col("_prediction").isNotNull()
    measures = joined.groupBy(window, "version").agg(
        F.count("*").alias("requests"),
        F.count(F.when(is_known, 1)).alias("labelled"),
        _METRICS[metric](F.col("_prediction"), F.col("_label")).alias(metric),
    )
    columns = ["version", "requests", "labelled", metric]
    rows = to_arrow(measures.select(F.col("window.start").alias("window"), *columns))
    if files is not None:
        names = {metric: "value"}
        renamed = [{names.get(k, k): v for k, v in row.items()} for row in rows.to_pylist()]
        files.write_performance([{**row, "metric": metric} for row in renamed])
    table: pd.DataFrame = rows.to_pandas()
    table["window"] = table["window"].dt.tz_localize(None)
    return table.sort_values(["window", "version"], ignore_index=True)


def _window_s(window_s: float | None, files: ResultFiles | None) -> float:
    """Return the seconds of a window: those of the watch, if there is one."""
    options = files.read_options() if files is not None else None
    watched_s = DAY_S if options is None else float(options["window_s"])
    seconds = watched_s if window_s is None else window_s
    if not seconds > 0:
        raise ConfigError(f"window_s is {window_s!r}; expected seconds, more than 0.")
    if options is not None and seconds != watched_s:
        raise ConfigError(
            f"window_s is {window_s!r}, and the windows of the watch have {watched_s:g} seconds: "
            "leave out window_s, or watched."
        )
    return seconds


def _column(value: str | Column) -> Column:
    return F.col("`" + value.replace("`", "``") + "`") if isinstance(value, str) else value


def _check_columns(df: "DataFrame", names: list[str], column: str | Column, noun: str) -> None:
    for name in [*names, *([column] if isinstance(column, str) else [])]:
        if name not in df.columns:
            raise ConfigError(f"the {noun} have no column {name!r}; they have {df.columns}.")
