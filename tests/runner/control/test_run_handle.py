"""Runs in the background, at the end of a program that does not wait for them."""

import subprocess
import sys
from pathlib import Path

import pytest

from sparkdl.runs.history import load

PROGRAM = """
import atexit, sys, time
from sparkdl.runner.pipeline.execute import execute
from tests.helpers.in_memory_cluster import InMemoryCluster, raised, returned
from tests.helpers.loops import request_of

def outcome(attempt):
    time.sleep(0.1)
    return raised("ValueError: no data") if attempt.number == BAD else returned(1.0)

atexit.register(print, "an exit function of before")
options = {"wait": False, "progress": True, "parallelism": 2, "max_failed_trials": 0}
run = execute(request_of(6, root=sys.argv[1], **options), InMemoryCluster(outcome))
atexit.register(print, "an exit function of after")
"""


@pytest.mark.parametrize(
    ("bad", "then", "code", "state"),
    [
        ("None", "", 0, "COMPLETE"),
        ("5", "", 1, "FAILED"),
        ("0", "while run.state == 'RUNNING': time.sleep(0.01)", 0, "FAILED"),
        ("None", "run.cancel()", 0, "CANCELLED"),
    ],
)
def test_program_that_ends_before_its_run(
    root: str, bad: str, then: str, code: int, state: str
) -> None:
    """Python waits for the run; a failure that the program cannot have seen is its exit code."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("BAD", bad) + then, root],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == code, done.stderr
    run = load(f"{root}/run")
    assert run.state == state
    assert "cannot schedule new futures" not in done.stderr + str(run.reason)
    for word in ("before", "after"):
        assert done.stdout.count(f"an exit function of {word}") == 1
    if not then:
        assert "The program has ended, and Python waits for the end of run run" in done.stdout
        assert run.counts()["COMPLETE"] == 6 - code
    if code and not then:
        assert "RunStoppedError: launch run ended FAILED" in done.stderr
