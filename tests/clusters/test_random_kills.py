"""Whatever is killed, whenever: a gang goes on or fails with a reason, and leaves nothing."""

import json
import os
import random
import signal
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.errors import TrainingFailedError
from sparkdl.runs import Run
from tests.experiment.test_allreduce import mini
from tests.experiment.test_parameter_server import train as train_with_servers
from tests.helpers.processes import eventually, is_alive, jvm_of
from tests.helpers.runs import quiet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("four_executors")]


def train() -> int:
    from sparkdl.keras import Checkpoint

    model, x, y = mini()
    history = model.fit(x, y, batch_size=24, epochs=6, verbose=0, callbacks=[Checkpoint()])
    return len(history.history["loss"])


def seen(run: Run) -> tuple[list[int], list[int], list[str]]:
    """The training processes, the Python worker of the chief, the endpoints: as far as known."""
    trial = Path(run.trials[0].path)
    pids = [int(p.read_text()) for p in trial.glob("ranks/0/*.pid") if p.read_text()]
    attempt = trial / "attempts/0.json"
    who = json.loads(attempt.read_text()) if attempt.exists() else {"pid": None, "ranks": {}}
    workers = [who["pid"]] if who["pid"] else []
    return pids, workers, [rank["endpoint"] for rank in who["ranks"].values()]


def is_listening(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, int(port))) == 0


def files_in_tmp() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).glob("sparkdl-*")} - {"sparkdl-gpus"}


@pytest.mark.parametrize(
    ("kind", "victim"),
    [
        pytest.param("allreduce", "process", marks=pytest.mark.thorough),
        ("allreduce", "executor"),
        pytest.param("parameter_server", "process", marks=pytest.mark.thorough),
        ("parameter_server", "worker"),
    ],
)
def test_random_kills_leave_nothing(root: str, kind: str, victim: str) -> None:
    chance = random.Random(f"{kind} {victim}")
    if kind == "allreduce":
        run = experiment.allreduce(train, num_workers=3, wait=False, **quiet(root))
        size = 3
    else:
        run = experiment.parameter_server(
            train_with_servers, num_workers=2, num_ps=1, wait=False, **quiet(root)
        )
        size = 4
    assert eventually(lambda: len(seen(run)[0]) == size, 90), run
    time.sleep(chance.uniform(0.0, 2.5))  # The moment is what is random here.
    pids, workers, endpoints = seen(run)
    target: Any = chance.choice(pids if victim == "process" else workers)
    if victim == "executor" and is_alive(target):
        target = jvm_of(target)
    if is_alive(target):
        os.kill(target, signal.SIGKILL)
    try:
        run.wait()
    except TrainingFailedError as failed:
        assert "SIGKILL" in str(failed) or "Error" in str(failed), failed
    assert run.trials[0].failure in (None, "signal"), run.trials[0].summary
    assert eventually(lambda: not [p for p in pids if is_alive(p)])
    assert not [e for e in endpoints if is_listening(e)]
    assert not Path(run.trials[0].path, "ranks").exists()


@pytest.mark.ends_application
def test_a_stopped_application_leaves_no_file(four_executors: SparkSession) -> None:
    four_executors.stop()
    assert eventually(lambda: not files_in_tmp(), 30), files_in_tmp()
