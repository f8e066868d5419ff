"""Runs on Spark are reproduced from their directories, by other processes and elsewhere."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.files import storage
from tests.helpers.runs import quiet

pytestmark = pytest.mark.slow

MODEL = """
import numpy as np


def loss_of(rate, x, y):
    weights = np.zeros(x.shape[1])
    for _ in range(50):
        weights -= rate * x.T @ (x @ weights - y) / len(y)
    return float(((x @ weights - y) ** 2).mean())
"""

PROGRAM = """
import random
from pathlib import Path

import numpy as np
import own_linear
from sparkdl import context, experiment


def train(rate):
    x = np.random.normal(size=(40, 3))
    y = x @ np.array([1.0, 2.0, random.random()])
    units = int(Path(context.resource("config.txt")).read_text())
    return {"loss": own_linear.loss_of(rate, x, y), "units": units}


experiment.launch(train, {"rate": [0.1, 0.2]}, metric="loss", direction="min", root="runs",
                  versioned_resources=["config.txt"], run_id="first")
"""


def package(folder: Path, version: str) -> None:
    """Install a package without content."""
    shutil.rmtree(folder, ignore_errors=True)
    info = folder / f"toolbox-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: toolbox\nVersion: {version}\n")


def python(code: str, folder: Path, packages: Path) -> str:
    paths = [str(packages), str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.usefixtures("own_application")
def test_a_run_is_reproduced_from_its_directory_in_a_fresh_clone(tmp_path: Path) -> None:
    first, clone, packages = tmp_path / "first", tmp_path / "clone", tmp_path / "packages"
    first.mkdir()
    (first / "own_linear.py").write_text(MODEL)
    (first / "program.py").write_text(PROGRAM)
    (first / "config.txt").write_text("8")
    package(packages, "1.0")
    python("import runpy; runpy.run_path('program.py', run_name='__main__')", first, packages)
    run = experiment.load(first / "runs/first")
    assert run.counts() == {"COMPLETE": 2}
    # Elsewhere, with other code and another package, and without the first folder.
    shutil.copytree(run.path, clone / "copied/first")
    (clone / "own_linear.py").write_text(MODEL.replace("range(50)", "range(60)"))
    shutil.move(first, tmp_path / "gone")
    package(packages, "2.0")
    code = "from sparkdl.cli.main import main; assert main(['reproduce', 'copied/first']) == 0"
    out = python(code, clone, packages)
    (path,) = [path for path in (clone / "copied").iterdir() if path.name != "first"]
    again = experiment.load(path)
    assert again.reproduces == "first"
    outputs = [trial.outputs for trial in again.trials]
    assert outputs == [trial.outputs for trial in run.trials]
    assert [output["units"] for output in outputs] == [8, 8]
    before, _, _ = out.partition("Everything is kept in")
    assert "package toolbox (driver): 1.0 before, 2.0 now" in before
    assert "code own_linear (the run uses the kept code): 1 other line(s) before" in before
    assert "-    for _ in range(50):\n      +    for _ in range(60):" in before
    toolbox = [one for one in again.differences if one.subject == "package toolbox"]
    assert [(one.where, one.now) for one in toolbox] == [("driver, executors", "2.0")]


def test_a_gang_with_rows_is_reproduced_and_other_rows_are_named(
    spark: SparkSession, root: str
) -> None:
    def train() -> float:
        from sparkdl import context

        return context.seed + context.rank

    rows = spark.range(100)
    run = experiment.allreduce(train, num_workers=2, data=rows, fingerprint=True, **quiet(root))
    again = experiment.reproduce(run, data=rows.repartition(5), progress=False)
    assert again.result == run.result
    assert again.differences == []
    other = experiment.reproduce(run, data=spark.range(1, 101), progress=False)
    (difference,) = other.differences
    assert difference.subject == "data train, hash"


# The S3 fixture comes first, because Spark's workers inherit its environment variables.
def test_resources_reach_trials_on_s3_and_the_run_is_reproduced_there(
    s3: str, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/animals.txt").write_text("cat dog")

    def train(x: float) -> dict[str, float]:
        from pathlib import Path

        from sparkdl import context

        path = Path(context.resource("labels"), "animals.txt")
        path.write_text(path.read_text() + " owl")
        again = Path(context.resource("labels/animals.txt"))
        return {"length": len(again.read_text()), "x": x + context.seed}

    resources = [str(tmp_path / "labels")]
    run = experiment.launch(
        train, {"x": [1.0]}, **quiet(f"{s3}/reproduced", versioned_resources=resources)
    )
    again = experiment.reproduce(run, progress=False)
    assert again.path.startswith(f"{s3}/reproduced/")
    assert again.trials[0].outputs == run.trials[0].outputs
    assert again.trials[0].outputs["length"] == len("cat dog")
    assert "resources" not in storage.list_names(again.trials[0].path)
    assert again.trials[0].debug() == run.trials[0].outputs


def test_executors_are_described_and_trials_are_debugged(spark: SparkSession, root: str) -> None:
    def train(x: float) -> float:
        import random

        return x * random.random()

    run = experiment.launch(train, {"x": [1.0, 2.0]}, **quiet(root))
    (executor,) = json.loads(Path(run.path, "executors.json").read_text())
    assert executor["cores"] == os.cpu_count()
    assert executor["packages"] == {}
    trial = run.trials[1]
    assert trial.debug() == trial.value
    assert experiment.try_one(train, trial.params, seed=trial.seed) == trial.value
