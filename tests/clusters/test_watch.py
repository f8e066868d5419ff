"""Watches that are killed, and watches of a topic of a real Kafka."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession

from sparkdl import monitoring
from sparkdl.serving.calls import Call
from sparkdl.serving.inference_log import Log, log_of
from sparkdl.serving.kafka_topic import KafkaTopic, Sender
from tests.clusters.kafka import consumed, create_topic, kafka_broker, spark_jars
from tests.clusters.standalone import REPOSITORY
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
from tests.helpers.spark import Applications
from tests.monitoring.test_drift import FEATURES, car_loans


def killed_at_its_first_alert(folder: Path, **options: Any) -> None:
    """Watch in a program of its own, and kill it between the windows and Spark's note of them."""
    told = folder / "told.json"
    told.unlink(missing_ok=True)
    path = folder / "options.json"
    path.write_text(json.dumps({"told": str(told), "jars": "", **options}))
    command = [sys.executable, "-m", "tests.programs.watching", str(path)]
    program = subprocess.Popen(command, cwd=REPOSITORY, start_new_session=True)
    try:
        assert eventually(lambda: told.exists() or program.poll() is not None, 120)
        assert program.poll() is None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def test_a_watch_that_is_killed_counts_each_window_once(spark: SparkSession, root: str) -> None:
    log, to = Path(root, "log"), Path(root, "results")
    write_log(log, [True, False, True, False])
    add_requests(log, 4, num=1, minute=15)
    options: dict[str, Any] = {"source": str(log), "to": str(to), "min_rows": 10}
    killed_at_its_first_alert(Path(root), model=PROFILE, **options)
    assert windows(monitoring.results(str(to)).table) == expected(["drift", "ok", "drift", "ok"])
    add_requests(log, 5, num=1, is_unlike=True, minute=15)
    for new in (["age"], []):
        found = monitoring.watch(model=PROFILE, available_now=True, **options)
        assert found.new_drift.drifted == new
        monitoring.acknowledge(str(to))
    assert windows(found.drift.table) == [
        *expected(["drift", "ok", "drift", "ok"]),
        *((4, *row[1:3], "too few rows", 2) for row in expected(["ok"])),
    ]
    assert [alert["window"][0][11:13] for alert in found.alerts] == ["10", "12"]


def test_the_clock_ends_windows_while_a_watch_goes_on(
    spark: SparkSession, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = Path(root, "log")
    write_log(log, [False])
    options: dict[str, Any] = {"to": f"{root}/results", "trigger_s": 0, "idle_s": 1}
    watch = monitoring.watch(str(log), PROFILE, **options)
    try:
        assert eventually(lambda: len(watch.drift.table) == 4, 60)
        # The store cannot take the numbers for a while; the watch tries until it can.
        blocked = Path(root, "results/left_out.json")
        blocked.mkdir()
        (log / "other.jsonl").write_text("no JSON\n")
        assert eventually(lambda: "could not be noted" in caplog.text, 60)
        blocked.rmdir()
        assert eventually(lambda: monitoring.results(str(blocked.parent)).left_out, 60)
    finally:
        watch.stop()


# ---- Kafka


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with kafka_broker(tmp_path_factory.mktemp("kafka")) as address:
        yield address


@pytest.fixture(scope="module")
def kafka_spark(applications: Applications) -> Iterator[SparkSession]:
    """Embedded Spark with its source for Kafka, which a JVM that runs cannot load."""
    jars = spark_jars()
    applications.end_jvm()
    yield from applications.lend("local[2]", spark__jars=jars)
    applications.end_jvm()


def test_the_log_of_a_server_goes_through_kafka(
    broker: str, kafka_spark: SparkSession, tmp_path: Path
) -> None:
    url = create_topic(broker, "requests")
    told = create_topic(broker, "alerts", 1)
    log = log_of(Log(url))
    assert log is not None
    for hour, is_unlike in enumerate([False, True, False]):
        for number in range(100):
            fields = request(hour * 100 + number, START_MS + hour * HOUR_MS, is_unlike)
            arrays = {name: np.array(value) for name, value in fields["inputs"].items()}
            known = {"id": fields["id"], "time_ms": fields["time"], "model": "m", "version": 3}
            log.observe(Call(**known, rows=2, inputs=arrays))
    log.close()
    assert log.num_dropped == 0
    keys = [key for key, _ in consumed(broker, "requests", 300)]
    assert sorted(keys) == sorted(f"r{number}" for number in range(300))

    options: dict[str, Any] = {"to": str(tmp_path), "min_rows": 10, "late_s": 0}
    watch = monitoring.watch(url, PROFILE, alerts=told, available_now=True, **options)
    assert windows(watch.drift.table) == expected(["ok", "drift"])
    ((key, value),) = consumed(broker, "alerts", 1)
    (alert,) = watch.alerts
    assert (key, json.loads(value)) == (alert["id"], alert)
    found = monitoring.drift(PROFILE, monitoring.read_log(url, PROFILE), min_rows=10)
    assert set(found.table["rows"]) == {600}


def test_records_that_the_broker_refuses_are_left_out_alone(broker: str) -> None:
    create_topic(broker, "small", 1, {"max.message.bytes": "2000"})
    sender = Sender(KafkaTopic(broker, "small"), {"compression.type": "none"})
    sizes = [10, 5000, 900, 900, 900, 4000, 10]
    assert sender.send([(str(size), b"x" * size) for size in sizes]) == 2
    assert sorted(len(value) for _, value in consumed(broker, "small", 5)) == [
        10,
        10,
        900,
        900,
        900,
    ]


def test_events_of_kserve_are_read_from_headers(broker: str, kafka_spark: SparkSession) -> None:
    from confluent_kafka import Producer

    url = create_topic(broker, "kserve")
    producer = Producer({"bootstrap.servers": broker})
    for kind, body in (
        ("request", {"instances": [[0.5], [0.6]]}),
        ("response", {"predictions": [1, 2]}),
    ):
        attributes = {"id": "r1", "type": f"org.kubeflow.serving.inference.{kind}"}
        attributes |= {"time": "2026-11-23T10:00:00.5Z", "inferenceservicename": "m"}
        headers = {f"ce_{name}": text.encode() for name, text in attributes.items()}
        producer.produce("kserve", json.dumps(body).encode(), headers=headers)
    producer.flush(20)
    rows = monitoring.read_log(url, PROFILE, columns=["age"], outputs={"y": "score"})
    found = sorted((row["id"], row["row"], row["age"], row["score"]) for row in rows.collect())
    assert found == [("r1", 0, 0.5, 1.0), ("r1", 1, 0.6, 2.0)]


def test_the_published_drift_is_found_in_a_stream_that_is_killed_five_times(
    broker: str, kafka_spark: SparkSession, tmp_path: Path
) -> None:
    """The alarms of NannyML's tutorial, see tests/monitoring/test_drift.py; a chunk is an hour."""
    spark = kafka_spark
    reference = spark.createDataFrame(car_loans("reference"))
    profile = monitoring.profile(reference, FEATURES, num_bins=10_000, max_ranges=1 << 16)
    limits = monitoring.thresholds(profile, reference, by="chunk", metrics=["js", "ks"])
    url = create_topic(broker, "loans", 3)
    send_car_loans(broker, "loans")
    options = {
        "source": url,
        "model": profile,
        "to": str(tmp_path / "results"),
        "metrics": ["js", "ks"],
        "thresholds": limits,
        # Partitions are not read at the same pace.
        "late_s": 3600,
        "options": {"maxOffsetsPerTrigger": "150"},
    }
    for _ in range(5):
        killed_at_its_first_alert(tmp_path, jars=spark_jars(), **options)
    table = monitoring.watch(**options, available_now=True).drift.table
    assert len(table) == table.groupby(["window", "feature", "metric"]).ngroups
    assert set(table["rows"]) == {5000}
    hours = (table["window"] - pd.Timestamp(START_MS, unit="ms", tz="UTC")) // pd.Timedelta("1h")
    alarms = {
        (row.feature, int(hour))
        for row, hour in zip(table.itertuples(), hours, strict=True)
        if row.status == "drift" and row.metric == "js"
    }
    late = {"car_value", "loan_length", "repaid_loan_on_prev_car", "salary_range", "y_pred_proba"}
    early = {("debt_to_income_ratio", 6), ("car_value", 3)}
    assert alarms == early | {(name, hour) for name in late for hour in range(5, 10)}
    ratio = table[(table["feature"] == "debt_to_income_ratio") & (table["metric"] == "js")]
    assert ratio["value"].round(6).tolist() == [
        *(0.031661, 0.030011, 0.031129, 0.029464, 0.030809),
        *(0.028681, 0.043628, 0.029253, 0.030628, 0.028330),
    ]


def send_car_loans(broker: str, topic: str) -> None:
    """Send the rows as requests of 100 rows, an hour for each chunk, and one request after them."""
    table = car_loans("analysis").astype({"repaid_loan_on_prev_car": bool})
    records = []
    for number, first in enumerate(range(0, len(table), 100)):
        rows = table.iloc[first : first + 100]
        columns = {name: rows[name].tolist() for name in FEATURES}
        time_ms = START_MS + int(rows["chunk"].iloc[0]) * HOUR_MS + number
        records.append(json.dumps(request(number, time_ms, inputs=columns)).encode())
    first = {name: table[name].tolist()[:1] for name in FEATURES}
    later = request(0, START_MS + 11 * HOUR_MS, inputs=first)
    records.append(json.dumps(later).encode())
    Sender(KafkaTopic(broker, topic)).send([(str(i), record) for i, record in enumerate(records)])
