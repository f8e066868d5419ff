"""The folder that a training process writes into, and its copy in a store."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sparkdl.cluster.process import trial_folder
from sparkdl.cluster.process.trial_folder import Mirror, last_reported, local_folder
from sparkdl.files import attempts, storage
from sparkdl.files.layout import ORDERS, TrialPaths
from tests.helpers.processes import eventually


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"memory://{tmp_path}/trials/0"


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The names and sizes of the files that were copied to a store."""
    copied: list[tuple[str, int]] = []
    put = storage.put

    def record(folder: Path, name: str, url: str) -> None:
        copied.append((name, (folder / name).stat().st_size))
        put(folder, name, url)

    monkeypatch.setattr(storage, "put", record)
    return copied


def grow(path: Path, size: int) -> None:
    with path.open("ab") as file:
        file.truncate(size)
    os.utime(path, ns=(time.time_ns(), time.time_ns()))


def test_a_torn_line_does_not_hide_what_was_reported(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(
        '{"step": 0, "metrics": {"loss": 2.0}}\n{"step": 1, "me\n{"step": 2}\n[1]\n'
        '{"step": 3, "metrics": {"loss": 1.0}}\n{"step": 4, "metr'
    )
    assert last_reported(str(file)) == {"loss": 1.0}


def test_uploads_are_in_proportion_to_growth(
    tmp_path: Path, store: str, uploads: list[tuple[str, int]]
) -> None:
    mirror = Mirror(tmp_path, store)
    log, size = tmp_path / "log.txt", 10 << 20
    for _ in range(200):
        grow(log, size)
        mirror.sync()
        size += 100 << 10
    total = sum(copied for _, copied in uploads)
    assert total < 12 * size, f"{total / size:.0f} times the size of the file"
    mirror.sync(last=True)
    assert uploads[-1] == ("log.txt", log.stat().st_size)
    before = len(uploads)
    mirror.sync(last=True)
    assert len(uploads) == before


def test_small_changes_arrive_with_the_next_look(
    tmp_path: Path, store: str, uploads: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = Mirror(tmp_path, store)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for number in range(50):
        grow(tmp_path / "metrics.jsonl", 100_000 + 100 * number)
        mirror.sync()
        now += trial_folder.MIRROR_S
    assert len(uploads) == 50


def test_the_local_copy_is_on_sparks_disk_and_removed(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    monkeypatch.setenv("LOCAL_DIRS", str(disk))
    files = local_folder(TrialPaths(store), 0)
    with files as folder:
        assert folder.parent == disk
        (folder / "log.txt").write_text("hello")
    assert storage.read(storage.join(store, "log.txt")) == b"hello"
    assert files.note is None
    assert not list(disk.iterdir())


def test_files_that_cannot_be_copied_are_kept_and_named(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("the store is down")

    monkeypatch.setattr(storage, "put", fail)
    monkeypatch.setattr(trial_folder, "WRITE_S", 0.1)
    files = local_folder(TrialPaths(store), 0)
    with files as folder:
        (folder / "log.txt").write_text("hello")
    assert files.note is not None
    assert "the store is down" in files.note and str(folder) in files.note
    assert (folder / "log.txt").read_text() == "hello"


@pytest.mark.parametrize("kind", ["local", "store"])
def test_a_superseded_attempt_ends_and_copies_nothing_more(
    kind: str, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_folder, "REMOTE_FENCE_S", 0.0)
    monkeypatch.setattr(trial_folder, "MIRROR_S", 0.05)
    trial = str(tmp_path / "trial") if kind == "local" else store
    files = local_folder(TrialPaths(trial), 0)
    with files as folder:
        folder.mkdir(exist_ok=True)
        assert files.watch() is None
        attempts.take(trial, 0)
        attempts.take(trial, 1)
        (folder / "log.txt").write_text("late")
        assert eventually(files.watch)
        assert files.watch() == "a later attempt at the trial has started elsewhere"
    if kind == "store":
        assert "log.txt" not in storage.list_names(trial)


def test_a_large_file_does_not_delay_orders(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_folder, "MIRROR_S", 0.05)
    monkeypatch.setattr(trial_folder, "WRITE_S", 0.0)

    begun, may_end = threading.Event(), threading.Event()

    def slow(folder: Path, name: str, url: str) -> None:
        begun.set()
        may_end.wait(120)

    monkeypatch.setattr(storage, "put", slow)
    with local_folder(TrialPaths(store), 0) as folder:
        (folder / "large").write_text("...")
        try:
            assert begun.wait(120)
            storage.write(storage.join(store, ORDERS), '{"stop": "pruned"}\n')
            assert eventually((folder / ORDERS).exists, 60)
        finally:
            may_end.set()
