"""However a driver ends, nothing of its run stays, and what was finished is kept."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparkdl import experiment
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
    experiment.launch(train, {{"x": list(range(8))}}, root={root!r}, run_id="ends")
"""


def start(tmp_path: Path, master: str) -> "subprocess.Popen[str]":
    (tmp_path / "calls").mkdir()
    program = tmp_path / "program.py"
    program.write_text(
        PROGRAM.format(calls=str(tmp_path / "calls"), root=str(tmp_path / "runs"), master=master)
    )
    process = subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    # Two that end and two that go on; which two Spark starts first is its own affair.
    if not eventually(lambda: len(list((tmp_path / "calls").iterdir())) >= 4, 120):
        process.kill()
        pytest.fail(f"it did not get so far:\n{process.communicate()[0]}")
    assert processes_of("ends")
    return process


def test_ctrl_c_stops_cleanly_and_says_how_to_look(tmp_path: Path) -> None:
    process = start(tmp_path, "local[2]")
    began = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert time.monotonic() - began < 20
    assert process.returncode != 0
    path = str(tmp_path / "runs" / "ends")
    assert f"experiment.load({path!r})" in out
    run = experiment.load(path)
    assert run.state == "CANCELLED"
    assert run.reason == "interrupted"
    assert set(run.counts()) == {"COMPLETE", "CANCELLED"}
    assert run.counts()["COMPLETE"] >= 1
    assert eventually(lambda: not processes_of("ends"), 15)


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_kill_9_leaves_no_process_and_a_readable_run(tmp_path: Path, master: str) -> None:
    process = start(tmp_path, master)
    path = tmp_path / "runs/ends"
    assert eventually(lambda: journal_text(path).count('"state": "RUNNING"') >= 4)
    process.kill()
    process.communicate()
    assert eventually(lambda: not processes_of("ends"), 60)
    run = experiment.load(str(tmp_path / "runs" / "ends"))
    assert run.state == "FAILED"
    assert "its driver ended" in (run.reason or "")
    assert run.counts()["COMPLETE"] >= 1
    assert run.counts()["LOST"] >= 1
    assert all(event["event"] for event in journal_lines(path))
