"""A batch job on embedded Spark is controlled from other processes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.errors import RunStoppedError
from sparkdl.runs import Run
from tests.helpers.loops import events
from tests.helpers.processes import eventually, processes_of
from tests.helpers.runs import quiet
from tests.helpers.spark import JAVA_OPTIONS
from tests.helpers.standalone import SPARK

pytestmark = pytest.mark.slow

PROGRAM = """
import time
from sparkdl import experiment

def train(seconds):
    time.sleep(seconds)
    return seconds

experiment.launch(train, {"seconds": [1.0, 1.1, 1.2]}, parallelism=1, run_id="nightly")
"""


@pytest.fixture
def submitted(root: str, tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A program that spark-submit runs."""
    program = tmp_path / "nightly.py"
    program.write_text(PROGRAM)
    command = [SPARK / "bin" / "spark-submit", "--master", "local[4]"]
    command += ["--conf", "spark.ui.enabled=false", program]
    outer = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK", "PYSPARK"))}
    settings = {
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": JAVA_OPTIONS,
        "PYSPARK_PYTHON": sys.executable,
        "SPARKDL_ROOT": root,
    }
    process = subprocess.Popen(
        command,
        env={**outer, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def sparkdl(root: str, *words: str) -> dict[str, Any]:
    """Run the command in a process of its own; return its answer and its pid."""
    call = "import sys; from sparkdl.cli.main import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", call, *words, "--json"],
        env={**os.environ, "SPARKDL_ROOT": root},
        stdout=subprocess.PIPE,
        text=True,
    )
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out
    return {**json.loads(out), "pid": process.pid}


def num_starts(run: Run) -> int:
    return sum(event["state"] == "RUNNING" for event in events(run, "trial"))


@pytest.mark.usefixtures("own_application")
def test_batch_job_is_paused_extended_and_cancelled_from_other_processes(
    root: str, submitted: "subprocess.Popen[str]"
) -> None:
    path = Path(root, "nightly")
    first = path / "trials" / "0" / "params.json"
    assert eventually(lambda: first.exists() or submitted.poll() is not None)
    assert submitted.poll() is None, submitted.communicate()
    os.environ["SPARKDL_ROOT"] = root
    try:
        run = experiment.load()
    finally:
        del os.environ["SPARKDL_ROOT"]
    assert run.id == "nightly"

    assert eventually(lambda: num_starts(run))
    run.pause()
    assert eventually(lambda: experiment.load(path).counts().get("RUNNING", 0) == 0)
    before = num_starts(run)
    for number in range(4):
        run.enqueue({"seconds": 1.5 + number / 10})
    added = sparkdl(root, "enqueue", "nightly", "seconds=600")
    raised = sparkdl(root, "set", "nightly", "parallelism=3")
    assert num_starts(run) == before  # Nothing has started since.
    assert len(experiment.load(path).trials) == 8

    run.unpause()
    assert eventually(lambda: num_starts(run) >= before + 2)
    assert eventually(lambda: experiment.load(path).counts().get("COMPLETE") == 7)
    assert eventually(lambda: experiment.load(path).counts().get("RUNNING") == 1)
    cancelled = sparkdl(root, "cancel", "nightly")
    with pytest.raises(RunStoppedError, match=r"ended CANCELLED \(cancelled by ") as caught:
        run.wait()
    assert caught.value.run is run
    out, err = submitted.communicate(timeout=240)
    assert submitted.returncode == 1
    printed = out + err
    assert "RunStoppedError: launch nightly ended CANCELLED (cancelled by " in printed
    assert ": pause()" in printed
    assert eventually(lambda: processes_of("nightly") == [])

    assert run.counts() == {"COMPLETE": 7, "CANCELLED": 1}
    assert [trial.params["seconds"] for trial in run.trials][-1] == 600
    told = events(run, "control")
    assert [event["action"] for event in told] == [
        *("pause", *["enqueue"] * 5, "set", "unpause", "cancel"),
    ]
    assert [event["pid"] for event in told] == [
        *[os.getpid()] * 5,
        *(added["pid"], raised["pid"], os.getpid(), cancelled["pid"]),
    ]
    spans = sorted(trial.spans[0] for trial in run.trials)
    together = [sum(a <= begin < (b or begin) for a, b in spans) for begin, _ in spans]
    assert max(together) == 3


def test_pause_takes_back_a_trial_that_waits_inside_spark(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"

    def train(x: int) -> int:
        while not gate.exists():
            time.sleep(0.02)
        return x

    run = experiment.launch(train, {"x": [0, 1, 2, 3]}, wait=False, **quiet(root))
    tracker = spark.sparkContext.statusTracker()
    try:
        assert eventually(lambda: len(tracker.getActiveJobsIds()) == 3)
        experiment.load(run.path).pause()
        gate.touch()
        assert eventually(lambda: run.counts().get("COMPLETE") == 2)
        assert eventually(lambda: not tracker.getActiveJobsIds())
        assert run.counts() == {"COMPLETE": 2, "WAITING": 2}
        run.unpause()
        run.wait()
    finally:
        run.cancel()
    assert [trial.attempts for trial in run.trials] == [1, 1, 1, 1]
    assert "LOST" not in [event["state"] for event in events(run, "trial")]
