"""The example as a batch job: on a real standalone cluster, and on embedded Spark.

The same seed gives the same numbers wherever it runs: each trial has the same share of cores.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkdl import experiment
from sparkdl.runs import Run
from tests.helpers.spark import JAVA_OPTIONS
from tests.helpers.standalone import SPARK

EXAMPLE = Path(__file__).parents[2] / "examples" / "grid_search.py"
PROGRAM_S = 300.0

pytestmark = pytest.mark.slow

ALL_FAIL = """
from sparkdl import experiment

def train(x):
    raise ValueError(f"no data for {x}")

experiment.launch(train, {"x": [1, 2]})
"""

ONE_FAILS = """
from sparkdl import experiment

def train(x):
    if x == 2:
        raise ValueError(f"no data for {x}")
    return x

run = experiment.launch(train, {"x": [1, 2]})
run.raise_for_failures()
"""


TIMES_OUT = """
import time
from sparkdl import experiment

def train(x):
    time.sleep(60 * x)
    return x

experiment.launch(train, {"x": [0, 1]}, timeout_s=5)
"""

NOT_WAITED_FOR = """
import time
from sparkdl import experiment

def train(x):
    time.sleep(1)
    return x

experiment.launch(train, {"x": [1, 2, 3, 4]}, wait=False)
"""


def _environment(**more: str) -> dict[str, str]:
    """This process's environment, without what a person may have set for Spark or for us."""
    outer = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK", "PYSPARK"))}
    ours = {
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_SUBMIT_OPTS": JAVA_OPTIONS,
    }
    return {**outer, **ours, **more}


def _submit(master: str, program: Path, root: Path) -> "subprocess.CompletedProcess[str]":
    """Submit a program; return what spark-submit has printed, and its exit code."""
    command = [SPARK / "bin" / "spark-submit", "--master", master]
    command += ["--conf", "spark.ui.enabled=false"]
    command += ["--conf", f"spark.executor.extraJavaOptions={JAVA_OPTIONS}", program]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command,
        env=_environment(SPARKDL_ROOT=str(root)),
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=PROGRAM_S)
        except BaseException:
            # Java and the program, a child of it.
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _only_run(root: Path) -> Run:
    (path,) = experiment.history(str(root))["path"]
    return experiment.load(path)


def _outputs(run: Run) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Each trial's accuracy and loss by its parameters."""
    return {tuple(trial.params.items()): trial.outputs for trial in run.trials}


def _check_example(done: "subprocess.CompletedProcess[str]", run: Run) -> None:
    assert done.returncode == 0, done.stderr
    table = done.stdout[done.stdout.rindex(f"Run {run.id}") :]
    assert "6 of 6 trials complete" in table
    assert run.counts() == {"COMPLETE": 6}
    for trial in run.trials:
        assert f"{trial.value:.5g}" in table


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The example on embedded Spark, which the others are compared with."""
    root = tmp_path_factory.mktemp("embedded")
    done = _submit("local[2]", EXAMPLE, root)
    run = _only_run(root)
    _check_example(done, run)
    return run


@pytest.mark.usefixtures("own_application")
def test_example_on_a_standalone_cluster(standalone: str, embedded: Run, tmp_path: Path) -> None:
    done = _submit(standalone, EXAMPLE, tmp_path)
    run = _only_run(tmp_path)
    _check_example(done, run)
    assert _outputs(run) == _outputs(embedded)


@pytest.mark.parametrize(
    ("text", "error", "state"),
    [
        (ALL_FAIL, "AllTrialsFailedError: no trial of run", "FAILED"),
        (ONE_FAILS, "TrialFailedError: 1 of 2 trials", "COMPLETE"),
        (TIMES_OUT, "RunStoppedError: launch train-", "CANCELLED"),
    ],
    ids=["all trials", "one trial", "timeout"],
)
def test_a_failure_is_the_exit_code(tmp_path: Path, text: str, error: str, state: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(text)
    root = tmp_path / "runs"
    done = _submit("local[2]", program, root)
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert error in said
    assert "ValueError: no data for" in said or state == "CANCELLED"
    assert _only_run(root).state == state


def test_run_that_a_program_does_not_wait_for_ends_before_python(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(NOT_WAITED_FOR)
    done = _submit("local[2]", program, tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    assert "The program has ended, and Python waits for the end of run train-" in done.stdout
    assert _only_run(tmp_path / "runs").counts() == {"COMPLETE": 4}
