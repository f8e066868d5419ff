"""Locks of GPUs that Spark has assigned to a task."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkdl.cluster.gpus import locks
from sparkdl.cluster.gpus.locks import hold_shared_device, locked_devices, released_devices


def test_spark_may_assign_a_device_before_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process holds its GPU for a moment, and Spark does not wait for that."""
    monkeypatch.setattr(locks, "FOLDER", tmp_path / "locks")
    gone = subprocess.Popen(["true"])
    gone.wait()
    with locked_devices(["0"], 1, f"run one, process {gone.pid}") as dying:
        descriptor = os.dup(dying.descriptors[0])
    begun = time.monotonic()
    threading.Timer(0.5, os.close, [descriptor]).start()
    with released_devices(["0", "1"], f"run two, process {os.getppid()}") as devices:
        assert time.monotonic() - begun > 0.4
        assert devices.names == ["0", "1"] and len(devices.descriptors) == 2
        # A part of a GPU, which a living task shares: nothing to wait for.
        with released_devices(["0"], "run three, process 1") as shared:
            assert (shared.names, shared.descriptors) == (["0"], [])


def test_a_device_that_is_never_freed_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(locks, "FOLDER", tmp_path / "locks")
    with (
        locked_devices(["0"], 1, "run one, process 999999999"),
        released_devices(["0"], "run two, process 2", timeout_s=0.3) as devices,
    ):
        assert devices.names == ["0"]
    assert "is still held by run one" in caplog.text


def test_locks_of_another_host_that_shares_the_folder_hold_no_device_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "FOLDER", tmp_path / "locks")
    other = "12345678-1234-1234-1234-123456789012"
    with monkeypatch.context() as there:
        there.setattr(locks.Path, "read_text", lambda path: other)
        held = locked_devices(["0"], 1, "run one, process 1")
        held.__enter__()
    with locked_devices(["0"], 1, "run two, process 2", timeout_s=0) as devices:
        assert devices.names == ["0"]
    held.__exit__(None, None, None)


WORKER = """
import sys
from pathlib import Path
from sparkdl.cluster.gpus import locks
locks.FOLDER = Path(sys.argv[1])
print(locks.hold_shared_device(["4", "7"], "predictions, process 1"), flush=True)
if sys.stdin.readline():
    with locks.locked_devices(["4", "7"], 1, "a trial, process 1", timeout_s=120) as devices:
        print(*devices.names, flush=True)
        sys.stdin.read()
"""


class Workers:
    """Processes that hold a shared device until they end."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[str]] = []

    def start(self) -> subprocess.Popen[str]:
        """Start a process, which prints the name of its device."""
        command = [sys.executable, "-c", WORKER, str(locks.FOLDER)]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        worker = subprocess.Popen(command, **pipes, text=True)  # type: ignore[call-overload]
        self.started.append(worker)
        return worker

    def device(self) -> str:
        """Start a process; return its device."""
        return self.start().stdout.readline().strip()  # type: ignore[union-attr]


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setattr(locks, "FOLDER", tmp_path / "locks")
    workers = Workers()
    yield workers
    for worker in workers.started:
        worker.kill()
        worker.communicate()


def test_workers_share_devices_evenly_beside_those_of_a_trial(workers: Workers) -> None:
    with locked_devices(["4"], 1, "run one, process 1"):
        assert [workers.device() for _ in range(2)] == ["7", "7"]
    assert [workers.device() for _ in range(3)] == ["4", "4", "4"]
    # The seat of a worker that has ended is free, whoever has killed it.
    workers.started[0].kill()
    workers.started[0].wait()
    assert workers.device() == "7"
    with (
        pytest.raises(locks.DevicesTakenError, match="held by predictions, process 1"),
        locked_devices(["4", "7"], 1, "run two, process 2", timeout_s=0.2),
    ):
        pass
    for worker in workers.started:
        worker.communicate("")  # The worker ends with its input.
    with locked_devices(["4", "7"], 2, "run two, process 2", timeout_s=120) as devices:
        assert devices.names == ["4", "7"]


def test_a_trial_does_not_wait_for_the_share_of_its_own_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "FOLDER", tmp_path / "locks")
    name = f"predictions, process {os.getpid()}"
    num_open = len(os.listdir("/proc/self/fd"))
    assert [hold_shared_device(["0", "1"], name) for _ in range(2)] == ["0", "0"]
    with locked_devices(["0", "1"], 2, "run one, process 1", timeout_s=0) as devices:
        assert devices.names == ["0", "1"]
    # The next prediction of the worker takes a device again.
    with locked_devices(["0"], 1, "run one, process 1", timeout_s=0):
        assert hold_shared_device(["0", "1"], name) == "1"
    with released_devices(["1"], "run two, process 1", timeout_s=0) as devices:
        assert len(devices.descriptors) == 1
    assert len(os.listdir("/proc/self/fd")) == num_open


def test_trials_of_two_workers_do_not_wait_for_the_shares_of_each_other(workers: Workers) -> None:
    assert [workers.device() for _ in range(2)] == ["4", "7"]
    for worker in workers.started:
        assert worker.stdin
        worker.stdin.write("lock\n")
        worker.stdin.flush()
    taken = [worker.stdout.readline().strip() for worker in workers.started]  # type: ignore[union-attr]
    assert sorted(taken) == ["4", "7"]


def test_a_worker_waits_for_trials_that_hold_all_devices(workers: Workers) -> None:
    with locked_devices(["4"], 1, "run one, process 1"):
        with locked_devices(["7"], 1, "run two, process 1"):
            worker = workers.start()
            assert worker.stderr and worker.stdout
            told = worker.stderr.readline()
            assert "waiting for a GPU: 4, 7 are held by run one, process 1, run two" in told
        assert worker.stdout.readline() == "7\n"
