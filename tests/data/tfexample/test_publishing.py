"""Folders of files replaced by others: readers take the old files, the new files, or none."""

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sparkdl.data.readers.paths import find, urls_of
from sparkdl.data.tfexample import dataframe_writer
from sparkdl.errors import ConfigError
from sparkdl.files import storage


def meant(paths: Any) -> list[str]:
    return urls_of(find(paths))


def test_a_folder_that_is_being_written_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "_temporary" / "out"
    (folder / "_temporary-1").mkdir(parents=True)
    (folder / "part-0").write_bytes(b"")
    assert meant(folder) == [f"{folder}/part-0"]
    (folder / "_temporary-1" / "part-0").write_bytes(b"")
    for path in (folder, tmp_path / "_temporary"):
        with pytest.raises(ConfigError, match=r"/out' is being written, or a job .*no _SUCCESS"):
            meant(path)
    assert meant(folder / "part-*") == [f"{folder}/part-0"]
    (folder / "_SUCCESS").write_bytes(b"")
    assert meant(folder) == [f"{folder}/part-0"]


# ---- publishing

NEW = {"part-0-x": "part-r-00000", "part-1-x": "part-r-00001", "part-2-x": "part-r-00002"}


@pytest.fixture
def published(tmp_path: Path) -> Callable[[], dict[str, str]]:
    """A folder with old and new files; the function returns the files that readers take."""
    for name in ("part-r-00000", "part-r-00001", "other", "day=1/part-0"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("old")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "_temporary-1").mkdir()
    for name in NEW:
        (tmp_path / "_temporary-1" / name).write_text("new")
    return lambda: {url[len(f"{tmp_path}/") :]: Path(url).read_text() for url in meant(tmp_path)}


def publish(tmp_path: Path) -> None:
    dataframe_writer._publish(NEW, f"{tmp_path}/_temporary-1", str(tmp_path))


def test_new_files_replace_old_ones(
    tmp_path: Path, published: Callable[[], dict[str, str]]
) -> None:
    old = published()
    assert set(old.values()) == {"old"} and len(old) == 4
    publish(tmp_path)
    assert published() == dict.fromkeys(NEW.values(), "new")
    assert sorted(os.listdir(tmp_path)) == ["_SUCCESS", *NEW.values()]


@pytest.mark.parametrize("number", range(5))
def test_a_file_that_cannot_be_moved_leaves_the_old_files(
    tmp_path: Path,
    published: Callable[[], dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    old, rename, calls = published(), storage.rename, itertools.count()

    def fails_once(source: str, target: str) -> None:
        if next(calls) == number:
            raise OSError("SlowDown")
        rename(source, target)

    monkeypatch.setattr(storage, "rename", fails_once)
    with pytest.raises(OSError, match="SlowDown"):
        publish(tmp_path)
    assert published() == old
    assert "_temporary-1" not in os.listdir(tmp_path)


@pytest.mark.parametrize("step", ["rename", "remove", "write"])
def test_a_driver_that_is_killed_leaves_old_files_new_files_or_a_refusal(
    tmp_path: Path,
    published: Callable[[], dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    old, seen = published(), []
    real = getattr(storage, step)

    def observed(*arguments: Any) -> None:
        for call in (lambda: None, lambda: real(*arguments)):
            call()
            try:
                seen.append(published())
            except ConfigError:
                seen.append({})

    monkeypatch.setattr(storage, step, observed)
    monkeypatch.setattr(dataframe_writer, "ThreadPoolExecutor", lambda _: ThreadPoolExecutor(1))
    publish(tmp_path)
    new = dict.fromkeys(NEW.values(), "new")
    assert seen and all(files in (old, {}, new) for files in seen)
