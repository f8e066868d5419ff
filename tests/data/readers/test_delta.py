"""Delta tables, written by deltalake: the rows of a version, and what is refused."""

import datetime
import json
import os
import shutil
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sparkdl import context
from sparkdl.data.readers.delta import delta
from sparkdl.data.readers.delta_log import newest_version
from sparkdl.data.readers.file_records import compare_files
from sparkdl.data.readers.parquet import parquet
from sparkdl.data.readers.paths import find
from sparkdl.errors import ConfigError
from sparkdl.files.layout import FILES

DAY = datetime.date(2026, 1, 31)
COLUMNS = ["x", "y", "z", "part"]


def rows_of(ids: Iterable[int], part: str, **columns: Any) -> pa.Table:
    values = [*ids]
    table = {"x": [n / 2 for n in values], "y": values, "part": [part] * len(values)}
    return pa.table({**table, **{name: [of] * len(values) for name, of in columns.items()}})


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Five versions: written, appended to, with another column, rows deleted, overwritten."""
    path = str(tmp_path_factory.mktemp("delta") / "a table")
    first = pa.concat_tables([rows_of(range(4), "a b"), rows_of(range(4, 6), "01")])
    write_deltalake(path, first, partition_by=["part"])
    write_deltalake(path, rows_of(range(6, 9), "a b"), mode="append")
    more = rows_of(range(9, 12), "c/d", z=7)
    write_deltalake(path, more, mode="append", schema_mode="merge")
    DeltaTable(path).delete("y = 2 OR y = 7")
    write_deltalake(path, rows_of([40], "e", z=8), mode="overwrite")
    return path


def read(path: str, **arguments: Any) -> list[tuple[Any, ...]]:
    """The rows as (x, y, z, part), sorted by y."""
    options = {"feature_cols": {name: name for name in COLUMNS}, "fill": {"z": -1}, **arguments}
    rows: list[tuple[Any, ...]] = []
    for batch in delta(path, batch_size_per_worker=3, **options).as_numpy():
        columns = [batch[name].tolist() for name in options["feature_cols"]]
        rows += zip(*columns, strict=True)
    return sorted(rows, key=lambda row: row[1])


def expected(path: str, version: int) -> list[tuple[Any, ...]]:
    """The rows of a version as deltalake reads them."""
    rows = DeltaTable(path, version=version).to_pyarrow_table().to_pylist()
    found = [
        (row["x"], row["y"], -1 if row.get("z") is None else row["z"], row["part"]) for row in rows
    ]
    return sorted(found, key=lambda row: row[1])


def test_the_rows_of_every_version_are_read(table: str) -> None:
    for version in (2, 3, 4):
        assert read(table, version=version) == expected(table, version)
    assert read(table) == expected(table, 4) == [(20.0, 40, 8, "e")]
    early = read(table, version=0, feature_cols={"x": "x", "y": "y"}, fill={})
    assert early == [(n / 2, n) for n in range(6)]


def test_a_version_is_chosen_by_its_time(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    write_deltalake(path, rows_of([1], "a"))
    written = datetime.datetime.fromtimestamp(
        DeltaTable(path).history()[0]["timestamp"] / 1000, datetime.timezone.utc
    )
    day = datetime.timedelta(days=1)
    options: dict[str, Any] = {"feature_cols": {"x": "x", "y": "y"}, "fill": {}}
    write_deltalake(path, rows_of([2], "a"), mode="overwrite")
    log = tmp_path / "table/_delta_log" / f"{1:020}.json"
    later = json.dumps({"commitInfo": {"timestamp": int((written + 2 * day).timestamp() * 1000)}})
    actions = [line for line in log.read_text().splitlines() if "commitInfo" not in line]
    log.write_text("\n".join([later, *actions]) + "\n")
    stamp = (written + 2 * day).timestamp()
    os.utime(log, (stamp, stamp))
    for time in (written + day, (written + day).isoformat()):
        assert read(path, version=time, **options) == [(0.5, 1)]
    with pytest.raises(ConfigError, match="had no version yet at"):
        read(path, version=written - day)
    assert read(path, **options) == [(1.0, 2)]


def test_files_that_the_filter_excludes_are_not_opened(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    parts = [rows_of([n], "a", day=day, z=n) for n, day in enumerate([DAY, None, DAY])]
    for part in parts:
        fields = part.schema.set(3, pa.field("day", pa.date32()))
        write_deltalake(path, part.cast(fields), mode="append", partition_by=["day"])
    for file in tmp_path.glob("table/day=__HIVE*/*"):
        file.write_bytes(b"no Parquet")
    rows = read(path, filter=[("day", ">=", DAY), ("y", ">", 0)])
    assert rows == [(1.0, 2, 2, "a")]
    with pytest.raises(ValueError, match="Parquet"):
        read(path)


def test_the_version_is_recorded_and_compared(table: str, tmp_path: Path) -> None:
    with context.acting_as(context.Context(run="one", folder=str(tmp_path))):
        read(table, version=3)
    record = str(tmp_path / FILES)
    assert json.loads(Path(record).read_text())["version"] == 3
    assert not list(compare_files(record, find, newest_version))
    path = str(tmp_path / "table")
    write_deltalake(path, rows_of([1], "a", z=1))
    with context.acting_as(context.Context(run="one", folder=str(tmp_path))):
        read(path)
    assert not list(compare_files(record, find, newest_version))
    write_deltalake(path, rows_of([2], "a", z=1), mode="append")
    ((paths, before, now),) = compare_files(record, find, newest_version)
    assert paths == path
    assert (before, now) == ("version 0, the newest one", "version 1, the newest one")


def deletion_vector(path: Path) -> dict[str, Any]:
    """Write that row 0 is deleted, in the format of "Deletion Vectors" in Delta's protocol."""
    bitmap = struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, 0)  # Roaring: one array with the number 0.
    data = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    path.write_bytes(struct.pack(">BI", 1, len(data)) + data + struct.pack(">I", zlib.crc32(data)))
    place = {"storageType": "p", "pathOrInlineDv": path.as_uri(), "offset": 1}
    return {**place, "sizeInBytes": len(data), "cardinality": 1}


def with_metadata(path: Path, protocol: dict[str, Any], configuration: dict[str, str]) -> None:
    """Change the protocol and the configuration of a table's first version."""
    log = path / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = protocol
        if "metaData" in action:
            action["metaData"]["configuration"] = configuration
            schema = json.loads(action["metaData"]["schemaString"])
            for number, field in enumerate(schema["fields"] if configuration else (), 1):
                field["metadata"] = {
                    "delta.columnMapping.id": number,
                    "delta.columnMapping.physicalName": f"col-{number}",
                }
            action["metaData"]["schemaString"] = json.dumps(schema)
        if "add" in action and "deletionVectors" in protocol.get("readerFeatures", ()):
            action["add"]["deletionVector"] = deletion_vector(path / "rows.bin")
    log.write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def test_tables_that_need_spark_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "table"
    write_deltalake(str(path), rows_of([1, 2], "a"))
    with_metadata(
        path, {"minReaderVersion": 2, "minWriterVersion": 5}, {"delta.columnMapping.mode": "name"}
    )
    with pytest.raises(ConfigError, match=r"renamed columns .*mode=name.*spark\.read\.table"):
        read(str(path))
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    with_metadata(path, {"minReaderVersion": 3, "minWriterVersion": 7, **features}, {})
    with pytest.raises(ConfigError, match=r"only marked as deleted .*REORG TABLE"):
        read(str(path))


def test_what_cannot_be_read_is_refused(table: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"version=99 of .*a table' cannot be read"):
        read(table, version=99)
    for version in (-1, True, 1.0):
        with pytest.raises(ConfigError, match=f"version is {version}; expected the number"):
            read(table, version=version)
    with pytest.raises(ConfigError, match="version='yesterday'"):
        read(table, version="yesterday")
    with pytest.raises(FileNotFoundError, match=r"no Delta table at .*nowhere"):
        read(str(tmp_path / "nowhere"))
    by_bytes = tmp_path / "by-bytes"
    write_deltalake(by_bytes, pa.table({"x": [1], "b": [b"a"]}), partition_by=["b"])
    with pytest.raises(ConfigError, match=r"partitioned by 'b', whose values are binary"):
        delta(by_bytes, batch_size_per_worker=1)
    path = str(tmp_path / "table")
    write_deltalake(path, rows_of([1], "a"))
    DeltaTable(path).delete()
    with pytest.raises(ConfigError, match=r"version 1 of .* has no files"):
        read(path)
    with pytest.raises(ConfigError, match=r"belongs to a Delta table.* data\.delta\(path\)"):
        parquet(path, batch_size_per_worker=1)


def test_a_path_that_deltalake_decodes_is_refused(table: str, tmp_path: Path) -> None:
    for name in ("a%20table", "a table"):
        shutil.copytree(table, tmp_path / name)
    expected = "for which deltalake reads ' ', and so looks in another folder. Rename the folder"
    with pytest.raises(ConfigError, match=f"has %20 in its path, {expected}"):
        read(str(tmp_path / "a%20table"))
    shutil.copytree(table, tmp_path / "50% a table")
    assert len(read(str(tmp_path / "50% a table"))) == 1
