"""The folders of temporary copies of models."""

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark import SparkFiles
from pyspark.sql import SparkSession

from sparkdl.files import storage
from sparkdl.inference import shared_copy
from sparkdl.inference.model_file import StoredModel, digest_of, temporary_folder
from tests.helpers.processes import eventually


@pytest.mark.slow
def test_a_copy_in_a_task_is_inside_the_folder_that_spark_removes(spark: SparkSession) -> None:
    def folders(_: int) -> tuple[str, str]:
        with temporary_folder() as folder:
            return str(folder.parent), SparkFiles.getRootDirectory()

    parent, removed_by_spark = spark.sparkContext.parallelize([0], 1).map(folders).first()
    assert parent == removed_by_spark
    assert not list(Path(parent).glob("sparkdl-model-*"))


# ---- one copy for the workers of a host


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


def workers(count: int, function: Callable[[int], None]) -> None:
    """Call the function in several processes at once."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=function, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
        assert process.exitcode == 0


def test_one_worker_of_a_host_fetches_for_all(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "loading").mkdir()

    def fetch(place: Path) -> None:
        with (tmp_path / "fetched").open("a") as file:
            file.write("x")
        time.sleep(0.3)
        (place / "model.keras").write_text("weights")

    def load(number: int) -> None:
        with shared_copy.fetch_once(folder, "key", fetch) as copy:
            assert (copy / "model.keras").read_text() == "weights"
            (tmp_path / "loading" / str(number)).touch()
            # All workers load at the same time.
            assert eventually(lambda: len(os.listdir(tmp_path / "loading")) == 4)

    workers(4, load)
    assert (tmp_path / "fetched").read_text() == "x"


def test_a_fetch_that_fails_or_was_killed_leaves_no_copy(folder: Path) -> None:
    (folder / "key.partial").mkdir()
    (folder / "key.partial" / "half").touch()

    def fails(place: Path) -> None:
        assert os.listdir(place) == []
        (place / "half").touch()
        raise OSError("no connection")

    with (
        pytest.raises(OSError, match="no connection"),
        shared_copy.fetch_once(folder, "key", fails),
    ):
        pass
    assert os.listdir(folder) == ["key.lock"]
    with shared_copy.fetch_once(folder, "key", lambda place: (place / "m").touch()) as copy:
        assert os.listdir(copy) == ["m"]


def test_few_copies_are_kept_and_none_that_is_read(folder: Path) -> None:
    def touch(place: Path) -> None:
        (place / "m").touch()

    with shared_copy.fetch_once(folder, "read", touch) as copy:
        for number in range(6):
            with shared_copy.fetch_once(folder, f"{number}", touch):
                os.utime(folder / f"{number}", (number, number))
        assert (copy / "m").exists()
        kept = {path.name for path in folder.iterdir() if path.is_dir()}
    assert "read" in kept and "5" in kept and len(kept) <= 4


def test_a_model_is_checked_once_until_its_files_change(tmp_path: Path, folder: Path) -> None:
    model, checks = tmp_path / "m.keras", []
    for content in ("first", "first", "other"):
        model.write_text(content)
        os.utime(model, (len(checks), len(checks)))
        for _ in range(3):
            shared_copy.check_once(folder, model, "key", lambda: checks.append(1))
    assert len(checks) == 3

    def fails() -> None:
        raise RuntimeError("has changed")

    os.utime(model, (99, 99))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="has changed"):
            shared_copy.check_once(folder, model, "key", fails)


@pytest.mark.slow
def test_workers_share_the_models_of_a_url(spark: SparkSession, s3: str, tmp_path: Path) -> None:
    (tmp_path / "m.keras").write_bytes(b"weights")
    storage.copy(tmp_path / "m.keras", f"{s3}/m.keras")
    stored = StoredModel(
        name="m", library="keras", digest=digest_of(tmp_path / "m.keras"), url=f"{s3}/m.keras"
    )

    def paths(_: int) -> tuple[str, bytes]:
        with stored.open_local() as path:
            return str(path), path.read_bytes()

    found = spark.sparkContext.parallelize(range(4), 4).map(paths).collect()
    assert {content for _, content in found} == {b"weights"}
    (path,) = {path for path, _ in found}
    assert path.endswith("/model.keras") and "sparkdl-models" in path
