"""Runs that each version of sparkdl has left are read, shown, compared and resumed by this one.

The values beside a run were read from its files without sparkdl, when it was made: see keep.py.
"""

import hashlib
import json
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

import sparkdl
from sparkdl import checkpoints, experiment, models
from sparkdl.cli.main import main
from sparkdl.host.supported_versions import parts_of
from sparkdl.runs import Trial
from tests.data.kept_runs.line_search import train

KEPT = Path(__file__).parents[1] / "data/kept_runs"
VERSIONS = sorted(path.name for path in KEPT.iterdir() if path.name[0].isdigit())


@pytest.fixture(params=VERSIONS)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """The root of a copy of a kept run, and the table of its values."""
    root = shutil.copytree(KEPT / request.param / "runs", tmp_path / "runs")
    return str(root), json.loads((KEPT / request.param / "table.json").read_text())


def values_of(trial: Trial) -> dict[str, Any]:
    """The values of a trial, in the form of the table."""
    history = trial.history
    steps = {c.step: Path(c.url, "slope.txt").read_text() for c in trial.checkpoints}
    return {
        "params": trial.params,
        "reports": [[step, loss] for step, loss in history["loss"].items()] if len(history) else [],
        "checkpoints": {str(step): text for step, text in steps.items()},
        "attempts": trial.attempts,
        "state": trial.state,
        "value": trial.value,
        "metrics": trial.metrics,
        "outputs": trial.outputs or None,
        "failure": trial.failure,
        "error": trial.error,
    }


def test_this_version_has_left_a_run() -> None:
    assert sparkdl.__version__ in VERSIONS, "python tests/data/kept_runs/keep.py makes it"


def test_a_run_and_its_trials_have_their_values(kept: tuple[str, dict[str, Any]]) -> None:
    root, table = kept
    run = experiment.load(f"{root}/line")
    for name in ("id", "name", "kind", "metric", "direction", "state", "duration_s", "tags"):
        assert getattr(run, name) == table[name], name
    assert [note.text for note in run.notes] == table["notes"]
    assert {str(t.number): values_of(t) for t in run.trials} == table["trials"]
    assert {"COMPLETE", "PRUNED", "FAILED"} == {trial.state for trial in run.trials}
    assert run.best.number == 0


def test_a_run_is_listed_and_shown(
    kept: tuple[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    root, table = kept
    (row,) = experiment.history(root).to_dict("records")
    assert (row["run"], row["state"], row["user"]) == (table["id"], table["state"], table["user"])
    assert row["best"] == min(t["value"] for t in table["trials"].values() if t["value"])
    assert main(["show", f"{root}/line", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    trials = {str(t["number"]): (t["state"], t["params"]) for t in shown["trials"]}
    expected = {number: (t["state"], t["params"]) for number, t in table["trials"].items()}
    assert trials == expected
    assert Path(experiment.load(f"{root}/line").report()).stat().st_size > 10_000


def test_a_run_is_resumed_by_its_own_program(
    kept: tuple[str, dict[str, Any]], spark: SparkSession
) -> None:
    root, table = kept
    shutil.copytree(f"{root}/line", f"{root}/again")
    written = json.loads(Path(root, "line/source/program.json").read_text())["python"]
    own = written == f"{sys.version_info.major}.{sys.version_info.minor}"
    run = experiment.resume(
        f"{root}/again",
        train=None if own else train,
        num_trials=7,
        retry="failed",
        spark=spark,
        progress=False,
    )
    trials = {str(trial.number): values_of(trial) for trial in run.trials}
    failed = {n: t for n, t in table["trials"].items() if t["state"] == "FAILED"}
    for number, trial in table["trials"].items():
        if number not in failed:
            assert trials[number] == trial
    assert [(trials[n]["state"], trials[n]["attempts"]) for n in failed] == [("FAILED", 2)]
    added = [trials[str(number)] for number in (5, 6)]
    assert [trial["params"]["learning_rate"] for trial in added] == [0.6, 0.2]
    assert added[0]["value"] == pytest.approx((2 * 0.4**4) ** 2)
    compared = experiment.compare([f"{root}/line", run]).to_pandas()
    assert compared.loc[("result", "trials")].tolist() == [5, 7]


def test_a_trial_is_verified_by_the_code_that_its_run_has_kept(
    kept: tuple[str, dict[str, Any]], spark: SparkSession
) -> None:
    root, table = kept
    program = json.loads(Path(root, "line/source/program.json").read_text())
    own = program["python"] == ".".join(map(str, sys.version_info[:2]))
    options: dict[str, Any] = {} if own else {"train": train}
    verification = experiment.verify(
        f"{root}/line", trial=4, spark=spark, progress=False, **options
    )
    assert verification.verdict == "equal", str(verification)
    assert verification.compared.num_steps == len(table["trials"]["4"]["reports"])
    assert "checkpoints/000004/slope.txt" in verification.compared.files
    # Nothing is known of the rows of versions that were trained before rows were recorded.
    (answer,) = models.affected([1], key="id", root=root)
    assert answer.answer == "unknown"


def test_checkpoints_and_the_registry_are_read(kept: tuple[str, dict[str, Any]]) -> None:
    root, table = kept
    best = experiment.load(f"{root}/line").best
    (kept_checkpoint,) = checkpoints.committed(best.path)
    assert Path(kept_checkpoint.url, "slope.txt").read_text() == "1.875"
    version = models.get("line", alias="stable", root=root)
    assert (version.version, version.run, version.trial) == (1, "line", 0)
    assert version.metrics == table["trials"]["0"]["metrics"]


def test_the_model_of_a_trial_is_loaded(kept: tuple[str, dict[str, Any]]) -> None:
    keras = pytest.importorskip("keras")
    root, table = kept
    best = experiment.load(f"{root}/line").best
    file = Path(best.artifact("model"))
    assert hashlib.sha256(file.read_bytes()).hexdigest() == table["model_sha256"]
    with zipfile.ZipFile(file) as archive:
        written = json.loads(archive.read("metadata.json"))["keras_version"]
    if parts_of(keras.__version__)[:2] < parts_of(written)[:2]:
        pytest.skip(f"a Keras older than {written} need not load its models")
    assert np.asarray(best.model()(np.array([[3.0]]))).tolist() == [[6.0]]
