"""One trial in a training process, without Spark: what it prints, raises and returns is masked."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkdl.cluster.outcome import Outcome, Status
from sparkdl.cluster.program.packaging import pack
from sparkdl.runner.loop.task_factory import TaskFactory
from sparkdl.runner.pipeline.execute import description_of
from sparkdl.runner.pipeline.prepare import prepare
from sparkdl.runs.opening import open_run
from sparkdl.search.trial_source import TrialSource
from tests.helpers.in_memory_cluster import InMemoryCluster
from tests.helpers.loops import request_of

WORD = "hunter" + "22"
ENV = {"KERAS_BACKEND": "tensorflow", "MODE": "train", "SERVICE_KEY": "correct-horse"}


def run_trial(
    root: str, train: Callable[..., Any], params: dict[str, Any], **options: Any
) -> tuple[Outcome, Path]:
    """Return the outcome of a trial, and its folder."""
    request = replace(request_of(root=root, env=ENV, **options), train=train, params=[params])
    prepared = prepare(request, pack(train), InMemoryCluster())
    opened = open_run(root, description_of(prepared), "error")
    try:
        task = TaskFactory(prepared, opened, TrialSource(), 1).make(opened.run.trials[0], 1)
        return task._run([]), Path(opened.run.trials[0].path)
    finally:
        opened.owner.release()


def test_what_a_trial_prints_and_returns_is_masked_and_its_files_are_found(
    root: str, tmp_path: Path
) -> None:
    made = tmp_path / "train_best.keras"
    made.write_text("w")

    def train(password: str) -> dict[str, Any]:
        print("backend", os.environ["KERAS_BACKEND"], os.environ["MODE"], password)
        print("password:", password[::-1] + "9")
        print("key", os.environ["SERVICE_KEY"], "and a tea" + "pot")
        return {
            "model": str(made),
            "token": str(made),
            "word": f"{os.environ['SERVICE_KEY']} {os.environ['MODE']}",
            "accuracy": 0.5,
            "odd": object(),
        }

    outcome, folder = run_trial(root, train, {"password": WORD}, secrets=["tea" + "pot"])
    assert outcome.status is Status.RETURNED
    assert outcome.outputs["accuracy"] == 0.5
    assert outcome.outputs["word"] == "*** train"
    for name in ("model", "token"):
        assert (folder / outcome.outputs[name]).read_text() == "w"
    assert "the returned 'odd', of type object" in (outcome.note or "")
    log = (folder / "log.txt").read_text()
    assert "backend tensorflow train ***\npassword: ***\nkey *** and a ***\n" in log
    texts = b"".join(p.read_bytes() for p in Path(root).rglob("*") if p.is_file())
    for secret in (WORD, "correct-horse", "teapot"):
        assert secret.encode() not in texts


def test_what_a_trial_raises_is_masked(root: str) -> None:
    def train(x: int) -> None:
        if x:
            raise KeyError("ordinary")
        raise ValueError(f"refused {os.environ['SERVICE_KEY']}: host=db password={WORD}")

    outcome, folder = run_trial(root, train, {"x": 0})
    assert outcome.status is Status.FAILED
    assert (outcome.error or "").startswith("ValueError: refused ***: host=db password=***\n")
    assert outcome.exception is None  # It would hold the text as it was.
    assert WORD not in json.dumps([p.read_text() for p in folder.rglob("*.*")])
    outcome, _ = run_trial(root, train, {"x": 1}, run_id="other")
    assert outcome.exception is not None


@pytest.mark.parametrize("value", [[1.0, 2.0], {"a": [0.5]}])
def test_values_that_json_can_hold_are_kept_without_a_note(root: str, value: Any) -> None:
    outcome, _ = run_trial(root, lambda: {"value": value}, {})
    assert (outcome.outputs, outcome.note) == ({"value": value}, None)
