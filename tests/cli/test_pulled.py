"""A run on a store is copied to a local folder, and an interrupted copy goes on."""

import re
import time
from pathlib import Path
from uuid import uuid4

import pytest

from sparkdl.cli.pulled import pull_run
from sparkdl.errors import ConfigError, RunDamagedError
from sparkdl.files import folders, storage
from sparkdl.runs import Run
from sparkdl.runs.history import load
from tests.helpers.counting_store import CountingStore, counting_store  # noqa: F401
from tests.helpers.stored_runs import ended


@pytest.fixture
def run(counting_store: CountingStore, monkeypatch: pytest.MonkeyPatch) -> Run:  # noqa: F811
    """A run on a store, with an artifact of 1000 bytes."""
    monkeypatch.setattr("sparkdl.runs.journal.GATHER_S", 0.0)
    run = ended(counting_store.url(uuid4().hex), "one").run
    storage.write(f"{run.path}/trials/0/artifacts/my model.bin", bytes(range(250)) * 4)
    storage.write(f"{run.path}/trials/0/log.txt", "")
    run.tag("far away")
    return run


def test_the_copy_is_the_same_run(run: Run, tmp_path: Path) -> None:
    path, num_files, num_bytes = pull_run(run, tmp_path)
    assert path == str(tmp_path / "one")
    assert (num_files, num_bytes) == (len(folders.files_in(run.path)), run.size)
    copy = load(path)
    assert (copy.state, copy.best.value, copy.tags) == ("COMPLETE", 0.75, ["far away"])
    assert folders.files_in(path) == folders.files_in(run.path)
    model = Path(copy.trials[0].path, "artifacts", "my model.bin")
    assert model.read_bytes() == bytes(range(250)) * 4


def test_a_copy_that_was_interrupted_goes_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "PIECE_BYTES", 100)
    read, pieces = storage.read, []

    def fails(url: str, offset: int = 0, size: int | None = None) -> bytes:
        if url.endswith(".bin"):
            pieces.append(offset)
            if offset == 500 and pieces.count(500) == 1:
                raise OSError("the network is gone")
        return read(url, offset, size)

    monkeypatch.setattr(storage, "read", fails)
    with pytest.raises(OSError, match="gone"):
        pull_run(run, tmp_path)
    assert not (tmp_path / "one/run.json").exists()  # A part of a run is no run.
    _, num_files, _ = pull_run(run, tmp_path)
    assert pieces == [0, 100, 200, 300, 400, 500, 500, 600, 700, 800, 900]
    assert num_files < len(folders.files_in(run.path))
    assert load(str(tmp_path / "one")).best.value == 0.75
    assert not list(tmp_path.rglob("*.part"))


def test_a_second_copy_brings_what_is_new(run: Run, tmp_path: Path) -> None:
    pull_run(run, tmp_path)
    storage.append(f"{run.path}/trials/0/log.txt", b"more\n")
    run.note("after the copy")
    _, num_files, _ = pull_run(run, tmp_path)
    assert num_files < 8
    assert (tmp_path / "one/trials/0/log.txt").read_text() == "more\n"
    assert load(str(tmp_path / "one")).notes[0].text == "after the copy"


def test_a_second_copy_brings_files_of_the_same_size_and_removes_a_summary(
    run: Run, tmp_path: Path
) -> None:
    names = ("trials/0/scratch/weights.npy", "source/program.json", "trials/0/params.json")
    for name in names:
        storage.write(f"{run.path}/{name}", "lr = 0.1")
    pull_run(run, tmp_path)
    time.sleep(0.01)
    for name in names[:2]:
        storage.write(f"{run.path}/{name}", "lr = 0.2")
    storage.remove(f"{run.path}/summary.json")  # The run was resumed and goes on.
    part = tmp_path / "one/trials/0/scratch/.weights.npy.7-0.part"
    part.write_text("lr = 0.")  # The copy of an earlier version was interrupted.
    pull_run(run, tmp_path)
    texts = [(tmp_path / "one" / name).read_text() for name in names]
    assert texts == ["lr = 0.2", "lr = 0.2", "lr = 0.1"]
    assert not (tmp_path / "one/summary.json").exists()
    assert not part.exists()
    assert pull_run(run, tmp_path)[1] <= 5  # Only those that always are copied.


def test_nothing_is_written_outside_the_folder(run: Run, tmp_path: Path) -> None:
    filesystem, path = storage.filesystem(run.path)
    filesystem.pipe_file(f"{path}/trials/../../../evil.txt", b"evil")
    with pytest.raises(OSError, match=r"has a file 'trials/\.\./\.\./\.\./evil\.txt'"):
        pull_run(run, tmp_path / "runs")
    with pytest.raises(OSError, match=r"has a file"):
        storage.download(run.path, tmp_path / "runs" / "one")
    for name in ("../evil", "..", ".", "", "/evil", "a/b"):
        run.id = name
        with pytest.raises(RunDamagedError, match=f"is {re.escape(repr(name))}, which is no"):
            pull_run(run, tmp_path / "runs")
    assert not list(tmp_path.rglob("evil*"))


def test_a_copy_onto_itself_or_to_a_store_is_refused(run: Run, root: str) -> None:
    with pytest.raises(ConfigError, match="local folder"):
        pull_run(run, "memory://runs")
    with pytest.raises(ConfigError, match="already"):
        pull_run(ended(root, "one").run, root)
