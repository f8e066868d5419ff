"""Old runs are deleted, but none that is running or that a model comes from."""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from sparkdl.cli.housekeeping import delete, old_runs
from sparkdl.errors import ConfigError, RunExistsError, RunNotFoundError
from sparkdl.files import folders, storage
from sparkdl.files.layout import place_of_verifications
from sparkdl.runs.history import history, load
from tests.helpers.counting_store import CountingStore, counting_store  # noqa: F401
from tests.helpers.stored_runs import ended, shift, started


def export(root: str, run: object, name: str = "digits", version: int = 3) -> None:
    """Write what the registry of models writes for a version."""
    storage.write(f"{root}/models/{name}/{version}/model.json", json.dumps({"run": run}))
    storage.write(f"{root}/models/{name}/claims/{version}.json", "{}")
    storage.write(f"{root}/models/{name}/4/saved_model.pb", "torn: it has no model.json")


def test_size_counts_all_files(root: str) -> None:
    run = ended(root, "one").run
    before = run.size
    storage.write(f"{run.path}/trials/0/artifacts/model.bin", b"x" * 1000)
    assert run.size == before + 1000
    sizes = folders.files_in(run.path)
    assert sizes["trials/0/artifacts/model.bin"] == 1000
    assert sum(p.stat().st_size for p in Path(run.path).rglob("*") if p.is_file()) == run.size
    assert folders.files_in(f"{root}/none") == {}


def test_delete_removes_the_whole_directory(root: str) -> None:
    run = ended(root, "one").run
    run.tag("old")
    verification = Path(place_of_verifications(run.path), "one-again/run.json")
    verification.parent.mkdir(parents=True)
    verification.touch()
    run.delete()
    assert {path.name for path in Path(root).iterdir()} == {".notes", ".verified"}
    assert list(Path(root, ".verified").iterdir()) == []
    assert list(Path(root, ".notes").iterdir()) == []
    with pytest.raises(RunNotFoundError):
        load(f"{root}/one")


def test_a_run_with_a_living_driver_is_not_deleted(root: str) -> None:
    opened = started(root, "live")
    with pytest.raises(RunExistsError, match="is running it"):
        load(opened.run.path).delete()
    opened.owner.release()
    opened.run.delete()
    assert history(root).empty


def test_a_run_that_is_being_verified_is_not_deleted(root: str) -> None:
    run = ended(root, "one").run
    opened = started(place_of_verifications(run.path), "one-again")
    with pytest.raises(RunExistsError, match=r"run one cannot be deleted: .* is verifying it"):
        run.delete()
    assert run.trials == load(run.path).trials
    opened.owner.release()
    run.delete()
    assert list(Path(root, ".verified").iterdir()) == []


@pytest.mark.parametrize("named", ["id", "path", "dict"])
def test_a_run_from_which_a_model_comes_is_not_deleted(root: str, named: str) -> None:
    run = ended(root, "one").run
    export(root, {"id": run.id, "path": run.path, "dict": {"id": run.id}}[named])
    with pytest.raises(RunExistsError, match="model digits version 3 in the registry comes from"):
        run.delete()
    assert load(run.path).state == "COMPLETE"
    ended(root, "other").run.delete()
    Path(root, "one").rename(Path(root, "renamed"))
    with pytest.raises(RunExistsError, match="model digits version 3 in the registry comes from"):
        load(f"{root}/renamed").delete()


def test_delete_on_a_store_can_be_repeated(
    counting_store: CountingStore,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sparkdl.runs.journal.GATHER_S", 0.0)
    root = counting_store.url(uuid4().hex)
    run = ended(root, "one").run
    remove = storage.remove_files

    def fails(urls: Sequence[str]) -> None:
        remove(urls[:3])
        raise OSError("the store is away")

    monkeypatch.setattr(storage, "remove_files", fails)
    with pytest.raises(OSError, match="away"):
        run.delete()
    assert storage.exists(f"{root}/one/run.json")
    monkeypatch.setattr(storage, "remove_files", remove)
    run.delete()
    assert folders.files_in(f"{root}/one") == {}


@pytest.fixture
def many(root: str) -> str:
    """Six runs, a day between them; the first is the oldest."""
    for number in range(6):
        run = ended(root, f"run-{number}").run
        day = datetime.now().astimezone() - timedelta(days=20 - number)
        shift(run.path, started=day.strftime("%Y-%m-%dT%H:%M:%S%z"))
    return root


def test_old_runs_are_those_beyond_the_newest_and_the_age(many: str) -> None:
    def ids(**how: object) -> list[str]:
        return [run.id for run in old_runs(many, **how)]  # type: ignore[arg-type]

    assert ids(keep=2) == ["run-0", "run-1", "run-2", "run-3"]
    assert ids(older=timedelta(days=18.5)) == ["run-0", "run-1"]
    assert ids(keep=5, older=timedelta(days=18.5)) == ["run-0"]
    assert ids(keep=9) == []
    with pytest.raises(ConfigError, match="--keep, --older, or both"):
        ids()


def test_two_processes_delete_the_same_runs(many: str) -> None:
    mine, others = old_runs(many, keep=4), old_runs(many, keep=3)
    assert delete(many, mine) == []
    assert delete(many, others) == []
    assert len(history(many)) == 3


def test_tags_that_no_list_shows_protect_a_run(
    counting_store: CountingStore,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sparkdl.runs.journal.GATHER_S", 0.0)
    root = counting_store.url(uuid4().hex)
    for name in ("copied", "unreadable", "old"):
        ended(root, name).run.tag("keep" if name != "old" else "baseline")
    storage.remove(f"{root}/.notes/copied")  # The run was copied without the index of its root.
    read_many = storage.read_many

    def fails(urls: Iterable[str]) -> dict[str, bytes]:
        if "/unreadable/" in "".join(named := list(urls)):
            raise OSError("the store is busy")
        return read_many(named)

    monkeypatch.setattr(storage, "read_many", fails)
    runs = old_runs(root, keep=0)
    assert {run.id: run.reason_to_keep for run in runs} == {
        "copied": "it has the tag 'keep'",
        "unreadable": "its tags cannot be read: the store is busy",
        "old": "",
    }
    assert delete(root, runs) == []
    assert set(history(root)["run"]) == {"copied", "unreadable"}


def test_protected_runs_are_kept_with_the_reason(many: str) -> None:
    load(f"{many}/run-0").tag("keep")
    export(many, "run-1")
    live = started(many, "run-9")
    runs = old_runs(many, keep=0)
    kept = {run.id: run.reason_to_keep for run in runs if run.reason_to_keep}
    assert kept == {
        "run-0": "it has the tag 'keep'",
        "run-1": "model digits version 3 comes from it",
        "run-9": "its driver is alive",
    }
    Path(many, ".run-7.deleted", "trials").mkdir(parents=True)  # An interrupted deletion.
    assert delete(many, runs) == []
    assert set(history(many)["run"]) == set(kept)
    assert not Path(many, ".run-7.deleted").exists()
    live.owner.release()
