"""A search whose executors die, or are declared dead and come back."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from pyspark.sql import SparkSession

from sparkdl import context, experiment
from tests.helpers.processes import eventually, jvm_of, processes_of
from tests.helpers.runs import journal_lines, quiet
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


def events(path: str) -> list[dict[str, Any]]:
    return journal_lines(path)


def final(path: str) -> list[int]:
    """The trials that ended, as often as the journal says so."""
    ends = [e["number"] for e in events(path) if e["event"] == "trial" and e["state"] == "COMPLETE"]
    return sorted(ends)


def worker_of(trial_path: str, attempt: int) -> int:
    return int(json.loads(Path(trial_path, "attempts", f"{attempt}.json").read_text())["pid"])


def family(pid: int) -> list[int]:
    """A process and all below it."""
    below = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [pid, *(child for line in below.stdout.split() for child in family(int(line)))]


class Hearing(optuna.samplers.RandomSampler):
    """A sampler that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(seed=0)
        self.told: list[str] = []

    def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
        self.told.append(state.name)


@pytest.mark.acceptance("A8")
@pytest.mark.usefixtures("three_executors")
def test_a_searched_trial_of_a_killed_executor_runs_again(root: str, tmp_path: Path) -> None:
    def train(x: int) -> float:
        calls = len(list(tmp_path.glob(f"call-{x}-*")))
        Path(tmp_path, f"call-{x}-{os.getpid()}").touch()
        context.report(float(x), 0)
        print("attempt", calls)
        while x == 1 and not calls:
            time.sleep(0.1)
        context.report(float(x), 1)
        return x

    sampler = Hearing()
    values: dict[str, Any] = {"initial_params": [{"x": x} for x in range(6)]}
    # It hears every report, and has never heard enough to stop one.
    values["pruner"] = optuna.pruners.MedianPruner(n_startup_trials=99)
    options = quiet(root, wait=False, max_failed_trials=0)
    run = experiment.search(
        train, {"x": list(range(6))}, algorithm=sampler, num_trials=6, **values, **options
    )
    assert eventually(lambda: list(tmp_path.glob("call-1-*")))
    lost = run.trials[1]
    assert eventually(lambda: lost.state == "RUNNING")
    os.kill(jvm_of(worker_of(lost.path, 0)), signal.SIGKILL)
    run.wait()
    assert run.state == "COMPLETE"
    assert {str(trial.state) for trial in run.trials} == {"COMPLETE"}
    assert lost.attempts == 2
    assert run.failed == []
    said = [e["state"] for e in events(run.path) if e.get("number") == 1 and e["event"] == "trial"]
    assert said == ["RUNNING", "LOST", "RUNNING", "COMPLETE"]
    assert len(sampler.told) == 6
    assert "FAIL" not in sampler.told
    reports = [r for e in events(run.path) for r in e.get("reports", ()) if r[0] == 1]
    assert {step for _, step, _ in reports} == {0, 1}
    assert eventually(lambda: not processes_of(run.id))


@pytest.mark.acceptance("A17")
def test_a_late_result_is_ignored(
    root: str, tmp_path: Path, impatient: SparkSession, capfd: Any
) -> None:
    """An executor, its worker and its training process freeze; they wake when all is over."""

    def train(x: int) -> dict[str, Any]:
        calls = len(list(tmp_path.glob(f"call-{x}-*")))
        Path(tmp_path, f"call-{x}-{os.getpid()}").touch()
        while x == 0 and not calls and not (tmp_path / "wake").exists():
            time.sleep(0.05)
        (tmp_path / f"returned-{x}-{calls}").touch()
        return {"score": x, "attempt": calls}

    options = quiet(root, wait=False, metric="score", max_failed_trials=0)
    run = experiment.search(
        train,
        {"x": [0, 1, 2]},
        num_trials=3,
        initial_params=[{"x": x} for x in range(3)],
        **options,
    )
    assert eventually(lambda: list(tmp_path.glob("call-0-*")))
    frozen = family(jvm_of(worker_of(run.trials[0].path, 0)))
    training = int(next(tmp_path.glob("call-0-*")).name.rsplit("-", 1)[1])
    frozen += [pid for pid in family(training) if pid not in frozen]
    try:
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        assert eventually(lambda: (tmp_path / "returned-0-1").exists())
        run.wait()
        (tmp_path / "wake").touch()
    finally:
        for pid in frozen:
            # The executor, which wakes first, may have ended the others.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    assert run.counts() == {"COMPLETE": 3}
    assert run.failed == []
    first = run.trials[0]
    assert (first.attempts, first.outputs) == (2, {"score": 0, "attempt": 1})
    assert eventually(lambda: not processes_of(run.id))
    assert final(run.path) == [0, 1, 2]
    kept = experiment.load(run.path)
    assert kept.trials[0].outputs == first.outputs
    assert json.loads(Path(first.path, "outputs.json").read_text())["attempt"] == 1
    assert "Traceback" not in capfd.readouterr().err
    # The session is as good as before.
    more = experiment.search(train, {"x": [1, 2]}, algorithm="grid", **quiet(root, metric="score"))
    assert more.counts() == {"COMPLETE": 2}
