"""Watch the log of a model server in a stream, on real Spark."""

import json
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import models, monitoring
from sparkdl.errors import ConfigError
from sparkdl.models.watch_files import ResultFiles
from tests.helpers.logs import (
    HOUR_MS,
    PROFILE,
    START_MS,
    add_requests,
    expected,
    request,
    windows,
    write_log,
)
from tests.helpers.processes import eventually
from tests.helpers.receiver import Receiver
from tests.helpers.saved_models import write_saved_model


@pytest.mark.slow
def test_windows_are_compared_once_while_the_log_grows(
    spark: SparkSession, root: str, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    log, to = Path(root, "log"), f"{root}/results"
    write_log(log, [False, True, False])
    add_requests(log, 2, num=5, minute=30)
    with (log / "other.jsonl").open("w") as file:
        file.write("no JSON\n[]\n" + json.dumps(request(0, START_MS, status=400)) + "\n")
    told: list[Any] = []
    options: dict[str, Any] = {"to": to, "min_rows": 10, "available_now": True}
    options["thresholds"] = {"js": {"age": 0.3}}
    places = [f"{receiver.address}/secret", "http://127.0.0.1:1/down", told.append]
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    first = monitoring.watch(str(log), PROFILE, alerts=places, **options)
    # The third hour has not ended.
    assert windows(first.drift.table) == expected(["ok", "drift"])
    assert first.drift.drifted == ["age"]
    assert set(first.drift.table["version"]) == {3}
    assert not first.is_active and spark.conf.get("spark.sql.shuffle.partitions") == partitions
    assert "2 lines of the log of the profile cannot be read, such as " in caplog.text
    assert first.drift.left_out["unreadable"]["num"] == 2
    assert "other.jsonl, byte 0: " in first.drift.notes[0]
    assert "an alert could not be sent: http://127.0.0.1:1/***" in caplog.text

    monitoring.acknowledge(to)
    add_requests(log, 2, num=5, minute=10)
    add_requests(log, 3, num=1, minute=15)
    add_requests(log, 0, num=1, minute=50)  # Its window has ended.
    again = monitoring.watch(str(log), PROFILE, alerts=places, **options)
    third = [(2, *row[1:4], 220) for row in expected(["ok"])]
    assert windows(monitoring.results(to).table) == expected(["ok", "drift"]) + third
    assert windows(again.new_drift.table) == third and not again.new_drift.left_out
    assert "came after the end of their window, and are left out: raise late_s" in caplog.text
    (alert,) = again.alerts
    assert told == [alert] and [post[2]["id"] for post in receiver.posts] == [alert["id"]]
    assert receiver.posts[0][2]["event"] == "drift"
    assert alert["text"] == (
        "the profile, version 3: 1 of 2 features has drifted from 2025-11-24 11:00 to 12:00 UTC: "
        "age"
    )
    assert {feature["metric"] for feature in alert["features"]} == {"psi", "js"}


@pytest.mark.slow
def test_a_version_is_compared_with_its_own_requests_from_its_export_on(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    models.export(write_saved_model(tmp_path / "prepared"), "m", profile=PROFILE, root=root)
    version = models.get("m", root=root)
    exported = {"time": datetime.fromtimestamp(START_MS / 1000 + 3600, timezone.utc).isoformat()}
    version = replace(version, details={**version.details, "exported": exported})
    log = Path(root, "log")
    for hour, number, is_unlike in ((0, 1, True), (1, 2, True), (1, 1, False), (2, 1, False)):
        add_requests(log, hour, is_unlike=is_unlike, version=number, minute=10)
    options: dict[str, Any] = {"min_rows": 10, "late_s": 0, "available_now": True}
    options |= {"metrics": ["ks"], "inputs": {"age": "age"}, "columns": ["age"]}
    found = monitoring.watch(str(log), version, **options)
    names = ["version", "status"]
    assert found.drift.table[names].values.tolist() == [[1, "ok"], [2, "other version"]]
    assert windows(found.drift.table)[0][0] == 1
    assert found.alerts == [] and found.new_drift.drifted == []
    assert not monitoring.should_retrain(version, min_drifted=1)
    # A version that is promoted again is compared from its first start on.
    again = monitoring.watch(str(log), "m", root=root, **options)
    assert len(again.drift.table) == 2
    with pytest.raises(ConfigError, match="a watch with another value of 'since'"):
        monitoring.watch(str(log), version, **{**options, "since": 0})


@pytest.mark.slow
def test_a_request_from_the_future_ends_no_window(
    spark: SparkSession, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = Path(root, "log")
    add_requests(log, 0, num=1, minute=30, time=START_MS + 500_000 * HOUR_MS)
    options: dict[str, Any] = {"to": f"{root}/results", "min_rows": 10, "available_now": True}
    for hours in ((0,), (1, 2)):
        for hour in hours:
            add_requests(log, hour)
        found = monitoring.watch(str(log), PROFILE, late_s=0, **options)
    assert windows(found.drift.table) == expected(["ok", "ok"])
    assert found.drift.left_out["ahead"]["num"] == 1
    assert "1 requests in the log of the profile are left out, as their time lies" in caplog.text
    assert "its time is 2082-" in caplog.text and "raise late_s" not in caplog.text


@pytest.mark.slow
def test_a_log_without_a_line_that_can_be_read_is_told(
    spark: SparkSession, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = Path(root, "log")
    log.mkdir()
    (log / "avro.jsonl").write_text("Obj\x01\n" * 50)
    options: dict[str, Any] = {"to": f"{root}/results", "available_now": True}
    first = monitoring.watch(str(log), PROFILE, **options)
    assert "50 lines of the log of the profile cannot be read, such as " in caplog.text
    assert first.new_drift.left_out["unreadable"]["num"] == 50
    ResultFiles(f"{root}/results").add_refused("http://host/***")
    for shown in (repr(first.new_drift), monitoring.results(f"{root}/results")._repr_html_()):
        assert "50 lines were left out (unreadable)" in shown
        assert "1 alerts were refused by http://host/***" in shown
    again = monitoring.watch(str(log), PROFILE, **options)
    assert again.new_drift.left_out == {} and again.drift.left_out["unreadable"]["num"] == 50


@pytest.mark.slow
def test_drift_is_that_of_the_next_call_too_until_it_is_acknowledged(
    spark: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Path(root, "log")
    write_log(log, [True, False])
    options: dict[str, Any] = {"to": f"{root}/results", "min_rows": 10, "available_now": True}
    options["late_s"] = 0

    class Killed(BaseException):
        """The end of the process."""

    def kill(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(ResultFiles, "write_finished", kill)
        monitoring.watch(str(log), PROFILE, **options)
    # The process may also be killed after the call has returned.
    for _ in range(2):
        assert monitoring.watch(str(log), PROFILE, **options).new_drift.drifted == ["age"]
    monitoring.acknowledge(f"{root}/results")
    assert monitoring.watch(str(log), PROFILE, **options).new_drift.drifted == []


@pytest.mark.slow
def test_the_clock_ends_the_last_window_of_a_log_that_is_idle(
    spark: SparkSession, root: str
) -> None:
    log, to = Path(root, "log"), f"{root}/results"
    write_log(log, [False, True])
    options: dict[str, Any] = {"to": to, "min_rows": 10, "metrics": ["ks"], "columns": ["age"]}
    options |= {"idle_s": 3600, "available_now": True}
    found = monitoring.watch(str(log), PROFILE, **options)
    assert found.new_drift.table["status"].tolist() == ["ok", "drift"]
    with pytest.raises(ConfigError, match="a watch with another value of 'has_idle_s': True"):
        monitoring.watch(str(log), PROFILE, **{**options, "idle_s": None})


@pytest.mark.slow
def test_the_clock_ends_windows_while_lines_of_other_models_come(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    models.export(write_saved_model(tmp_path / "prepared"), "m", profile=PROFILE, root=root)
    log = Path(root, "log")
    add_requests(log, 0, num=1)
    options: dict[str, Any] = {"since": 0, "inputs": {"age": "age"}, "columns": ["age"]}
    options |= {"metrics": ["ks"], "trigger_s": 0, "idle_s": 1}
    watch = monitoring.watch(str(log), models.get("m", root=root), **options)

    def has_ended() -> bool:
        add_requests(log, 0, num=1, model="other", time=int(time.time() * 1000))
        return len(watch.drift.table) == 1

    try:
        assert eventually(has_ended)
    finally:
        watch.stop()


@pytest.mark.slow
def test_a_watch_goes_on_until_it_is_stopped(spark: SparkSession, root: str) -> None:
    log, to = Path(root, "log"), f"{root}/results"
    write_log(log, [False, False])
    options: dict[str, Any] = {"to": to, "late_s": 0, "trigger_s": 0, "metrics": ["ks"]}
    watch = monitoring.watch(str(log), PROFILE, window_s=1800, columns=["age"], **options)
    try:
        assert watch.is_active and not watch.wait(0.01)
        assert eventually(lambda: len(watch.drift.table) == 1)
        add_requests(log, 2, num=1)
        assert eventually(lambda: len(watch.drift.table) == 2)
    finally:
        watch.stop()
    assert watch.wait(120)
    for changed in ({"window_s": 60}, {"metrics": ["psi"]}):
        with pytest.raises(ConfigError, match="has the results of a watch with another value of"):
            monitoring.watch(str(log), PROFILE, **{**options, "columns": ["age"], **changed})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metrics": ["pis"]}, "unknown metric 'pis'"),
        ({"since": "yesterday"}, "since is 'yesterday'; expected a datetime"),
        ({"window_s": 0}, "expected a window of more than 0 seconds"),
        ({"alerts": [5]}, "alerts has 5; expected an http"),
        ({"alerts": "http://"}, "the URL of a webhook is no address"),
        ({"to": None}, "with a profile as the model, pass to="),
        ({"source": "/nowhere/log"}, "the log /nowhere/log does not exist"),
        ({"source": "kafka://host"}, "'kafka://host' is no topic of Kafka"),
        ({"source": "kafka://host:9092/topic"}, "Spark has no source for Kafka. Start it with"),
        ({"to": "memory://results"}, "Spark cannot write its checkpoint to memory://results/check"),
        ({"inputs": {"x": ["size"]}}, "the reference has no feature 'size'"),
    ],
)
def test_wrong_arguments_are_refused_without_a_stream(
    spark: SparkSession, root: str, arguments: dict[str, Any], message: str
) -> None:
    good = {"source": root, "model": PROFILE, "to": f"{root}/results"}
    with pytest.raises(ConfigError, match=message):
        monitoring.watch(**{**good, **arguments})
    assert spark.streams.active == []


def test_results_that_are_not_there_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are no results of a watch in"):
        monitoring.results(str(tmp_path))
