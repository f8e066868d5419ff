"""The performance of a model on requests whose labels come later, on real Spark."""

import math
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl import monitoring
from sparkdl.errors import ConfigError
from sparkdl.files import storage


@pytest.fixture
def requests(spark: SparkSession) -> DataFrame:
    """Four requests of two rows, on two days, with scores 0.0, 0.1 and so on."""
    return spark.range(8).selectExpr(
        "concat('r', id div 2) AS id",
        "id % 2 AS row",
        "timestamp_seconds(1795392000 + 86400 * (id div 4)) AS time",
        "1 AS version",
        "id / 10 AS score",
    )


@pytest.mark.slow
def test_labels_are_joined_by_request_and_row(requests: DataFrame) -> None:
    spark = requests.sparkSession
    truth = [("r0", 0, True), ("r0", 1, False), ("r0", 1, False), ("r2", 0, True), ("x", 0, True)]
    labels = spark.createDataFrame(truth, "id string, row int, paid boolean")
    options: dict[str, Any] = {"label": "paid", "metric": "accuracy"}
    found = monitoring.performance(requests, labels, prediction=F.col("score") < 0.45, **options)
    # Right: the first of the first day, and the only one of the second.
    assert found[["requests", "labelled", "accuracy"]].values.tolist() == [[4, 2, 0.5], [4, 1, 1]]
    assert (found["window"].diff().dropna() == "1D").all()
    numbers = labels.select("id", "row", F.col("paid").cast("double").alias("y"))
    metrics = {
        name: monitoring.performance(
            requests.where("id = 'r0'"), numbers, prediction="score", label="y", metric=name
        )[name][0]
        for name in ("rmse", "log_loss")
    }
    assert metrics["rmse"] == pytest.approx(math.sqrt((1.0 + 0.01) / 2))
    assert metrics["log_loss"] == pytest.approx(-(math.log(1e-7) + math.log(0.9)) / 2)
    # A request without an answer is not counted.
    answered = F.when(F.col("row") == 1, F.col("score"))
    found = monitoring.performance(
        requests.where("id = 'r0'"), numbers, prediction=answered, label="y", metric="log_loss"
    )
    assert found[["labelled", "log_loss"]].values.tolist() == [[1, pytest.approx(-math.log(0.9))]]


@pytest.mark.slow
def test_performance_is_kept_in_the_windows_of_a_watch(requests: DataFrame, root: str) -> None:
    storage.write(f"{root}/watch.json", '{"model": "m/1", "window_s": 3600}')
    labels = requests.sparkSession.createDataFrame([("r0", 1.0)], "id string, y double")
    options: dict[str, Any] = {"prediction": "score", "label": "y", "watched": root}
    for _ in range(2):
        monitoring.performance(requests, labels, metric="mae", **options)
    found = monitoring.results(root).performance
    assert found[["version", "metric", "requests", "labelled"]].values.tolist() == [
        [1, "mae", 4, 2],
        [1, "mae", 4, 0],
    ]
    assert found["value"][0] == pytest.approx(0.95) and math.isnan(found["value"][1])
    assert found["window"][0] == pd.Timestamp(1795392000, unit="s", tz="UTC")
    with pytest.raises(ConfigError, match="the windows of the watch have 3600 seconds"):
        monitoring.performance(requests, labels, window_s=60, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metric": "acuracy"}, "unknown metric 'acuracy'. Did you mean 'accuracy'"),
        ({"window_s": 0}, "window_s is 0"),
        ({"watched": "/nowhere/results"}, "there are no results of a watch in /nowhere/results"),
        ({"prediction": "y"}, "the requests have no column 'y'; they have"),
        ({"label": "y"}, "the labels have no column 'y'"),
    ],
)
def test_wrong_arguments_are_refused(
    requests: DataFrame, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        good = {"prediction": "score", "label": "score"}
        monitoring.performance(requests, requests, **{**good, **arguments})
