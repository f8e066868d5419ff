"""Several drivers want the same run: one at a time has it, and no finished trial runs again."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkdl.files.layout import RunPaths
from sparkdl.runs.events import TrialChanged
from sparkdl.runs.history import load
from sparkdl.runs.journal import read_journal
from tests.helpers.processes import eventually

pytestmark = pytest.mark.slow

NUM_TRIALS = 60
NUM_FREE = 40  # The others wait for the test, so that no run ends before its driver is disturbed.

PROGRAM = """
import contextlib, os, socket, sys, time
root, host = sys.argv[1:]
socket.gethostname = lambda: host
from sparkdl.errors import RunExistsError, RunStoppedError
from sparkdl.runner.loop import trial_loop
from sparkdl.runner.pipeline.execute import description_of
from sparkdl.runner.pipeline.prepare import prepare
from sparkdl.runs import owner
from sparkdl.runs.opening import open_run
from tests.helpers.in_memory_cluster import InMemoryCluster, returned
from tests.helpers.loops import _loop, packed, request_of
owner.BEAT_S, trial_loop.LOCAL_POLL_S = 0.7, 0.01

def train(attempt):
    time.sleep(0.1)
    while attempt.number >= {num_free} and not os.path.exists(f"{root}/go"):
        time.sleep(0.01)
    return returned(float(attempt.number))

print("ready", flush=True)
sys.stdin.readline()
while True:
    prepared = prepare(request_of({num_trials}), packed(), InMemoryCluster(train))
    try:
        opened = open_run(root, description_of(prepared), "resume")
    except RunExistsError:
        time.sleep(0.05)
        continue
    if opened.finished_before:
        sys.exit(0)
    print("owner", opened.owner.number, flush=True)
    loop = _loop(prepared, opened)
    with contextlib.suppress(RunStoppedError):
        loop.execute()
    print(loop.run.reason or loop.run.state, flush=True)
    if loop.run.reason:
        sys.exit(3)
"""


class Drivers:
    """Drivers in processes of their own, each on a host of its own."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.all: list[subprocess.Popen[str]] = []

    def start(self, *hosts: str) -> list[subprocess.Popen[str]]:
        """Start drivers at the same moment."""
        program = PROGRAM.replace("{num_trials}", str(NUM_TRIALS))
        program = program.replace("{num_free}", str(NUM_FREE))
        drivers = [
            subprocess.Popen(
                [sys.executable, "-c", program, self.root, host],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for host in hosts
        ]
        self.all += drivers
        for driver in drivers:
            assert driver.stdout and driver.stdout.readline() == "ready\n"
        for driver in drivers:
            assert driver.stdin
            driver.stdin.write("go\n")
            driver.stdin.flush()
        return drivers

    def owner(self) -> subprocess.Popen[str]:
        """The driver that owns the run now."""
        folder = Path(self.root, "run", "owner")

        def newest() -> int:
            numbers = [int(p.stem) for p in folder.glob("*.json")]
            claim = folder / f"{max(numbers, default=0)}.json"
            return int(json.loads(claim.read_text())["pid"]) if numbers else 0

        assert eventually(newest)
        pid = newest()
        return next(driver for driver in self.all if driver.pid == pid)

    def let_go(self) -> None:
        """Let the last trials end."""
        Path(self.root, "go").touch()

    def num_complete(self) -> int:
        """The number of trials that have completed, as the journal tells it."""
        return len(completed(self.root))


def completed(root: str) -> list[int]:
    journal = RunPaths(f"{root}/run").journal
    events = [event for event in read_journal(journal) if isinstance(event, TrialChanged)]
    return [event.number for event in events if event.state == "COMPLETE"]


@pytest.fixture
def drivers(root: str) -> Iterator[Drivers]:
    started = Drivers(root)
    yield started
    for driver in started.all:
        driver.kill()
        driver.communicate()


def check_finished(root: str) -> None:
    run = load(f"{root}/run")
    assert run.state == "COMPLETE"
    assert [trial.value for trial in run.trials] == [float(n) for n in range(NUM_TRIALS)]
    assert set(Counter(completed(root)).values()) == {1}  # Each once.


def test_killed_drivers_are_followed_by_one_driver_each(drivers: Drivers) -> None:
    drivers.start(*"abab")
    killed: list[subprocess.Popen[str]] = []
    for count in (10, 20):
        assert eventually(lambda count=count: drivers.num_complete() >= count)  # type: ignore[misc]
        assert eventually(lambda: drivers.owner() not in killed)
        killed.append(drivers.owner())
        killed[-1].kill()
    drivers.let_go()
    assert eventually(lambda: drivers.num_complete() == NUM_TRIALS)
    ends = [driver.wait(120) for driver in drivers.all]
    assert sorted(ends) == [-signal.SIGKILL] * 2 + [0] * 2
    check_finished(drivers.root)


def test_driver_that_was_suspended_stops_when_it_wakes_up(drivers: Drivers) -> None:
    drivers.start("a")
    assert eventually(lambda: drivers.num_complete() >= 10)
    suspended = drivers.owner()
    os.kill(suspended.pid, signal.SIGSTOP)
    (other,) = drivers.start("b")
    assert eventually(lambda: drivers.owner() is other)
    drivers.let_go()
    time.sleep(0.2)
    os.kill(suspended.pid, signal.SIGCONT)
    output, _ = suspended.communicate(timeout=120)
    assert output == "owner 1\nanother driver has taken over this run\n"
    assert (suspended.returncode, other.wait(120)) == (3, 0)
    check_finished(drivers.root)
