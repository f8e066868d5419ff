"""Failures in an estimator's `fit`, on a real cluster."""

from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from sparkdl import experiment
from sparkdl.tfos import pipeline
from tests.helpers.processes import eventually

pytestmark = pytest.mark.slow


def waits(args: Any, ctx: Any) -> None:
    ctx.get_data_feed().next_batch(10_000)


def fails(args: Any, ctx: Any) -> None:
    raise OSError("the disk is full")


@pytest.fixture
def quiet_runs(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKDL_ROOT", root)


@pytest.mark.usefixtures("quiet_runs")
def test_a_node_that_fails_says_why(three_executors: SparkSession) -> None:
    estimator = pipeline.TFEstimator(fails, {}).setInputMapping({"id": "x"})
    with pytest.raises(Exception, match="the disk is full"):
        estimator.fit(three_executors.range(1000))


@pytest.mark.usefixtures("quiet_runs")
def test_rows_that_cannot_be_computed_end_the_nodes_that_wait(
    three_executors: SparkSession, root: str
) -> None:
    broken = three_executors.range(10).select(udf(lambda x: 1 // 0, "long")("id").alias("x"))
    estimator = pipeline.TFEstimator(waits, {}).setInputMapping({"x": "x"})
    with pytest.raises(Exception, match="ZeroDivisionError"):
        estimator.fit(broken)
    assert eventually(lambda: experiment.history(root)["state"][0] == "CANCELLED")
