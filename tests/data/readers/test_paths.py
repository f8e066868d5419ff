"""Resolve paths to files, and list the files on one rank for all others."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl import context, data
from sparkdl.data.readers import table_formats
from sparkdl.data.readers.parquet import ParquetSource
from sparkdl.data.readers.parquet_footers import list_row_groups
from sparkdl.data.readers.paths import Paths, absolute, find, find_again, urls_of
from sparkdl.data.readers.petastorm.reader import PetastormSource
from sparkdl.data.shard import Range
from sparkdl.errors import ConfigError
from sparkdl.files import storage


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a b/1.csv", "a b/2.csv", "c/3.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def names(paths: Paths) -> list[str]:
    return [url[-5:] for url in urls_of(find(paths))]


# ---- forms of paths


def test_relative_paths_are_not_those_of_a_training_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training process works in a directory of its own; input files are where they were."""
    own = folder / "own"
    own.mkdir()
    monkeypatch.chdir(own)
    monkeypatch.setenv(context.VARIABLE, "{}")
    context.activate(context.Context(run="r", folder=str(own), task_cwd=str(folder)))
    assert names("a b") == ["1.csv", "2.csv"]
    assert names(["c/3.csv", f"{folder}/c"]) == ["3.csv", "3.csv"]
    assert absolute("c") == f"{folder}/c"


def test_local_urls_as_spark_writes_them(folder: Path) -> None:
    for scheme in ("file:", "file://", ""):
        assert names(f"{scheme}{folder}/a b") == ["1.csv", "2.csv"]
        assert names(f"{scheme}{folder}/a%20b/2.csv") == ["2.csv"]
    assert names([f"file:{folder}/c/3.csv", f"file://{folder}/a%20b/1.csv"]) == ["3.csv", "1.csv"]


def test_a_name_with_a_percent_sign_is_itself_first(folder: Path) -> None:
    (folder / "a%20b").mkdir()
    (folder / "a%20b/4.csv").touch()
    assert names(folder / "a%20b") == ["4.csv"]


def test_braces(folder: Path) -> None:
    assert names(f"{folder}/{{a b,c}}/*.csv") == ["1.csv", "2.csv", "3.csv"]
    assert names(f"{folder}/{{a b/{{1,2}},none}}.csv") == ["1.csv", "2.csv"]
    (folder / "{x,y}").mkdir()
    (folder / "{x,y}/5.csv").touch()
    assert names(folder / "{x,y}") == ["5.csv"], "a name with braces is a name"
    with pytest.raises(FileNotFoundError, match=r"no files found at '.*\{u,v\}'"):
        find(f"{folder}/{{u,v}}")


def test_chained_urls(folder: Path) -> None:
    pytest.importorskip("sparkdl.files.stores")
    store = f"memory://{folder}"
    storage.write(f"{store}/1.csv", b"x\n1\n")
    for url in (f"simplecache::{store}", f"simplecache::{store}/*.csv"):
        (found,) = find(url)
        assert not found.is_local
        (again,) = urls_of([found])
        assert again == f"simplecache::memory://{folder}/1.csv"
        assert storage.read(again) == b"x\n1\n"


@pytest.mark.parametrize("read", [data.parquet, data.csv, data.tfrecord, data.petastorm])
@pytest.mark.parametrize("before", ["", "simplecache::", "zip://*.csv::FILECACHE::"])
def test_ftp_is_refused_before_a_connection(read: Any, before: str) -> None:
    with pytest.raises(ConfigError, match=r"a path is on FTP .* Use sftp://, or copy"):
        read(f"{before}ftp://ann:pass@localhost:1/rows", batch_size_per_worker=4)


def test_markers_of_hadoop_on_s3_are_no_files(folder: Path) -> None:
    (folder / "c/day=3_$folder$").touch()
    assert names(folder / "c") == ["3.csv"]


# ---- a list for other ranks


FORMS: list[Callable[[Path], Any]] = [
    lambda folder: folder,
    lambda folder: folder / "c/3.csv",
    lambda folder: f"{folder}/*/*.csv",
    lambda folder: f"{folder}/{{a b,c}}/*.csv",
    lambda folder: [f"file:{folder}/a%20b/2.csv", folder / "c"],
]


@pytest.mark.parametrize("form", FORMS)
def test_another_rank_gets_the_same_files(folder: Path, form: Callable[[Path], Any]) -> None:
    paths = form(folder)
    found = find(paths)
    again = find_again(paths, [files.to_dict() for files in found])
    assert [{**vars(files), "filesystem": None} for files in again] == [
        {**vars(files), "filesystem": None} for files in found
    ]
    assert urls_of(again) == urls_of(found)


def test_files_that_come_and_go_are_not_seen_by_other_ranks(folder: Path) -> None:
    listed = [files.to_dict() for files in find(folder)]
    (folder / "c/0.csv").touch()
    (folder / "c/3.csv").unlink()
    assert urls_of(find_again(folder, listed))[2].endswith("/c/3.csv")


def test_a_relative_path_is_relative_on_every_rank(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors work in folders of their own."""
    monkeypatch.chdir(folder)
    listed = [files.to_dict() for files in find("c")]
    other = folder / "a b"
    (other / "c").mkdir()
    monkeypatch.chdir(other)
    assert urls_of(find_again("c", listed)) == [f"{other}/c/3.csv"]


def test_copies_of_a_file_on_several_hosts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was written at another time."""
    paths = folder / "c/3.csv"
    listed = [files.to_dict() for files in find(paths)]
    os.utime(paths, (1, 1))
    assert find_again(paths, listed)[0].has_changed(0)
    monkeypatch.setattr(socket, "gethostname", lambda: "other")
    assert not find_again(paths, listed)[0].has_changed(0)
    paths.write_text("longer than before")
    assert find_again(paths, listed)[0].has_changed(0)


# ---- folders of tables


def table_of(folder: Path, metadata: str) -> Path:
    """A table with a file that an update has replaced."""
    for name in ("part-0.parquet", "part-1.parquet", "year=1/part-2.parquet"):
        (folder / "table" / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": [1, 2]}), folder / "table" / name)
    (folder / "table" / metadata).parent.mkdir(parents=True)
    (folder / "table" / metadata).touch()
    return folder / "table"


METADATA = {
    "Delta": "_delta_log/00000000000000000000.json",
    "Hudi": ".hoodie/hoodie.properties",
    "Iceberg": "metadata/v1.metadata.json",
}
ADVICE = {"Delta": "data.delta", "Hudi": "df.inputFiles", "Iceberg": "df.inputFiles"}


@pytest.mark.parametrize("store", ["local", "memory"])
@pytest.mark.parametrize("kind", METADATA)
def test_the_folder_of_a_table_is_refused(tmp_path: Path, kind: str, store: str) -> None:
    table: Any = table_of(tmp_path, METADATA[kind])
    if store == "memory":
        for path in table.rglob("*"):
            if path.is_file():
                storage.write(f"memory://{path}", path.read_bytes())
        table = f"memory://{table}"
    for path in (table, f"{table}/*.parquet", f"{table}/year=1", os.path.dirname(table)):
        with pytest.raises(ConfigError, match=f"belongs to a {kind} table.*{ADVICE[kind]}"):
            list_row_groups(path, None)


@pytest.mark.parametrize("store", ["local", "memory"])
@pytest.mark.parametrize("kind", METADATA)
def test_a_pattern_above_a_table_is_refused(tmp_path: Path, kind: str, store: str) -> None:
    """The folder before the first wildcard is not that of the table."""
    table_of(tmp_path, METADATA[kind])
    (tmp_path / "plain").mkdir()
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "plain/part-0.parquet")
    parent: Any = tmp_path
    if store == "memory":
        for path in tmp_path.rglob("*.*"):
            if path.is_file():
                storage.write(f"memory://{path}", path.read_bytes())
        parent = f"memory://{tmp_path}"
    for pattern in ("*/part-*.parquet", "tab*/*.parquet", "*/year=1/*.parquet", "*/year=*"):
        with pytest.raises(ConfigError, match=f"belongs to a {kind} table.*{ADVICE[kind]}"):
            list_row_groups(f"{parent}/{pattern}", None)
    assert ParquetSource(f"{parent}/pl*/*.parquet", None, {}).sizes == [2]


def test_each_folder_above_the_matches_is_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/x=1/1", "a/x=1/2", "a/x=2/1", "b/x=1/1"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    looked: list[str] = []

    def look(_: Any, folder: str) -> None:
        looked.append(os.path.relpath(folder, tmp_path))

    monkeypatch.setattr(table_formats, "_kind_of_table", look)
    find(f"{tmp_path}/*/x=*/*", refuses_tables=True)
    assert sorted(looked) == ["a", "a/x=1", "a/x=2", "b", "b/x=1"]


def test_the_data_folder_of_an_iceberg_table_is_refused(tmp_path: Path) -> None:
    table = table_of(tmp_path, METADATA["Iceberg"])
    (table / "data").mkdir()
    (table / "part-0.parquet").rename(table / "data/part-0.parquet")
    with pytest.raises(ConfigError, match="Iceberg"):
        list_row_groups(table / "data", None)


def test_a_folder_called_metadata_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "metadata/a.parquet")
    assert ParquetSource(tmp_path, None, {}).sizes == [1]


@pytest.mark.parametrize("kind", METADATA)
def test_petastorm_refuses_the_folder_of_a_table(tmp_path: Path, kind: str) -> None:
    table = table_of(tmp_path, METADATA[kind])
    with pytest.raises(ConfigError, match=f"belongs to a {kind} table"):
        PetastormSource(str(table))


@pytest.mark.parametrize("kind", METADATA)
def test_the_files_of_a_table_can_be_read(tmp_path: Path, kind: str) -> None:
    table = table_of(tmp_path / "with space", METADATA[kind])
    urls = [f"file://{table}/part-0.parquet".replace(" ", "%20"), f"file:{table}/part-1.parquet"]
    source = ParquetSource(urls, None, {})
    rows = list(source.read([Range(0, 0, 2), Range(1, 0, 1)], ["id"]))
    assert [i for batch in rows for i in batch["id"].to_pylist()] == [1, 2, 1]
