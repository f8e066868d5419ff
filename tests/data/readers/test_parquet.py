"""Parquet files of pyarrow and Spark: what is read, what is left out, and what is refused."""

import datetime
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sparkdl.data.readers.parquet import ParquetSource, parquet
from sparkdl.data.readers.petastorm.reader import PetastormSource
from sparkdl.data.shard import Range
from sparkdl.errors import ConfigError

IDS = pa.table({"id": range(100), "x": [i / 2 for i in range(100)]})


def source_of(path: Any, condition: Any = None, **options: Any) -> ParquetSource:
    return ParquetSource(path, condition, options)


def read(source: ParquetSource, *names: str) -> list[tuple[Any, ...]]:
    """All rows, as tuples of these columns."""
    ranges = [Range(piece, 0, rows) for piece, rows in enumerate(source.sizes) if rows]
    batches = source.read(ranges, names or source.columns)
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def ids(source: ParquetSource) -> list[int]:
    return [row[0] for row in read(source, "id")]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """100 rows in row groups of 30."""
    pq.write_table(IDS, tmp_path / "some.parquet", row_group_size=30)
    return tmp_path / "some.parquet"


# ---- pieces and ranges


def test_a_piece_is_a_row_group(file: Path) -> None:
    source = source_of(file)
    assert source.sizes == [30, 30, 30, 10]
    assert source.columns == ["id", "x"]
    assert read(source) == [(i, i / 2) for i in range(100)]
    assert read(source, "x", "id")[3] == (1.5, 3)


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 30), (7, 8), (29, 30), (5, 25)])
def test_a_range_of_a_row_group(file: Path, start: int, stop: int) -> None:
    batches = source_of(file).read([Range(2, start, stop), Range(0, start, stop)], ["id"])
    found = [i for batch in batches for i in batch.column(0).to_pylist()]
    assert found == [*range(60 + start, 60 + stop), *range(start, stop)]


def test_large_row_groups_come_in_parts_of_some_megabytes(tmp_path: Path) -> None:
    x = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(40_000 * 784, np.float32)), 784)
    pq.write_table(pa.table({"x": x, "id": range(40_000)}), tmp_path / "p")
    source = source_of(tmp_path / "p")
    (rows,) = source.sizes
    seen = 0
    for batch in source.read([Range(0, 100, rows)], ["x", "id"]):
        # The values are all alike, and so take next to nothing in the file.
        assert batch.nbytes <= 10 << 20
        assert batch.column("id")[0].as_py() == 100 + seen
        seen += batch.num_rows
    assert seen == rows - 100


@pytest.mark.slow
def test_memory_does_not_grow_with_a_row_group(tmp_path: Path) -> None:
    """A process holds some batches at a time of a row group of half a GB."""
    x = np.random.default_rng(0).random((1 << 16, 2048), np.float32)
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 2048)})
    pq.write_table(table, tmp_path / "p", compression="none", use_dictionary=False)
    code = (
        "import resource, sys; from sparkdl.data.readers.parquet import ParquetSource, Range\n"
        "source = ParquetSource(sys.argv[1], None, {})\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\n"
        "rows, before = 0, peak()\n"
        "for batch in source.read([Range(0, 0, source.sizes[0])], ['x']): rows += batch.num_rows\n"
        "assert rows == 1 << 16, rows\n"
        "print(peak() - before)"
    )
    del table, x
    command = [sys.executable, "-c", code, str(tmp_path / "p")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150  # MB


def test_vectors_of_every_kind(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    flat = pa.array(rows.ravel())
    table = pa.table(
        {
            "list": pa.array(rows.tolist(), pa.list_(pa.float32())),
            "fixed": pa.FixedSizeListArray.from_arrays(flat, 3),
            "binary": [row.tobytes() for row in rows],
        }
    )
    pq.write_table(table, tmp_path / "p")
    for name in table.column_names:
        options = {"decode": {"binary": "float32"}} if name == "binary" else {}
        (batch,) = parquet(tmp_path / "p", feature_cols=name, global_batch_size=8, **options)
        assert batch.dtype == "float32" and batch.numpy().tolist() == rows.tolist()


# ---- filters


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ([("id", ">=", 95)], range(95, 100)),
        ([("id", "in", [3, 70]), ("x", "<", 10)], [3]),
        ([[("id", "<", 2)], [("x", ">", 48.5)]], [0, 1, 98, 99]),
        ((pc.field("x") < 1) | (pc.field("id") == 42), [0, 1, 42]),
        ([("id", "<", 0)], []),
    ],
)
def test_a_filter_is_of_rows(file: Path, condition: Any, expected: Any) -> None:
    source = source_of(file, condition)
    assert ids(source) == list(expected)
    assert sum(source.sizes) == len(list(expected))


def test_ranges_of_a_filtered_row_group_fit_together(tmp_path: Path) -> None:
    table = pa.table({"id": range(200_000), "keep": [i % 3 == 0 for i in range(200_000)]})
    pq.write_table(table, tmp_path / "p", row_group_size=150_000)
    source = source_of(tmp_path / "p", pc.field("keep"))
    assert source.sizes == [50_000, 16_667]
    cuts = [0, 1, 21_000, 21_845, 21_846, 50_000]
    found = []
    for start, stop in itertools.pairwise(cuts):
        for batch in source.read([Range(0, start, stop)], ["id"]):
            found += batch.column(0).to_pylist()
    assert found == list(range(0, 150_000, 3))


def test_row_groups_that_statistics_exclude_are_no_pieces(file: Path) -> None:
    assert source_of(file, [("id", ">", 65)]).sizes == [24, 10]


def test_a_null_fits_no_condition(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, None, 3]}), tmp_path / "p")
    assert ids(source_of(tmp_path / "p", [("id", "!=", 1)])) == [3]


@pytest.mark.parametrize(
    "condition",
    [[("year", ">", 1)], pc.field("year") > 1, [("id", ">", "a")], "id > 1", [("id",)], 3],
)
def test_a_filter_that_cannot_be_applied(file: Path, condition: Any) -> None:
    with pytest.raises(ConfigError, match=r"(?s)filter=.*Columns are id, x\."):
        source_of(file, condition)


def test_files_that_a_filter_excludes_do_not_count(tmp_path: Path) -> None:
    """A column exists since 2024, another has had another type before."""
    rows = {"id": [1, 2], "x": ["text", "text"]}, {"id": [3, 4], "x": [1.0, 2.0], "new": [5, 6]}
    for year, values in zip((2023, 2024), rows, strict=True):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(pa.table(values), tmp_path / f"year={year}/p")
    with pytest.raises(ConfigError, match="Columns are id, x, year"):
        source_of(tmp_path, [("other", ">=", 2024)])
    source = source_of(tmp_path, [("year", ">=", 2024)])
    assert source.columns == ["id", "x", "new", "year"]
    assert read(source, "new", "x", "year") == [(5, 1.0, 2024), (6, 2.0, 2024)]
    assert read(source_of(tmp_path, [("year", "=", 2023)]), "x") == [("text",)] * 2
    source = source_of(tmp_path, [("new", ">", 5), ("year", "=", 2024)])
    assert read(source, "id") == [(4,)]
    assert source_of(tmp_path, [("year", "=", 1999)]).sizes == []


def test_files_that_a_filter_excludes_are_not_opened(tmp_path: Path) -> None:
    for year in (2022, 2023, 2024):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(IDS, tmp_path / f"year={year}/p", row_group_size=30)
    (tmp_path / "year=2023/p").write_text("no Parquet file")
    for condition in ([("year", "=", 2024)], (pc.field("year") > 2023) & (pc.field("id") >= 0)):
        source = source_of(tmp_path, condition)
        assert source.sizes == [30, 30, 30, 10]
        assert ids(source) == list(range(100))
    with pytest.raises(ValueError, match=r"year=2023/p: .*not a parquet file"):
        source_of(tmp_path, [("id", ">", 1)])


# ---- timestamps


FOREVER = datetime.datetime(9999, 12, 31)


@pytest.fixture
def int96(tmp_path: Path) -> Path:
    """Timestamps as Spark writes them by default; the latter does not fit into nanoseconds."""
    table = pa.table(
        {"id": [1, 2, 3], "t": pa.array([datetime.datetime(2024, 1, 1), FOREVER, None])}
    )
    pq.write_table(table, tmp_path / "1", use_deprecated_int96_timestamps=True)
    assert pq.ParquetFile(tmp_path / "1").schema.column(1).physical_type == "INT96"
    return tmp_path


def test_timestamps_of_spark_are_read_as_they_were_written(int96: Path) -> None:
    assert read(source_of(int96), "t") == [(datetime.datetime(2024, 1, 1),), (FOREVER,), (None,)]
    condition = [("t", ">=", datetime.datetime(2024, 6, 1))]
    assert ids(source_of(int96, condition)) == [2]


def test_petastorm_reads_timestamps_of_spark_too(int96: Path) -> None:
    source = PetastormSource(str(int96))
    (batch,) = source.read([Range(0, 0, 3)], ["t"])
    assert batch["t"].to_pylist() == [datetime.datetime(2024, 1, 1), FOREVER, None]


def test_files_may_differ_in_the_unit_and_zone_of_a_timestamp(int96: Path) -> None:
    moment = datetime.datetime(2024, 1, 2, tzinfo=datetime.timezone.utc)
    for number, kind in enumerate((pa.timestamp("us", "UTC"), pa.timestamp("ms")), 2):
        table = pa.table({"id": [2 * number, 2 * number + 1], "t": pa.array([moment] * 2, kind)})
        pq.write_table(table, int96 / str(number))
    source = source_of(int96)
    assert source.schema.field("t").type == pa.timestamp("us")
    assert [t for (t,) in read(source, "t")][3:] == [datetime.datetime(2024, 1, 2)] * 4
    assert ids(source_of(int96, [("id", ">", 3)])) == [4, 5, 6, 7]
    late = [("t", ">", datetime.datetime(2024, 1, 1, 12))]
    assert ids(source_of(int96, late)) == [2, 4, 5, 6, 7]


# ---- folders, patterns, lists, stores


def test_what_is_hidden_is_left_out(tmp_path: Path) -> None:
    for name in ("b/1.parquet", "a.parquet", "_temporary/c", ".d.crc", "_SUCCESS", ".e/f"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    for number, name in enumerate(("a.parquet", "b/1.parquet")):
        pq.write_table(pa.table({"id": [number]}), tmp_path / name)
    assert ids(source_of(tmp_path)) == [0, 1]
    assert ids(source_of(f"{tmp_path}/*.parquet")) == [0]
    assert ids(source_of([tmp_path / "b", tmp_path / "a.parquet"])) == [1, 0]
    assert source_of([tmp_path / "b", tmp_path / "a.parquet"]).name.endswith("/b and 1 more")


def test_a_name_with_the_signs_of_patterns_is_a_name(tmp_path: Path) -> None:
    folder = tmp_path / "what [is]*this?::x"
    folder.mkdir()
    pq.write_table(IDS, folder / "p#%20ü")
    assert ids(source_of(folder)) == ids(source_of(folder / "p#%20ü")) == list(range(100))


def test_relative_paths(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    source = source_of("some.parquet")
    monkeypatch.chdir("/")
    assert ids(source) == list(range(100))


def test_folders_make_columns(tmp_path: Path) -> None:
    root = tmp_path / "k=9" / "table"
    for year in (2019, 2020):
        for city in ("a b", None):
            kept = "__HIVE_DEFAULT_PARTITION__" if city is None else "a%20b"
            folder = root / f"year={year}" / f"city={kept}"
            folder.mkdir(parents=True)
            pq.write_table(pa.table({"id": range(3)}), folder / "p")
    source = source_of(root)
    assert source.schema == pa.schema([("id", "int64"), ("year", "int32"), ("city", "string")])
    assert read(source, "year", "id", "city")[:4] == [
        (2019, 0, None),
        (2019, 1, None),
        (2019, 2, None),
        (2019, 0, "a b"),
    ]
    assert read(source, "year") == [(2019,)] * 6 + [(2020,)] * 6
    late = source_of(root, [("year", ">=", 2020), ("id", "<", 1)])
    assert read(late, "city", "id") == [(None, 0), ("a b", 0)]
    assert source_of(f"{root}/year=2020/*").columns == ["id", "city"]
    assert source_of(f"{root}/year=*").columns == ["id", "year", "city"]
    assert source_of(root / "year=2020" / "city=a%20b" / "p").columns == ["id"]


@pytest.mark.slow
@pytest.mark.parametrize("store", ["memory", "s3"])
def test_stores(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    from sparkdl.files import storage

    root = f"memory://{tmp_path}" if store == "memory" else request.getfixturevalue("s3")
    url = f"{root}/{tmp_path.name}/tä ble"
    pq.write_table(IDS, tmp_path / "p", row_group_size=30)
    for year in (1, 2):
        storage.put(tmp_path, "p", f"{url}/year={year}")
    storage.write(f"{url}/_SUCCESS", b"")
    for source in (
        source_of(url),
        source_of(f"{url}/*/p"),
        source_of([f"{url}/year=1", f"{url}/year=2/p"]),
    ):
        assert ids(source) == [*range(100)] * 2
    assert source_of(url, [("year", "=", 2), ("id", "<", 5)]).sizes == [5]
    storage.write(f"{url}/year=1/p", b"other")
    with pytest.raises(ValueError, match=r"year=1/p has changed since it was listed"):
        ids(source)


@pytest.mark.slow
def test_folders_that_spark_has_written(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(1000).selectExpr(
        "id",
        "cast(id % 3 as int) part",
        "array(cast(id as float), 2f) x",
        "cast(id as decimal(10,2)) d",
        "timestamp_micros(id) t",
        "date_add(date '1970-01-01', cast(id as int)) day",
    )
    path = str(tmp_path / "table")
    df.repartition(4).write.partitionBy("part").parquet(path)
    dataset = parquet(path, global_batch_size=1024, fill={"part": 0})
    (batch,) = dataset.as_numpy_iterator()
    order = np.argsort(batch["id"])
    assert batch["id"][order].tolist() == list(range(1000))
    assert (batch["part"] == batch["id"] % 3).all() and batch["part"].dtype == np.int32
    assert (batch["x"][:, 0] == batch["id"]).all() and batch["x"].dtype == np.float32
    assert (batch["d"] == batch["id"]).all() and batch["d"].dtype == np.float64
    assert (batch["t"] == batch["id"]).all() and batch["t"].dtype == np.int64
    assert (batch["day"] == batch["id"]).all() and batch["day"].dtype == np.int32


# ---- files that do not fit together, or are damaged


def test_columns_are_matched_by_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "x": [1.0]}), tmp_path / "1")
    pq.write_table(pa.table({"other": ["-"], "x": [2.0], "id": [2]}), tmp_path / "2")
    source = source_of(tmp_path)
    assert source.columns == ["id", "x"]
    assert read(source) == [(1, 1.0), (2, 2.0)]


def test_types_of_files_must_agree(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "x": [1.0]}), tmp_path / "1")
    pq.write_table(pa.table({"id": [1], "x": ["a"]}), tmp_path / "2")
    source = source_of(tmp_path)
    assert read(source, "id") == [(1,), (1,)]  # What is not wanted does not matter.
    with pytest.raises(ValueError, match=r"/2: column 'x' is string; in .*/1 it is double"):
        read(source)
    with pytest.raises(ValueError, match="column 'x' is string"):
        source_of(tmp_path, [("x", ">", 0)])


def test_a_column_that_one_file_lacks(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "x": [1.0]}), tmp_path / "1")
    pq.write_table(pa.table({"id": [1]}), tmp_path / "2")
    with pytest.raises(ValueError, match=r"/2 has no column 'x', which other files have"):
        read(source_of(tmp_path))


def test_files_may_differ_in_what_does_not_matter(tmp_path: Path) -> None:
    """Nullable or not, the name of a list's elements, and metadata."""
    kinds = [pa.field("element", pa.float32()), pa.field("item", pa.float32(), nullable=False)]
    for number, kind in enumerate(kinds):
        schema = pa.schema(
            [pa.field("x", pa.list_(kind), nullable=bool(number))], {"number": str(number)}
        )
        pq.write_table(pa.table({"x": [[number, 1.0]]}, schema), tmp_path / str(number))
    dataset = parquet(tmp_path, global_batch_size=4, shuffle=True)
    (batch,) = dataset
    assert sorted(batch.numpy().tolist()) == [[0, 1], [1, 1]]


def test_a_file_that_is_no_parquet(tmp_path: Path, file: Path) -> None:
    (tmp_path / "a.txt").write_text("some text, long enough")
    for path in (tmp_path / "a.txt", [file, tmp_path / "a.txt"], tmp_path):
        with pytest.raises(ValueError, match=r"/a\.txt: .*not a parquet file"):
            source_of(path)


def test_no_file_at_all(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone", f"{tmp_path}/*.parquet"):
        with pytest.raises(FileNotFoundError, match="no files found at"):
            source_of(path)
    with pytest.raises(ConfigError, match="the list of paths is empty"):
        source_of([])


def rewrite(file: Path) -> None:
    pq.write_table(IDS.slice(1), file, row_group_size=30)


def touch(file: Path) -> None:
    os.utime(file, (1, 1))


@pytest.mark.parametrize("change", [rewrite, touch])
def test_a_file_that_has_changed(file: Path, change: Callable[[Path], None]) -> None:
    source = source_of(file)
    change(file)
    with pytest.raises(ValueError, match=r"some\.parquet has changed since it was listed"):
        read(source)


def test_a_file_that_is_gone(file: Path) -> None:
    source = source_of(file)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"some\.parquet"):
        read(source)


def test_a_damaged_page_names_its_file(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[4:60] = bytes(56)
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"some\.parquet, row group 0: "):
        read(source_of(file))


@pytest.mark.parametrize(
    "option", [{"fill": {"z": 0}}, {"decode": {"z": "int8"}}, {"ragged": ["z"]}]
)
def test_arguments_name_columns_that_are_there(file: Path, option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(option))} names column 'z'.*are id, x"):
        source_of(file, **option)


# ---- what is left behind


def test_a_reader_that_is_left_closes_its_file(file: Path) -> None:
    source = source_of(file)
    for _ in range(20):
        next(source.read([Range(0, 0, 30), Range(1, 0, 30)], ["id"]))
    links = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    assert str(file) not in links


EPOCHS = """
import resource, sys
from sparkdl.data.readers.parquet import parquet

options = {"decode": {"x": "float32"}, "shuffle": True, "global_batch_size": 512}
dataset, peaks = parquet(sys.argv[1], **options), []
for epoch in range(20):
    assert sum(len(batch) for batch in dataset) == 20_000
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
print(peaks[-1] - peaks[4])
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_twenty_epochs_keep_memory_flat(tmp_path: Path) -> None:
    """A process of its own, whose memory other tests have not filled."""
    x = np.random.default_rng(0).random((20_000, 256), np.float32)
    table = pa.table({"x": [row.tobytes() for row in x]})
    pq.write_table(table, tmp_path / "p", row_group_size=5000, compression="none")
    command = [sys.executable, "-c", EPOCHS, str(tmp_path / "p")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 50  # MB
