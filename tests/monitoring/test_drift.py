"""Drift between DataFrames, on real Spark."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession

from sparkdl import monitoring
from sparkdl.errors import ConfigError

DATA = Path(__file__).parents[3] / "shared" / "data"
FEATURES = [
    "car_value",
    "salary_range",
    "debt_to_income_ratio",
    "loan_length",
    "repaid_loan_on_prev_car",
    "size_of_downpayment",
    "driver_tenure",
    "y_pred_proba",
]


def car_loans(name: str) -> pd.DataFrame:
    """The data set of NannyML's tutorial, with the number of the chunk of 5000 rows."""
    path = DATA / f"synthetic_car_loan_{name}.csv.gz"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    table = pd.read_csv(path, dtype={"repaid_loan_on_prev_car": bool})
    return table[FEATURES].assign(chunk=np.arange(len(table)) // 5000)


@pytest.mark.slow
def test_drift_of_the_car_loans_is_the_published_one(spark: SparkSession) -> None:
    """The values and alarms of NannyML 0.13.1's tutorial on univariate drift."""
    reference = spark.createDataFrame(car_loans("reference"))
    profile = monitoring.profile(reference, FEATURES, num_bins=10_000, max_ranges=1 << 16)
    metrics = ["js", "ks"]
    limits = monitoring.thresholds(profile, reference, by="chunk", metrics=metrics)
    analysis = spark.createDataFrame(car_loans("analysis"))
    found = monitoring.drift(profile, analysis, by="chunk", metrics=metrics, thresholds=limits)
    table = found.table.set_index(["metric", "feature", "chunk"]).sort_index()

    ratio = "debt_to_income_ratio"
    assert table.loc[("js", ratio), "value"].round(6).tolist() == [
        *(0.031661, 0.030011, 0.031129, 0.029464, 0.030809),
        *(0.028681, 0.043628, 0.029253, 0.030628, 0.028330),
    ]
    assert table.loc[("ks", ratio), "value"].round(5).tolist() == [
        *(0.01576, 0.01268, 0.01734, 0.01280, 0.01918, 0.00824, 0.01058, 0.01002, 0.01068, 0.00680)
    ]
    assert limits["js"][ratio] == pytest.approx(0.039328, abs=5e-7)
    assert limits["ks"][ratio] == pytest.approx(0.018584, abs=5e-7)

    drifted = found.table[(found.table["status"] == "drift") & (found.table["metric"] == "js")]
    alarms = {
        (name, int(chunk)) for name, chunk in zip(drifted.feature, drifted.chunk, strict=True)
    }
    # By chance, one chunk before the drift is just above its threshold: 0.036355 and 0.035262.
    early = {(ratio, 6), ("car_value", 3)}
    late = {"car_value", "loan_length", "repaid_loan_on_prev_car", "salary_range", "y_pred_proba"}
    assert alarms == early | {(name, chunk) for name in late for chunk in range(5, 10)}
    assert round(table.loc[("js", "car_value", 5), "value"], 4) == 0.4648


@pytest.fixture(scope="module")
def train(spark: SparkSession) -> dict[str, Any]:
    words = "CASE WHEN id % 3 = 0 THEN 'a' ELSE 'b' END AS word"
    return monitoring.profile(spark.range(3000).selectExpr("id / 3000 AS `a.b`", words))


@pytest.mark.slow
def test_lost_values_new_categories_and_few_rows(
    spark: SparkSession, train: dict[str, Any]
) -> None:
    later = spark.range(1200).selectExpr(
        "CASE WHEN id < 1000 THEN NULL ELSE id / 1200 END AS `a.b`",
        "CASE WHEN id < 1000 THEN 'new' ELSE 'a' END AS word",
        "id >= 1000 AS is_late",
    )
    found = monitoring.drift(train, later, by="is_late", metrics=["psi", "l_infinity"])
    table = found.table.set_index(["is_late", "feature", "metric"])
    early = table.loc[False]
    assert set(early["status"]) == {"drift"}
    assert early.loc[("a.b", "psi"), "nulls"] == 1000
    assert early.loc[("word", "l_infinity"), "value"] == 1.0
    assert set(table.loc[True, "status"]) == {"too few rows"}
    assert found.drifted == ["a.b", "word"]
    assert repr(found).startswith("2 of 2 features have drifted: a.b, word\n")
    assert "<b>2 of 2 features have drifted" in found._repr_html_()
    assert len(found.figure().data) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metrics": ["pis"]}, "unknown metric 'pis'. Did you mean 'psi'"),
        ({"metrics": []}, "metrics is empty"),
        ({"thresholds": {"psi": -1}}, "the threshold of 'psi' is -1; expected a number from 0 on"),
        ({"columns": ["size"]}, "the reference has no feature 'size'"),
        ({"by": "day"}, "the DataFrame has no column 'day'"),
        ({}, "the DataFrame has no column 'a.b'"),
        (
            {"columns": ["word"]},
            "of the kind 'number'; in the reference it is 'category'",
        ),
    ],
)
def test_wrong_arguments_are_refused_without_a_job(
    spark: SparkSession, train: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        monitoring.drift(train, spark.range(10).selectExpr("id AS word"), **arguments)
