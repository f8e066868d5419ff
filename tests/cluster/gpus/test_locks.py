"""Locks of GPUs that Spark has assigned to a task."""

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from sparkdl.cluster.gpus import locks
from sparkdl.cluster.gpus.locks import locked_devices, released_devices


def test_spark_may_assign_a_device_before_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process holds its GPU for a moment, and Spark does not wait for that."""
    monkeypatch.setattr(locks, "FOLDER", tmp_path / "locks")
    gone = subprocess.Popen(["true"])
    gone.wait()
    with locked_devices(["0"], 1, f"run one, process {gone.pid}") as dying:
        descriptor = os.dup(dying.descriptors[0])
    threading.Timer(0.5, os.close, [descriptor]).start()
    begun = time.monotonic()
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
