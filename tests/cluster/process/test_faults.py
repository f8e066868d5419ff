"""Faults that leave some processes of a trial alive and others not, on real executors."""

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import checkpoints, context, experiment
from sparkdl.host.os_processes import parent
from tests.helpers.processes import eventually, is_alive, jvm_of, processes_of
from tests.helpers.runs import quiet
from tests.helpers.spark import start_session

pytestmark = pytest.mark.slow


@pytest.fixture
def impatient(own_application: None) -> Iterator[SparkSession]:
    """Two executors, declared dead after seconds of silence."""
    session = start_session(
        "local-cluster[2,1,1024]",
        spark__executor__memory="1g",
        spark__network__timeout="6s",
        spark__executor__heartbeatInterval="1s",
        spark__storage__blockManagerHeartbeatTimeoutMs="6000",
        spark__network__timeoutInterval="1s",
    )
    yield session
    session.stop()


def events(run: Any, number: int) -> list[tuple[str, str | None]]:
    """The states of a trial, with their errors."""
    texts = [path.read_text() for path in sorted(Path(run.path).glob("journal*/*.jsonl"))]
    if Path(run.path, "journal.jsonl").exists():
        texts.append(Path(run.path, "journal.jsonl").read_text())
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    changes = [line for line in lines if line.get("event") == "trial"]
    return [(c["state"], c.get("error")) for c in changes if c["number"] == number]


@pytest.mark.thorough
def test_a_stalled_executor_whose_training_lives_on(
    impatient: SparkSession, root: str, tmp_path: Path
) -> None:
    """Its process commits checkpoints all the time, and the next attempt does so, too."""

    def train() -> int:
        attempt = context.attempt
        before = context.get_checkpoint()
        first = json.loads(Path(before, "turn").read_text()) + 1 if before else 0
        (tmp_path / f"pid-{attempt}").write_text(str(os.getpid()))
        model = Path("model")
        model.mkdir()
        for turn in range(first, first + (10_000 if attempt == 0 else 8)):
            for number in range(100):
                (model / f"part-{number}").write_text(str(turn))
            (model / "turn").write_text(str(turn))
            context.report(float(turn), checkpoint=model)
            time.sleep(0.1)
        return turn

    options = quiet(root, wait=False, keep_checkpoints="all")
    run = experiment.launch(train, **options)
    trial = run.trials[0]
    assert eventually(lambda: len(checkpoints.committed(trial.path)) > 3)
    attempt = json.loads(Path(trial.path, "attempts", "0.json").read_text())
    executor, training = jvm_of(attempt["pid"]), int((tmp_path / "pid-0").read_text())
    os.kill(executor, signal.SIGSTOP)
    try:
        assert eventually(Path(trial.path, "attempts", "1.claim").exists)
        assert eventually(lambda: not is_alive(training))
        run.wait()
    finally:
        os.kill(executor, signal.SIGCONT) if is_alive(executor) else None
    assert run.state == "COMPLETE"
    assert trial.attempts == 2
    assert [state for state, _ in events(run, 0)] == ["RUNNING", "LOST", "RUNNING", "COMPLETE"]
    points = checkpoints.committed(trial.path)
    assert points[-1].attempt == 1
    for point in points:
        turns = {Path(point.url, name).read_text() for name in point.files}
        assert len(point.files) == 101 and len(turns) == 1, point
    assert sorted(int(Path(p.url, "turn").read_text()) for p in points) == list(range(len(points)))
    assert not [name for name in os.listdir(f"{trial.path}/checkpoints") if name.startswith(".")]


def test_fork_server_and_monitors_are_killed(
    four_executors: SparkSession, root: str, tmp_path: Path
) -> None:
    """Each trial has started a program in a session of its own."""

    def train(x: int) -> int:
        import subprocess

        call = len(list(tmp_path.glob(f"call-{x}-*")))
        program = subprocess.Popen(["sleep", "300"], start_new_session=True)
        place = tmp_path / f"call-{x}-{call}"
        place.with_suffix(".part").write_text(f"{os.getpid()} {program.pid} {os.getppid()}")
        place.with_suffix(".part").rename(place.with_suffix(".pids"))
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        return x

    run = experiment.launch(train, {"x": [0, 1, 2, 3]}, **quiet(root, wait=False))
    assert eventually(lambda: len(list(tmp_path.glob("*.pids"))) == 4)
    pids = {
        x: [int(pid) for pid in (tmp_path / f"call-{x}-0.pids").read_text().split()]
        for x in range(4)
    }
    servers = {parent(monitor) for _, _, monitor in pids.values()}
    assert len(servers) == 1
    for server in servers:
        os.kill(server or 0, signal.SIGKILL)
    for x in (0, 1):
        os.kill(pids[x][2], signal.SIGKILL)
    assert eventually(lambda: not any(is_alive(pid) for x in (0, 1) for pid in pids[x]))
    assert eventually(lambda: len(list(tmp_path.glob("*.pids"))) == 6)
    (tmp_path / "go").touch()
    run.wait()
    assert run.counts() == {"COMPLETE": 4}
    assert [trial.attempts for trial in run.trials] == [2, 2, 1, 1]
    reasons = [error for state, error in events(run, 0) if state == "LOST"]
    assert len(reasons) == 1 and "was killed on host" in (reasons[0] or "")
    assert eventually(lambda: not processes_of(run.id))
    assert eventually(lambda: not [p for each in pids.values() for p in each if is_alive(p)])
    temporary = Path(tempfile.gettempdir())
    assert eventually(lambda: not [p for p in temporary.glob("sparkdl-*") if p.is_symlink()])
