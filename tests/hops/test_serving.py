"""Models of HopsML programs that are served, asked and stopped."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.hops import kafka, model, serving
from tests.helpers.processes import eventually
from tests.helpers.saved_models import write_saved_model
from tests.serving.functions import save_sum


@pytest.fixture
def project(root: str, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("KAFKA_BROKERS", "KAFKA_PROPERTIES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARKDL_ROOT", root)
    return root


@pytest.mark.slow
def test_a_serving_is_created_started_asked_changed_and_stopped(
    project: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for value in (1.0, 2.0):
        folder = save_sum(tmp_path / f"sum-{value}", value)
        path = model.export(str(folder), "sum", metrics={"accuracy": value})
    best = model.get_best_model("sum", "accuracy", model.Metric.MAX)
    serving.create_or_update("adder", "/Models/sum", model_version=1)
    assert serving.exists("adder") and not serving.exists("other")
    assert serving.get_status("adder") == "Stopped"
    with pytest.raises(ConfigError, match=r"does not run: call serving.start first"):
        serving.make_inference_request("adder", [1.0])
    try:
        serving.start("adder")
        assert serving.make_inference_request("adder", [1.0, 2.5]) == {"predictions": [2.0, 3.5]}
        # The version that is served changes at once; the id of the serving stays.
        serving.create_or_update("adder", best["path"], batching_enabled=True)
        data = {"signature_name": "serving_default", "inputs": [1.0]}
        assert serving.make_inference_request("adder", data) == {"outputs": [3.0]}
        with pytest.raises(serving.RestAPIError, match=r"has answered with code 400: .*error"):
            serving.make_inference_request("adder", {"instances": ["text"]})
        (found,) = serving.get_all()
        assert (found.id, found.status, found.model_version) == (1, "Running", 2)
        assert (serving.get_model_name("adder"), serving.get_model_path("adder")) == ("sum", path)
        assert serving.get_internal_endpoints("adder") == [found.url]
        assert serving.get_available_instances("adder") == 1
        assert _stopped_elsewhere(project) == f"is run by another process, {found.process}. Stop it"
    finally:
        serving.stop("adder")
    assert serving.get_status("adder") == "Stopped"
    assert serving.get_internal_endpoints("adder") is None
    # Without brokers, the log is in files of the project.
    with caplog.at_level("WARNING", logger="sparkdl.hops"):
        assert serving.get_kafka_topic("adder") is None
    assert "has no topic of Kafka; its log is in files" in caplog.text
    events = [kafka.parse_avro_msg(line.encode()) for line in _lines(str(found.log))]
    assert [(e["modelVersion"], e["responseHttpCode"]) for e in events] == [
        (1, 200),
        (2, 200),
        (2, 400),
    ]
    assert json.loads(events[1]["inferenceResponse"]) == {"outputs": {"y": [3.0]}}
    serving.delete("adder")
    assert serving.get_all() == [] and serving.get_id("adder") is None


def _lines(folder: str) -> list[str]:
    """The records of a log, in the order of their time."""
    lines = [line for f in Path(folder).rglob("*.jsonl") for line in f.read_text().splitlines()]
    return sorted(lines, key=lambda line: str(json.loads(line)["time"]))


def _stopped_elsewhere(project: str) -> str:
    """Stop the serving in another process; return a part of the message."""
    code = "from sparkdl.hops import serving; serving.stop('adder')"
    env = {**os.environ, "SPARKDL_ROOT": project}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 1
    _, _, rest = done.stderr.strip().splitlines()[-1].partition("'adder' ")
    return rest.partition(" there,")[0]


@pytest.mark.slow
def test_a_program_that_ends_leaves_no_server_and_writes_its_log(
    project: str, tmp_path: Path
) -> None:
    folder = save_sum(tmp_path / "sum", 1.0)
    program = (
        "from sparkdl.hops import serving\n"
        f"serving.create_or_update('adder', {str(folder)!r})\n"
        "serving.start('adder')\n"
        "print(serving.make_inference_request('adder', [1.0]))\n"
    )
    env = {**os.environ, "SPARKDL_ROOT": project}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.stdout == "{'predictions': [2.0]}\n", done.stderr
    assert eventually(lambda: serving.get_status("adder") == "Stopped")
    log = storage.join(project, "serving", "adder", "log")
    assert len(_lines(log)) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"predictor": "p.py"}, "predictor is 'p.py', which has no counterpart. Put what the"),
        ({"transformer": "t.py"}, "no counterpart. Put what the script does into the model"),
        ({"kfserving": True}, r"sparkdl.serving.kserve\(name, version=...\) writes"),
        ({"kserve": True}, r"sparkdl.serving.kserve\(name, version=...\) writes"),
        ({"instances": 2}, "instances is 2, which has no counterpart"),
        ({"model_server": "PYTHON"}, "expected 'TENSORFLOW_SERVING', for Keras files"),
        ({"model_version": 7}, "has no version 7; it has 1. Pass model_version="),
        ({"model_version": "1"}, "model_version is '1'; expected a number"),
        ({"model_path": "Models/other"}, "other"),
        ({"serving_name": "/Models/sum"}, "the order of arguments is that of hops-util-py 2.5"),
        ({"topic_name": "requests"}, "KAFKA_BROKERS is not set"),
    ],
)
def test_wrong_arguments_are_refused_and_nothing_is_kept(
    project: str, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    model.export(write_saved_model(tmp_path / "exported"), "sum")
    good = {"serving_name": "adder", "model_path": "Models/sum"}
    with pytest.raises((ConfigError, model.ModelNotFound), match=message):
        serving.create_or_update(**{**good, **arguments})
    assert serving.get_all() == []


def test_names_without_a_counterpart_say_what_has_their_place(project: str) -> None:
    with pytest.raises(AttributeError, match=r"no 'export'. Use model.export"):
        _ = serving.export  # type: ignore[attr-defined]
    for call in (serving.start, serving.stop, serving.get_status, serving.get_model_version):
        with pytest.raises(serving.ServingNotFound, match="there is no serving 'adder' in"):
            call("adder")
