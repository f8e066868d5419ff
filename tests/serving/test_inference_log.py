"""The inference log: records, files by the hour, samples, and a store that fails."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.serving import inference_log
from sparkdl.serving.calls import Call
from sparkdl.serving.inference_log import Log, log_of
from sparkdl.serving.log_sinks import JsonLinesSink, LogSink, Record
from tests.helpers.processes import eventually
from tests.serving.fakes import client, half_plus_three

HOUR_MS = 3_600_000


class Memory(LogSink):
    """A place in memory, which fails while `fails` is set."""

    pause_s = 0.01

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.fails = threading.Event()
        self.num_failed = 0

    def write(self, records: Sequence[Record]) -> None:
        if self.fails.is_set():
            self.num_failed += 1
            raise OSError("the store is busy")
        self.records += records


def call(**fields: Any) -> Call:
    return Call(**{"model": "m", "version": 3, "inputs": {"x": np.zeros(2, "float32")}, **fields})


def lines(folder: Path) -> dict[str, list[Any]]:
    """The records of each file below a folder."""
    return {
        path.relative_to(folder).as_posix(): [*map(json.loads, path.read_text().splitlines())]
        for path in sorted(folder.rglob("*.jsonl"))
    }


def test_a_request_is_one_record_with_inputs_and_outputs(tmp_path: Path) -> None:
    log = log_of(str(tmp_path))
    assert log is not None
    page = client(half_plus_three(), observers=[log.observe])
    path, host = "/v1/models/half_plus_three:predict", {"Host": "localhost"}
    first = page.post(path, data=b'{"instances": [1.0, NaN]}', headers=host)
    own = {**host, "X-Request-Id": "order-7"}
    assert page.post(path, data=b'{"inputs": ["a"]}', headers=own).status_code == 400
    assert page.post("/v1/models/none:predict", data=b"{}", headers=host).status_code == 404
    log.close()
    (name, records), *others = lines(tmp_path).items()
    assert name.startswith("date=") and "/hour=" in name and not others
    good, bad = records
    assert np.isnan(good["inputs"]["x"].pop()) and np.isnan(good["outputs"]["y"].pop())
    assert good.pop("latency_ms") > 0 and good.pop("time") > 1_700_000_000_000
    assert good == {
        "id": first.headers["X-Request-Id"],
        "model": "half_plus_three",
        "version": 123,
        "signature": "serving_default",
        "rows": 2,
        "status": 200,
        "batch": None,
        "inputs": {"x": [1.0]},
        "outputs": {"y": [3.5]},
    }
    assert (bad["id"], bad["status"], bad["inputs"]) == ("order-7", 400, {})


def test_files_are_by_the_hour_of_the_request(tmp_path: Path) -> None:
    sink = JsonLinesSink(str(tmp_path))
    sink.write([{"time": 0}, {"time": HOUR_MS}])
    sink.write([{"time": 1}, {"time": 25 * HOUR_MS}])
    folders = {name.rsplit("/", 1)[0]: records for name, records in lines(tmp_path).items()}
    assert folders == {
        "date=1970-01-01/hour=00": [{"time": 0}, {"time": 1}],
        "date=1970-01-01/hour=01": [{"time": HOUR_MS}],
        "date=1970-01-02/hour=01": [{"time": 25 * HOUR_MS}],
    }


def test_a_store_without_appending_gets_a_file_for_each_write() -> None:
    sink = JsonLinesSink("memory://inference-log")
    sink._appends = False
    sink.write([{"time": 0}])
    sink.write([{"time": 1}])
    folder = "memory://inference-log/date=1970-01-01/hour=00"
    names = storage.list_names(folder)
    assert [name.rsplit("-", 1)[1] for name in names] == ["1.jsonl", "2.jsonl"]
    assert storage.read(f"{folder}/{names[1]}") == b'{"time": 1}\n'


def test_a_store_that_fails_for_a_while_loses_nothing() -> None:
    sink = Memory()
    sink.fails.set()
    log = log_of(Log(sink))
    assert log is not None
    for number in range(5):
        log.observe(call(id=str(number)))
    assert eventually(lambda: sink.num_failed > 2)
    sink.fails.clear()
    assert eventually(lambda: len(sink.records) == 5)
    log.close()
    assert [record["id"] for record in sink.records] == [*"01234"]
    assert log.num_dropped == 0


@pytest.mark.parametrize("options", [{"max_queued": 3}, {"max_queued_mb": 3 * 8 / (1 << 20)}])
def test_a_queue_that_is_full_drops_and_counts(options: Any, caplog: Any) -> None:
    sink = Memory()
    sink.fails.set()
    log = log_of(Log(sink, **options))
    assert log is not None
    for number in range(10):
        log.observe(call(id=str(number)))
    assert log.num_dropped == 7
    sink.fails.clear()
    log.close()
    assert [record["id"] for record in sink.records] == [*"012"]
    assert "7 records of the inference log were dropped" in caplog.text


def test_records_that_are_too_large_for_the_place_are_counted(caplog: Any) -> None:
    class Small(Memory):
        def write(self, records: Sequence[Record]) -> None:
            self.num_left_out += sum(len(record["inputs"]["x"]) > 2 for record in records)

    log = log_of(Log(Small()))
    assert log is not None
    for size in (2, 3):
        log.observe(call(inputs={"x": np.zeros(size, "float32")}))
    log.close()
    assert log.num_dropped == 1
    assert "1 records of the inference log were dropped" in caplog.text


def test_records_that_cannot_be_written_hold_up_no_others(caplog: Any) -> None:
    sink = Memory()
    log = log_of(Log(sink))
    assert log is not None
    log.observe(call(inputs={"x": "no array", "y": object()}))
    assert eventually(lambda: log.num_dropped + len(sink.records) == 1)
    log.observe(call(id="next"))
    log.close()
    assert sink.records[-1]["id"] == "next"


def test_a_sample_is_a_share_of_the_requests() -> None:
    sink = Memory()
    log = log_of(Log(sink, sample=0.25))
    assert log is not None
    for _ in range(2000):
        log.observe(call())
    log.close()
    assert 380 < len(sink.records) < 620
    none = log_of(Log(sink, sample=0))
    assert none is not None
    none.observe(call(id="never"))
    none.close()
    assert "never" not in {record["id"] for record in sink.records}


@pytest.mark.parametrize(
    "value", [3, "", Log("x", sample=1.5), Log("x", sample=True), Log("x", max_queued=0)]
)
def test_wrong_options_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError):
        inference_log.log_of(value)
