"""Trials on Spark are verified. An undisturbed process without Spark tells the right weights."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.cli.main import main
from tests.helpers.runs import quiet

pytestmark = pytest.mark.slow

MODEL = """
import random

import numpy as np


def descend(rate, report):
    x = np.random.normal(size=(64, 5)).astype(np.float32)
    y = x @ np.arange(5, dtype=np.float32) + np.float32(random.random())
    weights = np.zeros(5, np.float32)
    for step in range(6):
        weights -= np.float32(rate) * (x.T @ (x @ weights - y)) / np.float32(len(x))
        report(float(((x @ weights - y) ** 2).mean()), step)
    return weights
"""

# Without sparkdl: the seeds are set as the documentation says.
ALONE = """
import hashlib, json, random, sys
import numpy as np
import verified_model

seed = int(sys.argv[1])
random.seed(seed)
np.random.seed(seed)
losses = []
weights = verified_model.descend(0.1, lambda loss, step: losses.append(loss))
print(json.dumps([losses, hashlib.sha256(weights.tobytes()).hexdigest()]))
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "verified_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    import verified_model  # type: ignore[import-not-found]

    yield verified_model
    sys.modules.pop("verified_model", None)


def test_a_trial_is_proved_and_an_undisturbed_process_has_its_weights(
    spark: SparkSession, root: str, model: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def train(rate: float) -> dict[str, Any]:
        import numpy as np

        from sparkdl import context

        weights = model.descend(rate, lambda loss, step: context.report({"loss": loss}, step=step))
        np.save("weights.npy", weights)
        return {"weights": "weights.npy"}

    run = experiment.launch(
        train, {"rate": [0.2, 0.1]}, **quiet(root, metric="loss", direction="min")
    )
    trial = run.trials[1]
    seed = str(trial.seed)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, seed],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    losses, digest = json.loads(done.stdout)
    # Of a verification that is equal, the run itself has what the undisturbed process has.
    assert main(["verify", run.path, "--trial", "1", "--json"]) == 0
    verification = json.loads(capfd.readouterr().out)
    assert verification["verdict"] == "equal"
    assert verification["compared"]["num_steps"] == 6
    (file,) = verification["compared"]["files"]
    import numpy as np

    weights = np.load(Path(trial.path, file))
    assert hashlib.sha256(weights.tobytes()).hexdigest() == digest
    assert [value for _, value in trial.reported_steps()] == losses
    # Another learning rate is found, at its first step, with the size of the difference.
    other = experiment.verify(run, trial=1, train=lambda rate: train(rate * 1.001), progress=False)
    assert [str(cause.kind) for cause in other.causes] == ["code"]
    again = experiment.load(other.trainings[0]).trials[1]
    gaps = np.abs(np.load(Path(again.path, file)) - weights)
    (of_file,) = [one for one in other.mismatches if one.what.startswith("file ")]
    assert of_file.largest == gaps.max() > 0
    assert other.mismatches[0].step == 0
    assert main(["show", run.path]) == 0


def test_a_verification_reads_the_version_of_a_table_that_the_trial_has_read(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    deltalake = pytest.importorskip("deltalake")
    import pyarrow as pa

    table = str(tmp_path / "table")
    deltalake.write_deltalake(table, pa.table({"x": [1, 2, 3]}))

    def train() -> dict[str, float]:
        from sparkdl import data

        rows = data.delta(table, batch_size_per_worker=8).as_numpy()
        return {"total": float(sum(batch.sum() for batch in rows))}

    run = experiment.launch(train, **quiet(root))
    deltalake.write_deltalake(table, pa.table({"x": [100]}), mode="append")
    assert experiment.verify(run, progress=False).is_equal
    # A run that is reproduced reads the newest version, and says so.
    assert experiment.reproduce(run, progress=False).result == {"total": 106.0}


def test_rows_that_are_passed_again_are_a_cause_unless_their_hash_is_the_same(
    spark: SparkSession, root: str
) -> None:
    def train() -> dict[str, float]:
        from sparkdl import data

        rows = data.dataset(batch_size_per_worker=8).as_numpy()
        return {"total": float(sum(batch.sum() for batch in rows))}

    rows, others = spark.range(20), spark.range(1, 21)
    for fingerprint, subject in ((False, "data rows"), (True, "data train, hash")):
        run = experiment.launch(train, data=rows, fingerprint=fingerprint, **quiet(root))
        assert experiment.verify(run, data=rows, progress=False).is_equal
        found = experiment.verify(run, data=others, repeats=1, progress=False)
        assert [one.what for one in found.mismatches] == ["returned total"]
        (cause,) = found.causes
        assert cause.kind == "data" and cause.text.startswith(subject)
