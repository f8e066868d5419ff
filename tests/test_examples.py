"""The examples as a user runs them: plain Python, without any setting of Spark."""

import difflib
import importlib.util
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.helpers.spark import JAVA_OPTIONS

EXAMPLES = Path(__file__).parents[1] / "examples"
PROGRAM_S = 240.0
# Embedded Spark has as many slots as there are cores.
TWO_CORES = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two workers need two slots")


def needs(package: str) -> pytest.MarkDecorator:
    """Return a mark that skips an example whose framework is not installed."""
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed")


# Those that are started as programs: one on the default master, one on the master that it chooses.
STARTED = ("allreduce.py", "parameter_server.py")


def _run(name: str, folder: Path) -> str:
    """Run an example; return what it printed. Kill its processes if it takes too long."""
    outer = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK", "PYSPARK"))}
    env = {**outer, "SPARK_LOCAL_IP": "127.0.0.1", "SPARKDL_ROOT": str(folder / "runs")}
    env["SPARK_SUBMIT_OPTS"] = JAVA_OPTIONS
    command = [sys.executable, EXAMPLES / name]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=folder, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=PROGRAM_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # The process and its child, Java.
            raise
    assert process.returncode == 0, err
    return out


@pytest.fixture
def run_example(
    four_executors: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., str]:
    """Runs an example in an application that is there already; returns what it printed."""

    class Shared(SparkContext):
        def __new__(cls, conf: Any = None) -> Any:
            return four_executors.sparkContext

    def run(name: str, *arguments: str) -> str:
        if name in STARTED:
            return _run(name, tmp_path)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("SPARKDL_ROOT", str(tmp_path / "runs"))
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "pyspark-shell")  # Some set it where it is not.
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        monkeypatch.setattr(pyspark, "SparkContext", Shared)
        monkeypatch.setattr(SparkSession, "stop", lambda session: None)
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "single_process.py",
        pytest.param("allreduce.py", marks=TWO_CORES),
        "parameter_server.py",
        pytest.param("dataframe.py", marks=TWO_CORES),
        pytest.param("jax_digits.py", marks=[TWO_CORES, needs("jax")]),
        pytest.param("parquet.py", marks=TWO_CORES),
        "predict.py",
        "export_model.py",
        "search.py",
        pytest.param("torch_digits.py", marks=[TWO_CORES, needs("torch")]),
        "hops/grid_digits.py",
        pytest.param("horovod/elastic_digits.py", marks=TWO_CORES),
        pytest.param("horovod/keras_digits.py", marks=TWO_CORES),
        pytest.param("horovod/session_digits.py", marks=TWO_CORES),
        pytest.param("horovod/tape_digits.py", marks=TWO_CORES),
        "tfos/digits_spark.py",
        "tfos/digits_tensorflow.py",
        "tfos/servers_digits.py",
        "tfos/stream_digits.py",
    ],
)
@pytest.mark.filterwarnings("default")
def test_an_example_learns(name: str, run_example: Callable[[str], str], tmp_path: Path) -> None:
    printed = run_example(name)
    accuracy = re.compile(r"^accuracy (0\.\d+|1\.0+) on unseen digits$", re.MULTILINE)
    match = accuracy.search(printed)
    assert match, printed
    assert float(match[1]) > 0.93
    assert len(list(tmp_path.glob("runs/*/run.json"))) == (name != "single_process.py")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resume.py"])
@pytest.mark.filterwarnings("default")
def test_resume_runs_only_the_failed_trial_again(
    name: str, run_example: Callable[[str], str]
) -> None:
    printed = run_example(name)
    counts = re.findall(r"^Run neighbors-\S+: COMPLETE, (\d) of 3 trials complete", printed, re.M)
    assert counts == ["2", "3"], printed
    assert "attempts of each trial: [1, 1, 2]" in printed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["callbacks.py"])
@pytest.mark.filterwarnings("default")
def test_a_run_is_followed(
    name: str, run_example: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("WEBHOOK_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)
    printed = run_example(name)
    assert re.search(r"^best so far: trial 1 with {'strength': 1\.0}: 0\.9", printed, re.M), printed
    assert re.search(r"^digits-\S+ has ended: 2 of 2 trials complete$", printed, re.M)
    accuracy = re.search(r"^accuracy (0\.\d+) on unseen digits$", printed, re.M)
    assert accuracy and float(accuracy[1]) > 0.93


@pytest.mark.slow
@pytest.mark.parametrize("name", ["compare.py"])
@pytest.mark.filterwarnings("default")
def test_runs_are_found_again_and_compared(
    name: str, run_example: Callable[[str], str], tmp_path: Path
) -> None:
    printed = run_example(name)
    assert len(re.findall(r"^\d +(neighbors|perceptron)-\S+ .*\[candidate\]", printed, re.M)) == 2
    assert "a hundredth of the other's memory" in printed
    assert re.search(r"^result +state +COMPLETE +COMPLETE$", printed, re.M)
    assert re.search(r"^parameters +num_neighbors .*\n +power .*\n +alpha ", printed, re.M)
    assert "Best value so far" in (tmp_path / "compare.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tfos/linear_regression.py"])
@pytest.mark.filterwarnings("default")
def test_a_pipeline_finds_its_weights(name: str, run_example: Callable[..., str]) -> None:
    # In four partitions the rows come in another order: ten epochs end a little too far away.
    printed = run_example(name, "--epochs", "20")
    found = re.search(r"^weights (\S+) and (\S+);", printed, re.MULTILINE)
    assert found, printed
    assert float(found[1]) == pytest.approx(3.14, abs=0.02)
    assert float(found[2]) == pytest.approx(1.618, abs=0.02)


def test_four_lines_distribute_a_program() -> None:
    single, distributed = (
        (EXAMPLES / name).read_text().splitlines() for name in ("single_process.py", "allreduce.py")
    )
    changes = [line for line in difflib.ndiff(single, distributed) if line[2:].strip()]
    added = [line[2:].strip() for line in changes if line.startswith("+ ")]
    assert added == [
        "from sparkdl import distribute, experiment",
        "with distribute.strategy().scope():",
        "model = build_model()",
        "accuracy = experiment.allreduce(train, num_workers=2).result",
    ]
    assert sum(line.startswith("- ") for line in changes) == 2
