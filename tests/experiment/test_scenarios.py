"""Scenarios that users must never meet again, each on three real executor processes."""

import ctypes
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.errors import AllTrialsFailedError
from sparkdl.host.os_processes import parent
from sparkdl.runs import Run
from tests.helpers.processes import eventually, jvm_of, processes_of
from tests.helpers.runs import journal_text, quiet

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("three_executors")]


@pytest.mark.acceptance("A1")
def test_one_failing_trial_of_twelve_leaves_the_others_complete(root: str, tmp_path: Path) -> None:
    def train(lr: float, layers: int) -> float:
        Path(tmp_path, f"call-{lr}-{layers}-{os.getpid()}").touch()
        if (lr, layers) == (0.1, 2):
            raise ValueError(f"lr={lr} is too high")
        return lr

    args = {"lr": [0.1, 0.2, 0.3, 0.4], "layers": [1, 2, 3]}
    run = experiment.launch(train, args, **quiet(root))
    assert run.counts() == {"COMPLETE": 11, "FAILED": 1}
    error = run.failed[0].error or ""
    assert f'File "{__file__}", line' in error
    assert "lr=0.1 is too high" in str(run)
    assert len(list(tmp_path.glob("call-0.1-2-*"))) == 1


@pytest.mark.acceptance("A2")
def test_all_trials_failing_raises_the_first_error(root: str, tmp_path: Path) -> None:
    class MyError(Exception):
        pass

    def train(x: int) -> int:
        Path(tmp_path, f"call-{x}").touch()
        raise MyError("always")

    with pytest.raises(AllTrialsFailedError, match="always") as caught:
        experiment.launch(train, {"x": list(range(12))}, **quiet(root, fail_fast_identical=3))
    assert isinstance(caught.value.__cause__, MyError)
    assert len(list(tmp_path.glob("call-*"))) <= 3 + 3
    states = experiment.load(str(experiment.history(root)["path"][0])).counts()
    assert states["FAILED"] >= 3
    assert sum(states.values()) == 12


@pytest.mark.acceptance("A8")
def test_a_trial_of_a_killed_executor_runs_again(root: str, tmp_path: Path) -> None:
    def train(x: int) -> int:
        first = not list(tmp_path.glob(f"call-{x}-*"))
        Path(tmp_path, f"call-{x}-{os.getpid()}").touch()
        print("attempt", "first" if first else "second")
        if x == 1 and first:
            time.sleep(300)
        return x

    options = quiet(root, wait=False, max_failed_trials=0)
    run = experiment.launch(train, {"x": [0, 1, 2, 3, 4, 5]}, **options)
    attempt = Path(run.trials[1].path, "attempts", "0.json")
    assert eventually(lambda: list(tmp_path.glob("call-1-*")))
    import json

    os.kill(jvm_of(json.loads(attempt.read_text())["pid"]), signal.SIGKILL)
    run.wait()
    assert run.counts() == {"COMPLETE": 6}
    assert run.trials[1].attempts == 2
    assert '"state": "LOST", "attempt": 0' in journal_text(run.path)
    # A14: what the lost attempt printed is still there.
    assert "attempt first" in Path(run.trials[1].path, "attempts/0/log.txt").read_text()
    assert "attempt second" in Path(run.trials[1].path, "log.txt").read_text()
    assert eventually(lambda: not processes_of(run.id))


@pytest.mark.acceptance("A14")
def test_output_of_trials_is_shown_by_the_driver_and_logged(root: str, capsys: Any) -> None:
    def train(x: int) -> int:
        print("hello")
        os.write(2, b"from C\n")
        return x

    run = experiment.launch(train, {"x": [0, 1, 2, 3]}, root=root)
    out = capsys.readouterr().out
    for trial in run.trials:
        assert f"[trial {trial.number}] hello" in out
        assert f"[trial {trial.number}] from C" in out
        assert Path(trial.path, "log.txt").read_text() == "hello\nfrom C\n"


@pytest.mark.acceptance("A15")
def test_trials_without_a_finite_metric_are_invalid(root: str) -> None:
    def train(x: int) -> float | None:
        return {0: float("nan"), 4: None, 8: float("inf")}.get(x, x / 10)

    run = experiment.launch(train, {"x": list(range(9))}, **quiet(root, metric="score"))
    assert [t.number for t in run.trials if t.state == "INVALID"] == [0, 4, 8]
    assert run.best.number == 7
    assert experiment.load(run.path).best.number == 7


@pytest.mark.acceptance("A16")
def test_a_silent_trial_is_not_declared_dead(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No internal limit declares a process dead: 8 seconds in C with the GIL held."""
    for name in (
        "sparkdl.cluster.preflight.MEET_S",
        "sparkdl.runs.owner.BEAT_S",
        "sparkdl.runner.loop.trial_messages.STOP_GRACE_S",
        "sparkdl.runner.loop.submitted.EXIT_GRACE_S",
    ):
        monkeypatch.setattr(name, 1.0)

    def train(x: int) -> float:
        began = time.monotonic()
        ctypes.PyDLL(None).sleep(8)
        return time.monotonic() - began

    run = experiment.launch(train, {"x": [0]}, **quiet(root))
    assert run.state == "COMPLETE"
    assert run.trials[0].attempts == 1
    assert run.best.value is not None
    assert run.best.value >= 7


@pytest.mark.acceptance("A18")
def test_runs_one_after_the_other_and_two_at_once_complete(root: str) -> None:
    def bad(x: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return x

    def good(x: int) -> dict[str, Any]:
        print("mine is", x)
        time.sleep(0.2)
        return {"x": x}

    with pytest.raises(AllTrialsFailedError, match="SIGKILL"):
        experiment.launch(bad, {"x": [0, 1, 2]}, **quiet(root))
    assert experiment.launch(good, {"x": [0, 1, 2]}, **quiet(root)).counts() == {"COMPLETE": 3}
    runs: dict[int, Run] = {}

    def launch(base: int) -> None:
        values = {"x": list(range(base, base + 4))}
        runs[base] = experiment.launch(good, values, **quiet(root))

    threads = [threading.Thread(target=launch, args=(base,)) for base in (100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for base, run in runs.items():
        assert [t.outputs["x"] for t in run.trials] == list(range(base, base + 4))
        logs = [Path(t.path, "log.txt").read_text() for t in run.trials]
        assert logs == [f"mine is {x}\n" for x in range(base, base + 4)]
    assert runs[100].path != runs[200].path


@pytest.mark.acceptance("A19")
def test_trials_in_one_slot_do_not_see_each_other(root: str) -> None:
    def train(x: int) -> dict[str, Any]:
        import resource

        at_entry = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        import tensorflow as tf
        from tensorflow.python.eager import context as eager

        initialised = eager.context()._initialized
        collective = eager.context()._collective_leader
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * 2,
        )
        tf.keras.backend.clear_session()
        devices = len(tf.config.list_logical_devices("CPU"))
        hog = bytearray(os.urandom(1 << 20) * 500)
        return {
            "pid": os.getpid(),
            "initialised": initialised,
            "collective": bool(collective),
            "devices": devices,
            "memory": at_entry,
            "hog": len(hog) >> 20,
        }

    run = experiment.launch(train, {"x": [1, 2, 3]}, **quiet(root, parallelism=1))
    outputs = [trial.outputs for trial in run.trials]
    assert len({o["pid"] for o in outputs}) == 3
    assert not any(o["initialised"] or o["collective"] for o in outputs)
    assert {o["devices"] for o in outputs} == {2}
    memory = [o["memory"] for o in outputs]
    assert max(memory) - min(memory) < 50


def test_a_fork_server_that_dies_is_replaced(root: str, three_executors: SparkSession) -> None:
    def train(x: int) -> int:
        return parent(os.getppid()) or 0  # The fork server, above the monitor.

    first = experiment.launch(train, {"x": [0]}, **quiet(root)).best.value
    os.kill(int(first or 0), signal.SIGKILL)
    second = experiment.launch(train, {"x": [0]}, **quiet(root)).best.value
    assert first != second


@pytest.mark.ends_application
def test_nothing_is_left_after_the_session(root: str) -> None:
    """The session ends, and so does everything of ours."""
    run = experiment.launch(lambda: parent(os.getppid()), **quiet(root))
    server = int(run.best.value or 0)
    assert Path(f"/proc/{server}").exists()
    SparkSession.getActiveSession().stop()  # type: ignore[union-attr]
    assert eventually(lambda: not Path(f"/proc/{server}").exists())
    assert eventually(lambda: not processes_of(run.id))
