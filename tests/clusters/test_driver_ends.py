"""However a driver ends, nothing of its run stays, and what was finished is kept."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from sparkdl import experiment
from sparkdl.runs.retry_choice import waits_again
from tests.helpers.processes import eventually, processes_of
from tests.helpers.runs import journal_lines, journal_text

pytestmark = pytest.mark.slow

PROGRAM = """
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession
from sparkdl import experiment

def train(x):
    Path(sys.argv[1] if len(sys.argv) > 1 else {calls!r}, f"call-{{x}}").touch()
    import subprocess
    subprocess.Popen(["sleep", "300"], start_new_session=True)
    time.sleep(0.2 if x < 2 else 300)
    return x

if __name__ == "__main__":
    builder = SparkSession.builder.master({master!r}).config("spark.ui.enabled", "false")
    builder.config("spark.executor.memory", "1g").getOrCreate()
    experiment.launch(train, {{"x": list(range(8))}}, root={root!r}, run_id={run_id!r})
"""


@pytest.fixture
def run_id() -> str:
    """An id of this test's own: other tests look for processes at the same time."""
    return f"ends-{uuid.uuid4().hex[:8]}"


def start(tmp_path: Path, run_id: str, master: str) -> "subprocess.Popen[str]":
    (tmp_path / "calls").mkdir()
    program = tmp_path / "program.py"
    calls, root = str(tmp_path / "calls"), str(tmp_path / "runs")
    program.write_text(PROGRAM.format(calls=calls, root=root, run_id=run_id, master=master))
    process = subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    # Two that end and two that go on; which two Spark starts first is its own affair.
    num_calls = lambda: len(list((tmp_path / "calls").iterdir()))  # noqa: E731
    if not eventually(lambda: num_calls() >= 4 and processes_of(run_id), 120):
        process.kill()
        pytest.fail(f"it did not get so far:\n{process.communicate()[0]}")
    return process


def test_ctrl_c_stops_cleanly_and_says_how_to_look(tmp_path: Path, run_id: str) -> None:
    process = start(tmp_path, run_id, "local[2]")
    began = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert time.monotonic() - began < 60
    assert process.returncode != 0
    path = str(tmp_path / "runs" / run_id)
    assert f"experiment.load({path!r})" in out
    run = experiment.load(path)
    assert run.state == "CANCELLED"
    assert run.reason == "interrupted"
    assert set(run.counts()) == {"COMPLETE", "CANCELLED"}
    assert run.counts()["COMPLETE"] >= 1
    assert eventually(lambda: not processes_of(run_id))


@pytest.mark.parametrize(
    "master", ["local[2]", pytest.param("local-cluster[2,1,1024]", marks=pytest.mark.thorough)]
)
def test_kill_9_leaves_no_process_and_a_readable_run(
    tmp_path: Path, run_id: str, master: str
) -> None:
    process = start(tmp_path, run_id, master)
    path = tmp_path / "runs" / run_id
    assert eventually(lambda: journal_text(path).count('"state": "RUNNING"') >= 4)
    assert eventually(lambda: '"state": "COMPLETE"' in journal_text(path))
    process.kill()
    process.communicate()
    assert eventually(lambda: not processes_of(run_id))
    run = experiment.load(str(tmp_path / "runs" / run_id))
    assert run.state == "FAILED"
    assert "its driver ended" in (run.reason or "")
    assert run.counts()["COMPLETE"] >= 1
    assert run.counts()["LOST"] >= 1
    assert all(event["event"] for event in journal_lines(path))


SPARK_ENDS = """
import os, signal, sys, time
from pathlib import Path
from pyspark.sql import SparkSession
from sparkdl import experiment
from sparkdl.errors import RunStoppedError

def train(x):
    Path(sys.argv[1] if len(sys.argv) > 1 else {calls!r}, f"call-{{x}}").touch()
    time.sleep(0 if x == 0 else 300)
    return x

if __name__ == "__main__":
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    jvm = spark.sparkContext._gateway.proc.pid
    values = {{"x": [0, 1, 2, 3]}}
    run = experiment.launch(train, values, root={root!r}, run_id={run_id!r}, wait=False)
    while run.counts().get("RUNNING") != 2 or not run.counts().get("COMPLETE"):
        time.sleep(0.1)
    {end}
    try:
        run.wait()
    except RunStoppedError as error:
        print("STOPPED", error.run.state, sorted(error.run.counts().items()))
        print(error)
"""


@pytest.mark.parametrize("end", ["spark.stop()", "os.kill(jvm, signal.SIGKILL)"])
def test_spark_that_ends_is_no_failure_of_the_trials(tmp_path: Path, run_id: str, end: str) -> None:
    (tmp_path / "calls").mkdir()
    program, root = tmp_path / "program.py", str(tmp_path / "runs")
    calls = str(tmp_path / "calls")
    program.write_text(SPARK_ENDS.format(calls=calls, root=root, run_id=run_id, end=end))
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=150
    )
    assert "STOPPED CANCELLED [('CANCELLED', 3), ('COMPLETE', 1)]" in done.stdout, done.stderr
    assert "Spark has ended: " in done.stdout
    assert done.returncode == 0
    run = experiment.load(f"{root}/{run_id}")
    assert (run.state, run.failed) == ("CANCELLED", [])
    assert [waits_again(trial) for trial in run.trials] == [False, True, True, True]
    assert eventually(lambda: not processes_of(run_id), 30)
