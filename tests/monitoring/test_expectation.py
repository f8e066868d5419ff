"""The option `expect`: the data of a run is compared with a reference before the first trial."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from sparkdl import experiment, monitoring
from sparkdl.errors import ConfigError, DriftError, RunExistsError
from tests.helpers.runs import quiet

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def frames(spark: SparkSession) -> dict[str, DataFrame]:
    """Rows as in the reference, and rows of which only `b` is another."""
    rows = spark.range(2000).selectExpr("id % 10 as a", "id % 7 as b").cache()
    return {"same": rows, "other": rows.selectExpr("a", "b + 3 as b")}


def train() -> float:
    return 0.5


def test_a_run_begins_only_with_the_data_that_is_expected(
    frames: dict[str, DataFrame], root: str
) -> None:
    profile = monitoring.profile(frames["same"], ["a", "b"])
    expected = monitoring.Expectation(reference=profile)
    options = quiet(root, run_id="mine", expect=expected)
    with pytest.raises(DriftError, match="no trial was started") as caught:
        experiment.launch(train, data=frames["other"], **options)
    assert caught.value.drift.drifted == ["b"]
    assert repr(caught.value.drift) in str(caught.value)
    assert not Path(root, "mine").exists()
    run = experiment.launch(train, data=frames["same"], **options)
    assert run.state == "COMPLETE"
    with pytest.raises(RunExistsError):  # Before the comparison.
        experiment.launch(train, data=frames["other"], **options)
    # A run that exists is not compared again.
    again = experiment.launch(train, data=frames["other"], **options, if_exists="resume")
    assert (again.state, len(again.trials)) == ("COMPLETE", 1)


def test_a_warning_lets_the_run_begin(
    frames: dict[str, DataFrame], root: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = monitoring.Expectation(reference=frames["same"], dataset="validation", warn=True)
    data = {"train": frames["same"], "validation": frames["other"]}
    run = experiment.launch(train, data=data, expect=expected, **quiet(root))
    assert run.state == "COMPLETE"
    assert "1 of 2 features has drifted: b" in caplog.text


@pytest.mark.parametrize(
    ("expect", "data", "message"),
    [
        ({"a": 1}, "same", "expect is a dict; expected a monitoring.Expectation"),
        (monitoring.Expectation(reference={}), None, "which was not given. Pass data="),
        (
            monitoring.Expectation(reference={}, dataset="c"),
            "both",
            "dataset 'c', and data= has",
        ),
    ],
)
def test_wrong_expectations_are_refused(
    frames: dict[str, DataFrame], root: str, expect: Any, data: str | None, message: str
) -> None:
    both = {"train": frames["same"], "validation": frames["other"]}
    given = {None: None, "same": frames["same"], "both": both}[data]
    with pytest.raises(ConfigError, match=message):
        experiment.launch(train, data=given, expect=expect, **quiet(root))
