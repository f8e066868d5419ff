"""Numbers of records that a writer leaves for readers, which need not read all files to count."""

import importlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparkdl import data
from sparkdl.data.tfexample.columns import Column, Kind
from sparkdl.data.tfexample.counts import FileCount, counts_of, pack_counts
from sparkdl.data.tfexample.dataframe_writer import _publish, _write
from sparkdl.data.tfexample.encode import encode
from sparkdl.data.tfexample.framing import frame, measure
from sparkdl.files import storage

COLUMNS = [Column("id", Kind.INT64, pa.int64())]
reader: Any = importlib.import_module("sparkdl.data.readers.record_index")


def write(folder: Path, *rows: int, compression: str | None = None) -> list[str]:
    """Write files with these numbers of rows, as a job does, and return their sorted names."""
    temporary, counts = f"{folder}/_temporary-1", {}
    for number in rows:
        batches = pa.table({"0": range(number)}).to_batches(max_chunksize=7)
        for made in _write(iter(batches), COLUMNS, temporary, compression):
            (file,) = made.to_pylist()
            name = file.pop("name")
            assert file.pop("has_values") == [True]
            counts[name] = FileCount(**file, compression=compression)
    _publish({name: name for name in counts}, temporary, str(folder), pack_counts(counts))
    return sorted(counts)


def count(path: Any, compression: str | None = "auto") -> dict[str, Any]:
    pieces: dict[str, Any] = reader.index_records(path, {"id": "int64"}, compression)
    return {name: pieces[name] for name in ("rows", "compressions", "num_bytes")}


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_files_that_were_counted_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str | None
) -> None:
    names = write(tmp_path, 5, 20, compression=compression)
    measured = [measure(f"{tmp_path}/{name}", compression) for name in names]
    expected = {
        "rows": [rows for rows, _ in measured],
        "compressions": [compression] * 2,
        "num_bytes": sum(num_bytes for _, num_bytes in measured),
    }
    assert sorted(expected["rows"]) == [5, 20]
    with monkeypatch.context() as patch:
        patch.setattr(reader, "measure", None)
        patch.setattr(reader, "compression_of", None)
        assert count(tmp_path) == expected
        assert count(f"{tmp_path}/part-*") == expected
        assert count([tmp_path / name for name in names]) == expected
    assert count(tmp_path, compression) == expected


def test_other_files_are_counted(tmp_path: Path) -> None:
    first, second = write(tmp_path, 5, 20)
    (tmp_path / second).write_bytes((tmp_path / first).read_bytes())  # By another program.
    (tmp_path / "part-9").write_bytes((tmp_path / first).read_bytes())
    assert set(count(tmp_path)["rows"]) == {measure(f"{tmp_path}/{first}", None)[0]}


def test_a_file_that_was_replaced_by_one_of_the_same_size_is_told(tmp_path: Path) -> None:
    (name,) = write(tmp_path, 20)
    *records, last = encode(pa.record_batch({"id": range(10)}), COLUMNS)
    num_bytes = (tmp_path / name).stat().st_size - len(frame([*records, last])) - 3
    filler = bytes([0x7A, num_bytes & 127 | 128, num_bytes >> 7]) + b"x" * num_bytes
    (tmp_path / name).write_bytes(frame([*records, last + filler]))
    assert count(tmp_path)["rows"] == [20]
    rows = data.tfrecord(tmp_path, schema={"id": "int64"}, batch_size_per_worker=4)
    with pytest.raises(ValueError, match=r"has 10 records, and had more .* remove _SUCCESS from"):
        list(rows.as_numpy())


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b"{}", b'{"tfrecord_files": {"part-0": {"rows": 1}}}']
)
def test_what_other_writers_leave_is_nothing(tmp_path: Path, content: bytes) -> None:
    storage.write(f"{tmp_path}/_SUCCESS", content)
    assert counts_of({f"{tmp_path}/part-0": 10}) == {}


def test_a_folder_without_an_end_has_no_counts(tmp_path: Path) -> None:
    assert counts_of({f"{tmp_path}/part-0": 10}) == {}
    assert counts_of({}) == {}
