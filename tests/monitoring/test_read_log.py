"""Logs as DataFrames, and the counts of logs with two events for a request."""

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sparkdl import monitoring
from sparkdl.monitoring.counts import counter_of
from sparkdl.monitoring.logs import read_event
from sparkdl.monitoring.logs.counting import AHEAD, UNREADABLE, LogCounter, LogRows
from sparkdl.monitoring.logs.places import places_of, rows_of
from tests.helpers.logs import HOUR_MS, PROFILE, START_MS, request

# The word is the answer of the model.
OUTPUTS = {"y": "word"}


def two_events(number: int) -> list[dict[str, Any]]:
    """The request and the answer of two rows, in the form of Hopsworks."""
    ids = {"modelName": "m", "modelVersion": 3, "inferenceId": f"r{number}"}
    times = {"requestTimestamp": START_MS + number, "responseHttpCode": 200}
    ages, words = {"instances": [0.25, 0.5]}, {"predictions": ["a", "b"]}
    return [
        {**ids, **times, "messageType": "request", "payload": json.dumps(ages)},
        {**ids, **times, "messageType": "response", "payload": json.dumps(words)},
    ]


def write(path: Path, events: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


@pytest.mark.slow
def test_requests_and_answers_are_joined_by_their_id(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "log.jsonl", [*two_events(1), two_events(2)[0], {"messageType": 1}])
    rows = monitoring.read_log(str(tmp_path), PROFILE, outputs=OUTPUTS)
    assert rows.columns == ["id", "row", "time", "version", "age", "word"]
    assert [tuple(row)[:2] + tuple(row)[3:] for row in sorted(rows.collect())] == [
        ("r1", 0, 3, 0.25, "a"),
        ("r1", 1, 3, 0.5, "b"),
        ("r2", 0, 3, 0.25, None),
        ("r2", 1, 3, 0.5, None),
    ]


@pytest.mark.slow
def test_a_log_is_data_for_drift(spark: SparkSession, tmp_path: Path) -> None:
    requests = [request(n, START_MS, is_unlike=n >= 50, version=n // 50) for n in range(100)]
    write(tmp_path / "log.jsonl", [*requests, request(0, START_MS, status=400)])
    rows = monitoring.read_log(str(tmp_path), PROFILE, outputs={"y": "score"})
    assert rows.columns[-1] == "score"
    found = monitoring.drift(PROFILE, rows, by="version", metrics=["ks"], min_rows=10)
    assert list(found.table[["version", "status", "rows"]].itertuples(index=False, name=None)) == [
        (0, "ok", 100),
        (1, "drift", 100),
    ]


@pytest.mark.slow
def test_requests_that_were_refused_are_left_out_of_joined_logs(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "log.jsonl", [*two_events(1), *refused(2), two_events(3)[0]])
    rows = monitoring.read_log(str(tmp_path), PROFILE, outputs=OUTPUTS)
    assert sorted(row.id for row in rows.collect()) == ["r1", "r1", "r3", "r3"]


@pytest.mark.slow
def test_features_with_the_names_of_other_columns_are_kept(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    age = PROFILE["features"]["age"]
    profile = {**PROFILE, "features": {"ID": age, "time": age}}
    inputs = {"ID": [0.25], "time": [0.5]}
    write(tmp_path / "log.jsonl", [request(1, START_MS, inputs=inputs)])
    rows = monitoring.read_log(str(tmp_path), profile)
    assert rows.columns == ["request_id", "row", "request_time", "version", "ID", "time"]
    (row,) = rows.collect()
    assert (row["request_id"], row["ID"], row["time"]) == ("r1", 0.25, 0.5)
    found = monitoring.drift(profile, rows, columns=["ID", "time"], metrics=["ks"])
    assert set(found.table["status"]) == {"too few rows"}
    (tmp_path / "log.jsonl").write_text("a\nb\n")
    assert monitoring.read_log(str(tmp_path), profile).count() == 0
    assert "the first 2 lines of the log" in caplog.text and "log.jsonl, byte 0: " in caplog.text


@pytest.mark.slow
def test_texts_of_arrow_may_be_large(spark: SparkSession, tmp_path: Path) -> None:
    name = "spark.sql.execution.arrow.useLargeVarTypes"
    write(tmp_path / "log.jsonl", [request(n, START_MS) for n in range(20)])
    spark.conf.set(name, "true")
    try:
        df = spark.range(40).selectExpr("id / 40 AS age", "IF(id % 2 = 0, 'a', 'b') AS word")
        profile = monitoring.profile(df)
        assert profile["features"]["word"]["categories"] == {"a": 20, "b": 20}
        rows = monitoring.read_log(str(tmp_path), profile)
        found = monitoring.drift(profile, rows, columns=["word"], min_rows=10)
        assert found.table["value"].tolist() == [0.0, 0.0]
        to = str(tmp_path / "results")
        if hasattr(type(spark), "dataSource"):  # Spark 3.5 has no watch.
            monitoring.watch(str(tmp_path), profile, to=to, late_s=0, available_now=True)
    finally:
        spark.conf.unset(name)


def refused(number: int) -> list[dict[str, Any]]:
    """The request and the error of two rows."""
    asked, answer = two_events(number)
    return [asked, {**answer, "responseHttpCode": 503, "payload": '{"error": "full"}'}]


def counts_of(events: list[dict[str, Any]], model: str | None = "m") -> list[dict[str, Any]]:
    features = PROFILE["features"]
    rows = LogRows(places_of(features, None, outputs=OUTPUTS), model)
    counter = LogCounter(rows, counter_of(features, ["psi"]), HOUR_MS)
    lines = [json.dumps(event).encode() for event in events]
    numbers = list(range(len(lines)))
    columns = {"value": lines, "file": ["log.jsonl"] * len(lines), "offset": numbers}
    found = counter([pa.RecordBatch.from_pydict(columns)])
    return [row for batch in found for row in batch.to_pylist()]


def test_inputs_are_counted_from_requests_and_outputs_from_answers() -> None:
    counts = counts_of([*two_events(1), *two_events(2), two_events(3)[0], {"no": "event"}])
    by_part = {(row["feature"], row["part"], row["bin"]): row["num"] for row in counts}
    names = list(PROFILE["features"])
    age, word = names.index("age"), names.index("word")
    assert (by_part[age, "n", 0], by_part[word, "n", 0]) == (6, 4)
    assert (by_part[word, "categories", 0], by_part[word, "categories", 1]) == (2, 2)
    assert not [key for key in by_part if key[1] == "nulls"]
    (unreadable,) = (row for row in counts if row["feature"] == UNREADABLE)
    assert unreadable["num"] == 1 and "log.jsonl, byte 5: KeyError" in unreadable["part"]
    newest = {row["time"].timestamp() * 1000 for row in counts if row["feature"] >= 0}
    assert newest == {START_MS + 2, START_MS + 3}


def test_requests_of_other_models_are_left_out() -> None:
    assert counts_of(two_events(1), model="n") == []
    assert counts_of(two_events(1), model=None)


@pytest.mark.parametrize("is_answer_first", [False, True])
def test_requests_that_were_refused_are_not_counted(is_answer_first: bool) -> None:
    events = [*two_events(1), *refused(2)[:: -1 if is_answer_first else 1], two_events(3)[0]]
    counts = counts_of(events)
    names = list(PROFILE["features"])
    rows = {names[row["feature"]]: row["num"] for row in counts if row["part"] == "n"}
    # The request without an answer counts.
    assert rows == {"age": 4, "word": 2}


def test_events_ahead_of_the_clock_are_left_out() -> None:
    later = int(time.time() * 1000) + 3 * HOUR_MS
    events = [request(1, START_MS), request(2, later), request(3, later, model="other")]
    counts = counts_of(events)
    (row,) = [row for row in counts if row["feature"] == AHEAD]
    assert row["num"] == 1 and ": its time is " in row["part"]
    assert {row["time"].timestamp() for row in counts if row["feature"] >= 0} == {START_MS / 1000}


def test_booleans_may_be_numbers() -> None:
    flag = {**PROFILE["features"]["word"], "type": "boolean"}
    places = places_of({"flag": flag}, None)
    values = [[1.0], 0, True, "false", None, 0.5]
    event = read_event(json.dumps(request(1, START_MS, inputs={"flag": values})))
    assert rows_of(event, places) == {"flag": ["true", "false", "true", "false", None, "0.5"]}


def test_events_that_are_there_twice_count_once() -> None:
    first, second = request(1, START_MS), request(1, START_MS + 1)
    counts = counts_of([first, first, second, request(1, START_MS, version=4)])
    rows = {row["version"]: row["num"] for row in counts if row["part"] == "n"}
    # A client that asks again with the same id is served again.
    assert rows == {3: 4, 4: 2}
    counts = counts_of([*two_events(1), *two_events(1)])
    assert {row["num"] for row in counts if row["part"] == "n"} == {2}


def test_events_of_another_model_with_the_same_id_take_nothing_away() -> None:
    asked, answer = two_events(1)
    other = {**refused(1)[1], "modelName": "other"}
    newer = {**refused(1)[1], "modelVersion": 4}
    for model in ("m", None):
        counts = counts_of([asked, other, newer, {**other, "requestTimestamp": 1}, answer], model)
        assert {row["num"] for row in counts if row["part"] == "n"} == {2}


def services(component: str) -> list[dict[str, Any]]:
    """The request and the answer of two rows, as a component of a service of KServe logs them."""
    ids = {"id": "r1", "inferenceservicename": "m", "component": component, "time": START_MS}
    kind = "org.kubeflow.serving.inference"
    ages = {"instances": [0.25, 0.5] if component != "transformer" else [25, 50]}
    return [
        {**ids, "type": f"{kind}.request", "data": ages},
        {**ids, "type": f"{kind}.response", "data": {"predictions": ["a", "b"]}},
    ]


@pytest.mark.slow
def test_a_transformer_before_the_model_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    outer, inner = services("transformer"), services("predictor")
    events = [outer[0], *inner, outer[1]]
    for model in ("m", None):
        counts = counts_of(events, model)
        assert {row["num"] for row in counts if row["part"] == "n"} == {2}
    write(tmp_path / "log.jsonl", events)
    rows = monitoring.read_log(str(tmp_path), PROFILE, outputs=OUTPUTS).collect()
    assert sorted((row.id, row.row, row.age, row.word) for row in rows) == [
        ("r1", 0, 0.25, "a"),
        ("r1", 1, 0.5, "b"),
    ]


def retried(number: int) -> list[dict[str, Any]]:
    """A request that is refused, and served when it is sent again with the same id."""
    again = [{**event, "requestTimestamp": START_MS + 500} for event in two_events(number)]
    return [*refused(number), *again]


@pytest.mark.slow
def test_a_request_that_was_refused_and_then_served_counts_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    events = [*retried(1), *refused(2), *refused(2)[:1], *two_events(3), *two_events(3)]
    for order in (events, events[::-1]):
        write(tmp_path / "log.jsonl", order)
        rows = monitoring.read_log(str(tmp_path), PROFILE, outputs=OUTPUTS).collect()
        assert sorted((row.id, row.row, row.age, row.word) for row in rows) == [
            (f"r{number}", *values)
            for number in (1, 3)
            for values in ((0, 0.25, "a"), (1, 0.5, "b"))
        ]
        assert {row.time.timestamp() * 1000 for row in rows} == {START_MS + 500, START_MS + 3}
        counts = counts_of(order)
        assert {row["num"] for row in counts if row["part"] == "n"} == {4}
