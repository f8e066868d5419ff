"""The results of two trials are compared: reports of all ranks, returned values, files."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from sparkdl.files.jsonl import to_json
from sparkdl.files.typed_json import encoded
from sparkdl.runs import Trial, TrialState
from sparkdl.runs.verification.trials import compare_trials


def trial_of(folder: Path, reports: Any = (), result: Any = None, **outputs: Any) -> Trial:
    """A trial that is COMPLETE, with its reports and what it has returned."""
    folder.mkdir(exist_ok=True)
    trial = Trial(0, {}, str(folder), state=TrialState.COMPLETE, outputs=outputs, attempts=1)
    report(folder / "metrics.jsonl", reports)
    if result is not None:
        other = lambda obj, where: {"lost": [".".join(where), "object", ""]}  # noqa: E731
        (folder / "result.json").write_text(to_json(encoded(result, other)))
    return trial


def report(file: Path, reports: Any) -> None:
    lines = [to_json({"step": step, "metrics": metrics}) + "\n" for step, metrics in reports]
    file.write_text("".join(lines))


def differing(before: Trial, now: Trial, *ignored: str) -> list[str]:
    return [one.what for one in compare_trials(before, now, ignored)[0]]


def test_reports_of_one_step_are_compared_in_their_order(tmp_path: Path) -> None:
    nan = float("nan")
    reports = [(0, {"loss": 1.0}), (0, {"loss": 0.5}), (1, {"loss": nan})]
    before = trial_of(tmp_path / "a", reports)
    assert differing(before, trial_of(tmp_path / "b", reports)) == []
    changed = trial_of(tmp_path / "c", [reports[1], reports[0], (1, {"loss": nan, "more": 1.0})])
    found, compared = compare_trials(before, changed)
    assert [one.what for one in found] == ["metric loss", "metric more"]
    assert (found[0].step, found[0].num_differing, found[0].num_compared) == (0, 2, 3)
    assert (found[1].before, found[1].step) == ("absent", 1)
    assert compared.num_steps == 3 and compared.metrics == ["loss"]


def test_other_ranks_are_compared(tmp_path: Path) -> None:
    trials = [trial_of(tmp_path / name, [(0, {"loss": 1.0})]) for name in "ab"]
    for trial, loss in zip(trials, (2.0, 2.5), strict=True):
        report(
            Path(trial.path, "metrics-worker-1.jsonl"), [(0, {"loss": 2.0}), (1, {"loss": loss})]
        )
    (one,) = compare_trials(*trials)[0]
    assert (one.what, one.step, one.largest) == ("worker 1: metric loss", 1, 0.5)
    assert differing(*trials, "loss") == []
    # A trial that was restarted has only the last reports of the other ranks.
    trials[0].attempts = 2
    assert differing(*trials) == []


def test_returned_values_are_compared_part_by_part(tmp_path: Path) -> None:
    value = {
        "scores": np.array([1.0, 2.0]),
        "names": {"b", "a", "c"},
        "pair": (1, 2.5),
        3: b"bytes",
        "model": object(),
    }
    before = trial_of(tmp_path / "a", result=value, scores=[1.0, 2.0])
    same = {**value, "names": {"c", "b", "a"}, "scores": np.array([1.0, 2.0])}
    found, compared = compare_trials(before, trial_of(tmp_path / "b", result=same))
    assert found == [] and compared.not_kept == ["model"]
    assert "not the returned model, which was not kept" in str(compared)
    for name, other, what in (
        ("scores", np.array([1.0, 2.5]), "returned scores"),
        ("scores", [1.0, 2.0], "returned scores"),
        ("names", {"a", "b"}, "returned names"),
        ("pair", (1, 2.0), "returned pair[1]"),
        (3, b"other", "returned 3"),
    ):
        changed = trial_of(tmp_path / "c", result={**value, name: other})
        names = differing(before, changed)
        assert what in names, (names, what)
        assert differing(before, changed, str(name)) == []
    empty = trial_of(tmp_path / "e", result={**value, "pair": ()})
    assert "returned pair" in differing(before, empty)
    fewer = trial_of(tmp_path / "d", result={k: v for k, v in value.items() if k != "pair"})
    assert "returned pair[0]" in differing(before, fewer)


def test_checkpoints_and_models_that_were_left_are_compared(tmp_path: Path) -> None:
    def written(name: str, weight: bytes, time: float) -> Trial:
        trial = trial_of(tmp_path / name, path=".", text="no file")
        checkpoint = Path(trial.path, "checkpoints/000001")
        checkpoint.mkdir(parents=True, exist_ok=True)
        (checkpoint / "w.bin").write_bytes(weight)
        (checkpoint / "checkpoint.json").write_text(json.dumps({"time": time}))
        (checkpoint / ".held-1").write_text(name)
        Path(trial.path, "work").mkdir(exist_ok=True)
        Path(trial.path, "work/line.h5").write_bytes(b"model" + weight)
        Path(trial.path, "log.txt").write_text(name)
        return trial

    before = written("a", b"\0\1", 1.0)
    found, compared = compare_trials(before, written("b", b"\0\1", 2.0))
    assert found == []
    assert compared.files == ["checkpoints/000001/w.bin", "work/line.h5"]
    assert compared.num_bytes == 2 + 7
    names = differing(before, written("c", b"\0\2", 2.0))
    assert [name.split(",")[0] for name in names] == [
        "file checkpoints/000001/w.bin",
        "file work/line.h5",
    ]
