"""Drift of the elements of arrays and ML vectors, compared with columns and with SciPy."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from scipy.spatial.distance import jensenshannon
from scipy.stats import chisquare, ks_2samp, wasserstein_distance

from sparkdl import monitoring
from sparkdl.errors import ConfigError
from sparkdl.monitoring import distances
from sparkdl.monitoring.counts import chosen_features, counter_of
from sparkdl.monitoring.drift_table import Drift
from sparkdl.monitoring.logs.counting import LogCounter, LogRows
from sparkdl.monitoring.metrics import METRICS
from sparkdl.monitoring.reference import reference_of
from sparkdl.profiles import FeatureBins
from tests.helpers.logs import HOUR_MS, PROFILE, START_MS, add_requests, numbers

RANDOM = np.random.default_rng(4)
# The training data of an element, and other data.
CASES: dict[str, tuple[Any, Any]] = {
    "normal": (RANDOM.normal(size=2000), RANDOM.normal(0.3, 1.2, 700)),
    "ties": (RANDOM.poisson(3, 2000).astype(float), RANDOM.poisson(4, 700).astype(float)),
    "nan": (RANDOM.normal(size=2000), np.where(RANDOM.random(700) < 0.2, np.nan, 0.5)),
    "constant": (np.full(500, 2.0), np.append(np.full(300, 2.0), np.full(100, 2.25))),
    "same": (np.full(500, 2.0), np.full(300, 2.0)),
    "tiny": (RANDOM.normal(size=5), RANDOM.normal(size=3)),
    "one": (np.array([1.0]), np.array([1.0])),
    "far": (RANDOM.uniform(size=2000), RANDOM.uniform(3, 4, 700)),
    "zeros": (RANDOM.binomial(1, 0.02, 2000) * 1.0, RANDOM.binomial(1, 0.1, 700) * 1.0),
}


def value_of(name: str, metric: str) -> float:
    """The metric of the second of three elements, of which the others are unlike it."""
    train, later = CASES[name]
    feature = {**numbers(train), "column": "x", "element": 1, "size": 3}
    rows = [[9.0, None if np.isnan(value) else float(value), 7.0] for value in later]
    counts = FeatureBins.from_fields(feature).count(pa.array(rows, pa.list_(pa.float64())))
    return METRICS[metric].value(feature, counts)


def shares(values: Any, edges: Any, right: bool) -> Any:
    """The shares of bins, of values beyond the last edges, and of NaN."""
    known = values[~np.isnan(values)]
    bins = np.digitize(known, edges, right=right)
    counts = np.bincount(bins, minlength=len(edges) + 1)
    return np.append(counts, len(values) - len(known)) / len(values)


@pytest.mark.parametrize("name", CASES)
def test_psi_and_js_of_an_element_are_those_of_their_definitions(name: str) -> None:
    train, later = CASES[name]
    quantiles = np.unique(np.quantile(train, np.arange(1, 10) / 10, method="inverted_cdf"))
    p, q = (shares(values, quantiles, True) + 1e-6 for values in (train, later))
    assert value_of(name, "psi") == pytest.approx(float(((q - p) * np.log(q / p)).sum()), abs=1e-9)

    num = len(np.histogram_bin_edges(train, "doane")) - 1 if len(train) > 2 else 1
    low, high = train.min(), train.max()
    pad = 0.5 if low == high else 0.0
    edges = np.linspace(low - pad, high + pad, num + 1)
    # The last bin has both of its edges, and values beyond are one bin.
    parts = []
    for values in (train, later):
        part = shares(
            np.where(values == edges[-1], np.nextafter(edges[-1], 0), values), edges, False
        )
        parts.append(np.append(part[1:-2], [part[0] + part[-2], part[-1]]))
    assert value_of(name, "js") == pytest.approx(jensenshannon(*parts, base=2), abs=1e-7)


@pytest.mark.parametrize("name", CASES)
def test_ks_and_wasserstein_of_an_element_are_those_of_scipy(name: str) -> None:
    train, later = CASES[name]
    later = later[~np.isnan(later)]
    # Values in the same one of 1000 bins are not told apart.
    density = np.histogram(train, 1000)[0].max() / len(train) if name in ("normal", "nan") else 0.0
    expected = ks_2samp(train, later).statistic
    assert value_of(name, "ks") == pytest.approx(expected, abs=1e-9 + 2 * density, rel=0.002)
    unit = train.std() or 0.001  # A constant is in the middle of 1000 bins.
    width = (np.ptp(train) or 1.0) / 1000
    distance = wasserstein_distance(train, later)
    assert value_of(name, "wasserstein") == pytest.approx(distance / unit, abs=2 * width / unit)


def test_chi_squared_is_that_of_scipy_for_categories_with_enough_values() -> None:
    reference, counts = [500, 300, 200], [40, 35, 25]
    expected = chisquare(counts, np.array(reference) / 10).pvalue
    assert distances.chi_squared(reference, counts) == pytest.approx(expected)


NUM = 30
COLUMNS = [f"f{i}" for i in range(NUM)]


@pytest.fixture(scope="module")
def train(spark: SparkSession) -> DataFrame:
    """A column for each feature, an array of all, and a vector of all."""
    values = np.random.default_rng(6).normal(np.arange(NUM), 1.0, (600, NUM))
    frame = spark.createDataFrame([tuple(map(float, row)) for row in values], COLUMNS)
    return with_arrays(frame).repartition(2).cache()


def with_arrays(frame: DataFrame) -> DataFrame:
    frame = frame.select(*COLUMNS, F.array(*COLUMNS).alias("x"))
    return VectorAssembler(inputCols=COLUMNS, outputCol="v").transform(frame)


@pytest.fixture(scope="module")
def profile(train: DataFrame) -> dict[str, Any]:
    return monitoring.profile(train)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["reversed", "times", "lost", "none"])
def test_drift_of_an_element_is_that_of_a_column(
    train: DataFrame, profile: dict[str, Any], change: str
) -> None:
    columns = {
        "reversed": [F.col(COLUMNS[NUM - 1 - i]) for i in range(NUM)],
        "times": [F.col(name) * 1.5 for name in COLUMNS],
        "lost": [F.lit(0.0) if i < 3 else F.col(name) for i, name in enumerate(COLUMNS)],
        "none": [F.col(name) for name in COLUMNS],
    }[change]
    named = [column.alias(name) for column, name in zip(columns, COLUMNS, strict=True)]
    metrics = ["psi", "js", "hellinger", "l_infinity", "ks", "wasserstein"]
    found = monitoring.drift(profile, with_arrays(train.select(*named)), metrics=metrics)
    plain, array, vector = (
        found.table.iloc[start : start + NUM * len(metrics)].drop(columns="feature")
        for start in range(0, len(found.table), NUM * len(metrics))
    )
    for other in (array, vector):
        assert other.to_dict("list") == plain.to_dict("list")
    num = {"reversed": 30, "times": 30, "lost": 2, "none": 0}[change]
    drifted = [name for name in found.drifted if name.startswith("x[")]
    if change == "lost":  # The first feature has been around 0 before.
        assert drifted == ["x[0]", "x[1]", "x[2]"]
    else:
        assert len(drifted) == num
    assert [name.replace("v[f", "x[") for name in found.drifted if name[0] == "v"] == drifted
    assert not found.notes


@pytest.mark.slow
def test_features_are_chosen_by_name_by_column_and_from_a_dataframe(
    spark: SparkSession, train: DataFrame, profile: dict[str, Any]
) -> None:
    later = train.select(F.reverse("x").alias("x"))
    options: dict[str, Any] = {"metrics": ["js"]}
    for reference in (profile, train):
        found = monitoring.drift(reference, later, columns=["x[3]", "x[0]"], **options)
        assert found.table["feature"].tolist() == ["x[3]", "x[0]"]
    limits = {"js": {"x": 2.0, "x[7]": 0.5}}
    found = monitoring.drift(profile, later, columns=["x"], thresholds=limits, **options)
    assert (len(found.table), found.drifted) == (NUM, ["x[7]"])
    # An element in a column of its own, and arrays of another length.
    alone = train.select(F.col("f2").alias("x[2]"), F.slice("x", 1, 29).alias("x"))
    found = monitoring.drift(profile, alone, columns=["x[1]", "x[2]"], **options)
    assert found.table[["status", "nulls"]].values.tolist() == [["drift", 600], ["ok", 0]]
    for frame, message in (
        (train.select("f1"), "the DataFrame has no column 'x'"),
        (train.select(F.col("f1").alias("x")), "in the reference it is 'array'"),
    ):
        with pytest.raises(ConfigError, match=message):
            monitoring.drift(profile, frame, columns=["x"])
    with pytest.raises(ConfigError, match=r"the reference has no feature 'x\[30\]'"):
        chosen_features(profile["features"], ["x[30]"])


def features_of_arrays(num: int = 4, **others: Any) -> dict[str, Any]:
    """The profile of arrays whose elements are around their number, and of other features."""
    values = np.random.default_rng(7).normal(np.arange(num), 0.1, (1000, num))
    place = {"column": "x", "size": num}
    arrays = {f"x[{i}]": {**numbers(values[:, i]), **place, "element": i} for i in range(num)}
    return {"format": 3, "features": {**arrays, **others}}


def test_tensors_are_columns_of_arrays_or_elements_of_their_own() -> None:
    profile = features_of_arrays(3, age=PROFILE["features"]["age"])
    elements = [f"x[{i}]" for i in range(3)]

    def found(columns: Any = None, inputs: Any = None) -> tuple[list[str], list[str]]:
        _, features, places, _ = reference_of(profile, columns, inputs, None, None)
        counter = counter_of(features, ["psi"], [place.feature for place in places])
        assert [places[i].feature.partition("[")[0] for i in counter.columns] == [
            name.partition("[")[0] for name in features
        ]
        return list(features), [f"{p.feature} {p.kind} {p.tensor} {p.element}" for p in places]

    ages, arrays = "age number age None", "x array x None"
    assert found() == ([*elements, "age"], [arrays, ages])
    assert found(["age", "x[1]"]) == (["age", "x[1]"], [ages, arrays])
    assert found(["x"]) == (elements, [arrays])
    assert found(["x"], {"input_1": "x"}) == (elements, ["x array input_1 None"])
    assert found(None, {"z": ["x[2]", "x[0]"]}) == (
        ["x[0]", "x[2]", "age"],
        ["x[0] number z 1", "x[2] number z 0", ages],
    )
    with pytest.raises(ConfigError, match=r"the reference has no feature 'x\[9\]'"):
        found(["x[9]"])


def test_requests_are_counted_by_element_also_in_nested_rows() -> None:
    profile = features_of_arrays(4)
    rows = [[[0, 1], [2, 3]], [0.0, 1, 2, None], [0, 1, 2], [9, 9, 9, 9]]
    event = {"id": "a", "time": START_MS, "model": "m", "version": 1, "status": 200}
    line = json.dumps({**event, "inputs": {}, "outputs": {"y": rows}})
    _, features, places, _ = reference_of(profile, None, None, {"y": "x"}, None)
    counter = counter_of(features, ["psi"], [place.feature for place in places])
    batch = pa.RecordBatch.from_pydict({"value": [line.encode()], "file": ["f"], "offset": [0]})
    found: dict[Any, int] = {}
    for part in LogCounter(LogRows(places), counter, HOUR_MS)(iter([batch])):
        for row in part.to_pylist():
            key = row["feature"], row["part"]
            found[key] = found.get(key, 0) + row["num"]
    assert [found[i, "n"] for i in range(4)] == [4] * 4
    assert [found[i, "nulls"] for i in range(4)] == [1, 1, 1, 2]
    assert [found[i, "quantiles"] for i in range(4)] == [3, 3, 3, 2]


@pytest.mark.slow
def test_a_watch_tells_which_elements_of_an_input_have_drifted(
    spark: SparkSession, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = Path(root, "log")
    values = np.random.default_rng(8).normal(np.arange(4), 0.1, (200, 4))
    for hour, order in enumerate(([0, 1, 2, 3], [0, 2, 1, 3], [0, 1, 2, 3])):
        inputs = {"input_1": values[:, order].tolist()}
        add_requests(log, hour, num=1, inputs=inputs, outputs={"y": [0] * 200})
    options: dict[str, Any] = {"min_rows": 10, "late_s": 0, "available_now": True}
    options |= {"inputs": {"input_1": "x"}, "to": f"{root}/results"}
    found = monitoring.watch(str(log), features_of_arrays(), **options)
    assert found.drift.drifted == ["x[1]", "x[2]"] and not found.drift.notes
    assert found.drift.table["status"].tolist()[:8] == ["ok"] * 8
    assert "2 of 4 features have drifted" in found.alerts[0]["text"]
    assert "x[1], x[2]" in found.alerts[0]["text"]
    decision = monitoring.should_retrain(options["to"], min_drifted=1, last=2, columns=["x"])
    assert len(decision.reasons) == 2
    with pytest.raises(ConfigError, match="no feature 'y' was watched"):
        monitoring.should_retrain(options["to"], columns=["y"])

    # A profile of an older version has one histogram of all elements.
    values = np.random.default_rng(7).normal(np.arange(4), 0.1, (1000, 4))
    old = {"format": 2, "features": {"x": {**numbers(values.ravel()), "n": 1000, "kind": "array"}}}
    options["to"] = f"{root}/old"
    with caplog.at_level(logging.WARNING, "sparkdl.monitoring"):
        found = monitoring.watch(str(log), old, **options)
    assert set(found.drift.table["feature"]) == {"x"} and not found.drift.drifted
    for notes in (found.new_drift.notes, monitoring.results(options["to"]).notes):
        assert notes[0].startswith("the profile of 'x' is of an older version of sparkdl")
        assert "monitoring.profile(df)" in notes[0] and notes[0] in caplog.text
    frame = spark.createDataFrame([(row.tolist(),) for row in values], "x array<double>")
    found = monitoring.drift(old, frame)
    assert found.drifted == [] and found.notes == notes and notes[0] in repr(found)


def test_a_headline_names_some_of_many_features() -> None:
    rows = [{"feature": f"x[{i}]", "metric": "js", "status": "drift"} for i in range(100)]
    headline = Drift.of(rows, None).headline
    assert headline.startswith("100 of 100 features have drifted: x[0], x[1], ")
    assert headline.endswith(", x[11] and 88 more")
