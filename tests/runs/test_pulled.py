"""A run on a store is copied to a local folder, and an interrupted copy goes on."""

from pathlib import Path
from uuid import uuid4

import pytest

from sparkdl import folders, storage
from sparkdl.errors import ConfigError
from sparkdl.runs import Run
from sparkdl.runs.history import load
from sparkdl.runs.pulled import pull_run
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


def test_a_copy_onto_itself_or_to_a_store_is_refused(run: Run, root: str) -> None:
    with pytest.raises(ConfigError, match="local folder"):
        pull_run(run, "memory://runs")
    with pytest.raises(ConfigError, match="already"):
        pull_run(ended(root, "one").run, root)
