"""Datasets of petastorm: written by Spark, read row by row, next to petastorm's own readers."""

import importlib
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PythonException
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from sparkdl import context, data
from sparkdl.data.column_selection import ColumnSelection
from sparkdl.data.lanes import Pass
from sparkdl.data.readers.petastorm.materialize import materialize
from sparkdl.data.readers.petastorm.ngrams import SequenceForm
from sparkdl.data.readers.petastorm.reader import (
    PetastormSource,
    UnischemaWarning,
    compat,
    petastorm,
)
from sparkdl.data.readers.petastorm.schema import to_arrow
from sparkdl.data.shard import Range
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from tests.helpers.processes import eventually

pytestmark = pytest.mark.slow


def unischema(*fields: Any) -> Any:
    """A Unischema of fields (name, dtype, shape, codec, nullable)."""
    compat.load()
    module = importlib.import_module("petastorm.unischema")
    return module.Unischema("test", [module.UnischemaField(*field) for field in fields])


def codecs() -> Any:
    compat.load()
    return importlib.import_module("petastorm.codecs")


def many(spark: SparkSession, rows: int = 103) -> DataFrame:
    """A DataFrame with a column of every kind that has a codec."""
    return (
        spark.range(rows)
        .repartition(3)
        .selectExpr(
            "id",
            "cast(id % 100 as tinyint) tiny",
            "cast(id as smallint) small",
            "cast(id as int) `a whole.number`",
            "cast(id as float) / 4f x",
            "cast(id as double) / 3 y",
            "id % 2 = 0 even",
            "concat('nö ', id) text",
            "cast(concat('b', id) as binary) raw",
            "date_add(date '2020-01-01', cast(id as int)) day",
            "timestamp_ntz '2020-01-01 00:00:00' + make_dt_interval(0, 0, 0, id / 8) time",
            "cast(id / 4 as decimal(10, 2)) money",
            "array(cast(id as float), 1.5f, -1f) vector",
            "array(array(id, 1L), array(2L, id), array(0L, 0L)) matrix",
            "if(id % 7 = 0, null, id) hole",
            "if(id % 5 = 0, null, array(cast(id as double), 1d)) hollow",
        )
    )


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A dataset of several files with several row groups."""
    url = str(tmp_path_factory.mktemp("petastorm") / 'it\'s a "röw" #1%20')
    materialize(many(spark), url, rows_per_file=20)
    yield url


def read(source: PetastormSource, names: Any = None, ranges: Any = None) -> list[dict[str, Any]]:
    """The rows of a source as Python values."""
    ranges = ranges or [Range(piece, 0, rows) for piece, rows in enumerate(source.sizes)]
    batches = list(source.read(ranges, names or source.columns))
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int, int], None]:
    """Makes this process one of several ranks."""
    monkeypatch.setenv(context.VARIABLE, "{}")
    folder = tmp_path / "trial"
    folder.mkdir()

    def become(rank: int, world_size: int) -> None:
        context.activate(
            context.Context(
                run="r",
                rank=rank,
                world_size=world_size,
                num_readers=world_size,
                folder=str(folder),
            )
        )

    return become


def test_what_spark_wrote_is_read_row_by_row(spark: SparkSession, written: str) -> None:
    source = PetastormSource(written, trust=True)
    assert len(source.sizes) >= 6
    assert sum(source.sizes) == 103
    expected = {row.id: row.asDict() for row in many(spark).collect()}
    assert {row["id"]: row for row in read(source)} == {
        number: {**row, "raw": bytes(row["raw"])} for number, row in expected.items()
    }


def test_any_part_of_any_row_group_can_be_read(written: str) -> None:
    source = PetastormSource(written, trust=True)
    last = len(source.sizes) - 1
    rows = read(source, ["vector", "id"])
    assert list(rows[0]) == ["vector", "id"]
    begin = sum(source.sizes[:last])
    ranges = [Range(last, 1, 3), Range(0, 0, 1), Range(last, 2, 2), Range(last, 0, 2)]
    found = read(source, ["vector", "id"], ranges)
    assert found == [*rows[begin + 1 : begin + 3], rows[0], *rows[begin : begin + 2]]


def test_row_groups_stand_in_petastorms_own_order(written: str) -> None:
    """Piece i is the shard i of petastorm, if there is one shard per row group."""
    source = PetastormSource(written, trust=True)
    filesystem, path = storage.filesystem(written)
    dataset = compat.ParquetDataset(path, filesystem)
    metadata = importlib.import_module("petastorm.etl.dataset_metadata")
    pieces = metadata.load_row_groups(dataset)
    assert len(pieces) == len(source.sizes)
    for number, piece in enumerate(pieces):
        ids = [row["id"] for row in read(source, ["id"], [Range(number, 0, source.sizes[number])])]
        assert piece.read(["id"], None).column("id").to_pylist() == ids


def test_petastorms_own_reader_gives_the_same(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path / "ds")  # petastorm takes URLs, where a space or a quote is another thing.
    df = many(spark).select("id", "small", "x", "even", "text", "day", "time", "matrix", "hollow")
    # (A column's name must be a name in Python there.)
    materialize(df, url, rows_per_file=20)
    module = data.petastorm.load()
    source = PetastormSource(url, trust=True)
    ours = {row["id"]: row for row in read(source)}
    for number in (0, len(source.sizes) - 1):
        with module.make_reader(
            f"file://{url}",
            reader_pool_type="dummy",
            shuffle_row_groups=False,
            cur_shard=number,
            shard_count=len(source.sizes),
        ) as reader:
            theirs = [row._asdict() for row in reader]
        assert len(theirs) == source.sizes[number]
        for row in theirs:
            same = ours[row["id"]]
            for name, value in row.items():
                if name in ("day", "time"):
                    assert value == np.datetime64(same[name])
                elif isinstance(value, np.ndarray):
                    assert value.tolist() == same[name]
                else:
                    assert value == same[name] or (value is None and same[name] is None)


def test_a_dataset_that_petastorm_wrote(spark: SparkSession, tmp_path: Path) -> None:
    """Its own functions reach Spark's tasks, and work there."""
    schema = unischema(("id", np.int64, (), codecs().ScalarCodec(T.LongType()), False))
    metadata = importlib.import_module("petastorm.etl.dataset_metadata")
    with metadata.materialize_dataset(spark, f"file://{tmp_path}/ds", schema, 1):
        spark.range(40, numPartitions=3).write.parquet(f"{tmp_path}/ds")
    source = PetastormSource(f"{tmp_path}/ds", trust=True)
    assert len(source.sizes) == 3
    assert sorted(row["id"] for row in read(source)) == list(range(40))


def test_every_read_gives_every_row(written: str) -> None:
    for _ in range(100):
        assert len(read(PetastormSource(written, trust=True), ["id"])) == 103


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_share_the_rows(
    written: str, world_size: int, rank: Callable[[int, int], None]
) -> None:
    shared, steps = [], set()
    for number in range(world_size):
        rank(number, world_size)
        dataset = petastorm(
            written,
            feature_cols=("vector", "matrix"),
            label_cols="id",
            batch_size_per_worker=8,
            shuffle=True,
            last_batch="drop",
            trust=True,
        )
        batches = list(dataset.as_numpy_iterator())
        steps.add(len(batches))
        for (vector, matrix), ids in batches:
            assert vector.shape == (8, 3) and vector.dtype == np.float32
            assert matrix.shape == (8, 3, 2) and matrix.dtype == np.int64
            assert (vector[:, 0] == ids).all() and (matrix[:, 1, 1] == ids).all()
            shared += ids.tolist()
    assert len(steps) == 1
    assert len(shared) == len(set(shared)) == 103 // (8 * world_size) * 8 * world_size


def test_shapes_are_known_before_a_row_is_read(written: str) -> None:
    source = PetastormSource(written, ["matrix"], trust=True)
    selection = ColumnSelection({"matrix": "matrix"})
    elements = source.blocks(lambda: Pass.in_order(()), selection).tensors()
    assert elements.element_spec["matrix"].shape.as_list() == [None, 3, 2]


def test_nulls_are_refused_or_filled(written: str) -> None:
    with pytest.raises(Exception, match="column 'hole' has"):
        list(petastorm(written, feature_cols="hole", batch_size_per_worker=8, trust=True))
    filled = petastorm(
        written, feature_cols="hole", fill={"hole": -1}, batch_size_per_worker=103, trust=True
    )
    (found,) = filled.as_numpy_iterator()
    assert (found == -1).sum() == 15 and found.dtype == np.int64
    with pytest.raises(ConfigError, match="fill names column 'holes', which does not exist"):
        petastorm(written, fill={"holes": -1}, batch_size_per_worker=8, trust=True)


def test_arrays_of_different_shapes_are_ragged(spark: SparkSession, tmp_path: Path) -> None:
    schema = unischema(
        ("id", np.int64, (), codecs().ScalarCodec(T.LongType()), False),
        ("words", np.int32, (None,), codecs().NdarrayCodec(), True),
        ("cloud", np.float32, (None, 3), codecs().CompressedNdarrayCodec(), False),
    )
    df = (
        spark.range(40)
        .repartition(2)
        .selectExpr(
            "id",
            "if(id = 3, null, array_repeat(cast(id as int), cast(id % 4 as int))) words",
            "array_repeat(array(cast(id as double), 0.5d, 1d), cast(id % 3 as int)) cloud",
        )
    )
    url = str(tmp_path / "ragged")
    assert materialize(df, url, schema) is schema
    rows = {row["id"]: row for row in read(PetastormSource(url, trust=True))}
    assert rows == {row.id: row.asDict() for row in df.collect()}
    dataset = petastorm(url, columns=["id", "cloud"], batch_size_per_worker=40, trust=True)
    (batch,) = dataset
    lists = batch["cloud"].to_list()
    assert [len(cloud) for cloud in lists] == [number % 3 for number in batch["id"].numpy()]
    with pytest.raises(PythonException, match=r"'vector' does not fit.*None for them"):
        uneven = spark.range(9, numPartitions=1).selectExpr(
            "array_repeat(1f, 1 + cast(id as int)) vector"
        )
        materialize(uneven, str(tmp_path / "uneven"))
    assert not (tmp_path / "uneven").exists()


def test_numbers_as_bytes_or_as_one_flat_array(spark: SparkSession, tmp_path: Path) -> None:
    schema = unischema(
        ("a", np.uint8, (2, 3), codecs().NdarrayCodec(), False),
        ("b", np.float32, (None, 2), codecs().NdarrayCodec(), False),
        ("c", np.uint8, (), codecs().ScalarCodec(T.ShortType()), False),
    )
    rows = [(bytes(range(n, n + 6)), [float(n)] * 2 * n, n + 200) for n in range(1, 5)]
    df = spark.createDataFrame(rows, "a binary, b array<double>, c int")
    url = f"file://{tmp_path}/flat"
    materialize(df, url, schema)
    found = sorted(read(PetastormSource(url, trust=True)), key=lambda row: row["c"])
    assert [row["c"] for row in found] == [201, 202, 203, 204]
    assert found[1]["a"] == [[2, 3, 4], [5, 6, 7]]
    assert found[1]["b"] == [[2.0, 2.0], [2.0, 2.0]]
    source = PetastormSource(url, trust=True)
    assert source.schema.field("c").type == pa.uint8()
    large = spark.createDataFrame(
        [([300] * 6, [1.0, 2.0], 3)], "a array<int>, b array<double>, c int"
    )
    with pytest.raises(PythonException, match="'a' does not fit"):
        materialize(large, str(tmp_path / "large"), schema)


def test_a_null_where_the_unischema_has_none(spark: SparkSession, tmp_path: Path) -> None:
    schema = unischema(("a", np.int64, (), codecs().ScalarCodec(T.LongType()), False))
    df = spark.createDataFrame([(1,), (None,)], "a long")
    with pytest.raises(PythonException, match="'a' has a null"):
        materialize(df, str(tmp_path / "nulls"), schema)


def test_images(spark: SparkSession, tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    schema = unischema(
        ("id", np.int64, (), codecs().ScalarCodec(T.LongType()), False),
        ("image", np.uint8, (4, 5, 3), codecs().CompressedImageCodec("png"), False),
    )
    pixels = np.arange(60, dtype=np.uint8)
    rows = [(n, bytes(pixels + n)) for n in range(10)]
    url = str(tmp_path / "images")
    materialize(spark.createDataFrame(rows, "id long, image binary"), url, schema)
    dataset = petastorm(
        url, feature_cols="image", label_cols="id", batch_size_per_worker=10, trust=True
    )
    ((images, ids),) = dataset.as_numpy_iterator()
    assert images.dtype == np.uint8
    assert (images == (pixels + ids[:, None]).astype(np.uint8).reshape(10, 4, 5, 3)).all()


def test_images_without_opencv(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = codecs()
    monkeypatch.setattr(module, "OPENCV_AVAILABLE", True)  # Only to write its name.
    codec = module.CompressedImageCodec("png")
    schema = unischema(
        ("id", np.int64, (), module.ScalarCodec(T.LongType()), False),
        ("image", np.uint8, (1, 1), codec, True),
    )
    url = str(tmp_path / "images")
    materialize(spark.createDataFrame([(1, None)], "id long, image binary"), url, schema)
    monkeypatch.setattr(module, "OPENCV_AVAILABLE", False)
    with pytest.raises(ImportError, match="pip install opencv-python-headless"):
        PetastormSource(url, trust=True)
    assert read(PetastormSource(url, ["id"], trust=True)) == [{"id": 1}]


# ---- plain Parquet


@pytest.mark.filterwarnings("ignore:.*ARROW-1644.*matrix")  # What petastorm's own reader drops.
def test_plain_parquet_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path / "plain")
    df = many(spark).selectExpr("*", "id % 3 part", "concat('a/b=', id % 2) `other part`")
    df.write.partitionBy("part", "other part").option("maxRecordsPerFile", 9).parquet(url)
    source = PetastormSource(url)
    assert {row["id"]: row for row in read(source)} == {
        row.id: {**row.asDict(), "raw": bytes(row["raw"])} for row in df.collect()
    }
    assert source.schema.field("part").type == pa.int32()  # As in Spark.
    names = ["id", "x", "part", "even"]
    with compat.load().make_batch_reader(
        f"file://{url}", schema_fields=names, reader_pool_type="dummy", shuffle_row_groups=False
    ) as reader:
        theirs = [
            dict(zip(names, row, strict=True))
            for batch in reader
            for row in zip(*(getattr(batch, name).tolist() for name in names), strict=True)
        ]
    assert theirs == read(source, names)


def test_petastorms_own_threads_lose_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the workers were asked before they have anything to do, and the row groups after."""
    pq.write_table(pa.table({"id": range(12)}), tmp_path / "a.parquet", row_group_size=6)
    module = data.petastorm.load()
    pool = importlib.import_module("petastorm.workers_pool.thread_pool").ThreadPool
    are_done = pool.all_workers_done
    asked: list[bool] = []

    def are_done_at_first(self: Any) -> bool:
        asked.append(not asked)
        if asked[-1]:
            eventually(self._ventilator.completed)
        return asked[-1] or are_done(self)

    monkeypatch.setattr(pool, "all_workers_done", are_done_at_first)
    with module.make_batch_reader(f"file://{tmp_path}") as reader:
        ids = sorted(int(number) for batch in reader for number in batch.id)
    assert ids == list(range(pq.read_metadata(tmp_path / "a.parquet").num_rows))


def test_only_columns_of_folders(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path / "plain")
    spark.range(10).selectExpr("id", "if(id < 4, null, id % 2) part").write.partitionBy(
        "part"
    ).parquet(url)
    found = [row["part"] for row in read(PetastormSource(url, ["part"]))]
    assert sorted(found, key=str) == [0, 0, 0, 1, 1, 1, None, None, None, None]


@pytest.mark.filterwarnings("ignore:distutils Version classes:DeprecationWarning")
def test_what_a_spark_converter_wrote(spark: SparkSession, tmp_path: Path) -> None:
    compat.load()
    converters = importlib.import_module("petastorm.spark")
    spark.conf.set(converters.SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{tmp_path}")
    df = spark.createDataFrame(
        [(n, [n / 2, 1.0], Vectors.dense([n, 2.0])) for n in range(50)],
        ["id", "x", "v"],
    )
    converter = converters.make_spark_converter(df)
    dataset = petastorm(
        converter.cache_dir_url,
        feature_cols=["x", "v"],
        label_cols="id",
        batch_size_per_worker=50,
    )
    ((x, ids),) = dataset.as_numpy_iterator()
    assert x.dtype == np.float32
    assert x.tolist() == [[n / 2, 1.0, n, 2.0] for n in ids]
    assert sorted(ids) == list(range(50))


def test_vectors_of_spark_ml_become_dense(spark: SparkSession, tmp_path: Path) -> None:
    sparse = [Vectors.sparse(1 << 16, {n: 1.0, n + 7: n}) for n in range(300)]
    rows = [(n, Vectors.dense([n, 1.0]), vector) for n, vector in enumerate(sparse)]
    df = spark.createDataFrame(rows, ["id", "dense", "sparse"])
    df.coalesce(1).write.parquet(str(tmp_path / "vectors"))
    for read in (data.parquet, petastorm):
        found = read(str(tmp_path / "vectors"), batch_size_per_worker=200, shuffle=True)
        blocks = list(found.blocks.arrays())
        assert max(block["sparse"].nbytes for block in blocks) <= 8 << 20  # In small parts.
        (batch, last) = found.as_numpy()
        assert len(last["id"]) == 100
        assert batch["dense"].dtype == batch["sparse"].dtype == np.float32
        assert (batch["dense"] == np.stack([batch["id"], np.ones(200)], 1)).all()
        for n, row in zip(batch["id"].tolist(), batch["sparse"], strict=True):
            assert row.shape == (1 << 16,)
            assert row[n] == 1 and row[n + 7] == n and np.count_nonzero(row) == 1 + (n > 0)


def test_fixed_size_lists_that_petastorm_drops(tmp_path: Path) -> None:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(range(12), pa.float32()), 3)
    pq.write_table(pa.table({"id": range(4), "v": vectors}), tmp_path / "a.parquet")
    source = PetastormSource(str(tmp_path))
    assert list(source.columns) == ["id", "v"]
    assert read(source, ["v"])[1] == {"v": [3.0, 4.0, 5.0]}


@pytest.mark.parametrize("unischema", [True, False])
def test_datasets_on_s3(spark: SparkSession, s3: str, tmp_path: Path, unischema: bool) -> None:
    df = spark.range(30).selectExpr("id", "array(cast(id as float), 2f) v")
    here = tmp_path / "here"
    if unischema:
        materialize(df, str(here), rows_per_file=4)
    else:
        df.write.parquet(str(here))
    url = f"{s3}/{tmp_path.name} ü'"
    storage.copy(here, url)
    rows = read(PetastormSource(url.replace("s3://", "s3a://"), trust=True))
    assert sorted(row["id"] for row in rows) == list(range(30))
    assert all(row["v"] == [row["id"], 2.0] for row in rows)


# ---- trust


def test_a_unischema_is_a_pickle_and_says_so_once(
    spark: SparkSession, written: str, tmp_path: Path
) -> None:
    other = str(tmp_path / "other")
    materialize(spark.range(3), other)
    plain = str(tmp_path / "plain")
    spark.range(3).write.parquet(plain)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        petastorm(plain, batch_size_per_worker=8)
        petastorm(other, batch_size_per_worker=8, trust=True)
        for _ in range(3):
            petastorm(written, feature_cols="id", batch_size_per_worker=8)
    (warning,) = [w for w in caught if w.category is UnischemaWarning]
    assert "is a pickle" in str(warning.message) and "trust=True" in str(warning.message)
    assert warning.filename == __file__


# ---- petastorm's own objects


def own(name: str) -> Any:
    compat.load()
    return importlib.import_module(f"petastorm.{name}")


def ids_of(rows: Any) -> list[int]:
    return [int(i) for batch in rows.as_numpy() for i in batch["id"]]


def test_predicates_choose_the_rows_that_petastorm_chooses(written: str) -> None:
    predicates = own("predicates")
    first = predicates.in_pseudorandom_split([0.4, 0.6], 0, "text")
    others = predicates.in_negate(first)
    long = predicates.in_lambda(
        ["vector", "even"], lambda v, even: len(v) == 3 and v[0] > 9 and even
    )
    options: dict[str, Any] = {"batch_size_per_worker": 8, "trust": True}
    options["feature_cols"] = {"id": "id"}
    parts = [ids_of(petastorm(written, where=part, **options)) for part in (first, others)]
    assert sorted(parts[0] + parts[1]) == list(range(103)) and 20 < len(parts[0]) < 60
    expected = [i for i in range(103) if first.do_include({"text": f"nö {i}"})]
    assert sorted(parts[0]) == expected
    both = predicates.in_reduce([long, first], all)
    found = ids_of(petastorm(written, where=both, **options))
    assert sorted(found) == [i for i in expected if i > 9 and i % 2 == 0]


def test_lists_of_datasets_are_read_as_one(
    spark: SparkSession, tmp_path: Path, rank: Callable[[int, int], None]
) -> None:
    urls = [str(tmp_path / f"day={day}") for day in range(3)]
    for day, url in enumerate(urls):
        df = spark.range(day * 10, day * 10 + 7).selectExpr("id", "array(cast(id as float)) v")
        materialize(df, url, rows_per_file=3)
    options: dict[str, Any] = {"batch_size_per_worker": 4, "trust": True}
    found: list[int] = []
    for number in range(2):
        rank(number, 2)
        for batch in petastorm(urls, shuffle=True, **options).as_numpy():
            assert (batch["v"][:, 0] == batch["id"]).all()
            found += batch["id"].tolist()
    assert set(found) == {day * 10 + i for day in range(3) for i in range(7)} and len(found) <= 22
    spark.range(3).selectExpr("cast(id as int) id").write.parquet(str(tmp_path / "other"))
    rank(0, 1)
    with pytest.raises(ConfigError, match=r"other has the columns id \(int32\); expected those of"):
        petastorm([*urls, str(tmp_path / "other")], columns=["id"], **options)
    with pytest.raises(ConfigError, match="url is an empty list"):
        petastorm([], **options)


def test_a_transform_spec_of_rows_is_a_function_of_batches(written: str) -> None:
    def function(row: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(row["id"], np.int64) and row["matrix"].shape == (3, 2)
        row["vector"] *= 2
        row["name"] = row.pop("text").upper()
        row["first"] = [row["vector"][0], row["id"]]
        row["words"] = np.arange(row["id"] % 3)
        return row

    spec = own("transform").TransformSpec(
        function,
        edit_fields=[
            ("name", np.str_, (), False),
            ("first", np.float32, (2,), False),
            ("words", np.int32, (None,), False),
        ],
        removed_fields=["text", "matrix"],
    )
    options: dict[str, Any] = {
        "columns": ["id", "vector", "matrix", "text"],
        "batch_size_per_worker": 16,
        "trust": True,
    }
    rows = petastorm(written, map=spec, label_cols="id", **options)
    for batch, ids in rows.as_numpy():
        assert list(batch) == ["vector", "name", "first", "words"]
        assert batch["vector"].dtype == batch["first"].dtype == np.float32
        assert (batch["vector"][:, 0] == 2 * ids).all() and (batch["first"][:, 0] == 2 * ids).all()
        assert batch["name"].tolist() == [f"NÖ {i}" for i in ids]
        assert [len(words) for words in batch["words"]] == (ids % 3).tolist()
        assert batch["words"][0].dtype == np.int32
    with pytest.raises(ConfigError, match="no column 'text'"):
        petastorm(written, map=spec, feature_cols="text", **options)
    with pytest.raises(ConfigError, match="map is a TransformSpec, whose function has rows"):
        petastorm(written, map=spec, pad={"vector": 0}, **options)
    narrow = own("transform").TransformSpec(lambda row: row, [("id", np.int8, (), False)])
    petastorm(written, map=narrow, feature_cols="id", **options)
    wide = own("transform").TransformSpec(
        lambda row: {**row, "id": row["id"] + 999}, [("id", np.int8, (), False)]
    )
    with pytest.raises(RuntimeError, match=r"it returned \d+, which int8 cannot represent"):
        petastorm(written, map=wide, feature_cols="id", **options)
    selected = own("transform").TransformSpec(selected_fields=["text", "id"])
    (batch, *_) = petastorm(written, map=selected, **options).as_numpy()
    assert list(batch) == ["text", "id"]


def test_a_transform_spec_of_frames(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path / "plain")
    spark.range(10).selectExpr("id", "array(id, 1L, 2L, 3L) v", "'a' s").write.parquet(url)

    def function(frame: Any) -> Any:
        frame["v"] = frame["v"].map(lambda v: v.astype(np.float32))
        frame["twice"] = frame["id"] * 2
        del frame["s"]
        return frame

    fields = [("v", np.float32, (2, 2), False), ("twice", np.int32, (), False)]
    spec = own("transform").TransformSpec(function, fields, removed_fields=["s"])
    rows = petastorm(url, map=spec, label_cols="id", batch_size_per_worker=4)
    for batch, ids in rows.as_numpy():
        assert list(batch) == ["v", "twice"]
        assert batch["v"].shape[1:] == (2, 2) and (batch["v"][:, 0, 0] == ids).all()
        assert batch["twice"].dtype == np.int32 and (batch["twice"] == 2 * ids).all()
    turned = own("transform").TransformSpec(
        lambda frame: frame.assign(v=[np.zeros((4, 1), np.float32)] * len(frame)), fields[:1]
    )
    with pytest.raises(RuntimeError, match=r"array of shape \(4, 1\); expected \(2, 2\)"):
        petastorm(url, map=turned, batch_size_per_worker=4)
    lacking = own("transform").TransformSpec(lambda frame: frame[["id"]])
    with pytest.raises(RuntimeError, match=r"it returned no 'v'\. Return it, or name it in remo"):
        petastorm(url, map=lacking, feature_cols="id", batch_size_per_worker=4)
    fewer = own("transform").TransformSpec(lambda frame: frame[frame["id"] > 100])
    with pytest.raises(
        RuntimeError, match=r"it returned 0 rows for .*; expected as many"
    ) as caught:
        petastorm(url, map=fewer, batch_size_per_worker=4)
    assert "<lambda>" in str(caught.value) and "test_petastorm.py" in str(caught.value)


@pytest.mark.parametrize("by_row", [True, False])
def test_a_transform_spec_has_the_times_of_petastorm(
    spark: SparkSession, tmp_path: Path, by_row: bool
) -> None:
    url = str(tmp_path / "times")
    df = many(spark, 20).selectExpr("id", "day", "time", "cast(time as timestamp) utc")
    materialize(df, url) if by_row else df.write.parquet(url)
    seen: dict[int, list[Any]] = {}

    def function(rows: Any) -> Any:
        first = rows if by_row else rows.iloc[0]
        seen[int(first["id"])] = [first[name] for name in ("day", "time", "utc")]
        rows["time"] = rows["time"] + np.timedelta64(1, "s")
        rows["later"] = rows["utc"] + (np.timedelta64(1, "s") if by_row else pd.Timedelta("1s"))
        return rows

    spec = own("transform").TransformSpec(function, [("later", np.datetime64, (), False)])
    options: dict[str, Any] = {"batch_size_per_worker": 1, "trust": True}
    plain = {int(batch["id"][0]): batch for batch in petastorm(url, **options).as_numpy()}
    for batch in petastorm(url, map=spec, **options).as_numpy():
        stored = plain[int(batch["id"][0])]
        dtypes = {name: each.dtype for name, each in batch.items()}
        assert dtypes == {"id": "i8", "day": "i4", "time": "i8", "utc": "i8", "later": "i8"}
        assert batch["day"] == stored["day"] and batch["utc"] == stored["utc"]
        assert batch["time"] - stored["time"] == batch["later"] - stored["utc"] == 1_000_000
    assert len(seen) == 20
    ours, module = dict(seen), data.petastorm.load()
    make = module.make_reader if by_row else module.make_batch_reader
    with make(f"file://{url}", reader_pool_type="dummy", transform_spec=spec) as reader:
        list(reader)
    assert seen == ours
    for number, values in seen.items():
        assert [type(value) for value in ours[number]] == [type(value) for value in values]

    def without(rows: Any) -> Any:
        rows["day"] = np.datetime64("NaT", "D")
        return rows

    with pytest.raises(RuntimeError, match="it returned NaT or None, which no number stands for"):
        petastorm(url, map=own("transform").TransformSpec(without), **options)


@pytest.mark.parametrize("overlap", [True, False])
def test_an_ngram_gives_the_sequences_that_petastorm_gives(
    spark: SparkSession, tmp_path: Path, overlap: bool, rank: Callable[[int, int], None]
) -> None:
    url = str(tmp_path / "times")
    df = spark.range(60, numPartitions=1).selectExpr(
        "id * 2 + if(id % 7 = 0, 0, 1) + 5 * cast(id / 11 as long) t",
        "cast(id as float) x",
        "array(cast(id as double), 1d) v",
    )
    materialize(df, url, rows_per_file=25)
    module = data.petastorm.load()
    ngram_of = own("ngram").NGram
    fields = {-1: ["x", "v"], 0: ["t"], 1: ["x"]}
    sequences = ngram_of(fields, 3, "t", overlap)
    with module.make_reader(
        f"file://{url}",
        schema_fields=ngram_of(fields, 3, "t", overlap),
        reader_pool_type="dummy",
        shuffle_row_groups=False,
    ) as reader:
        theirs = {
            repr((float(s[-1].x), s[-1].v.tolist(), int(s[0].t), float(s[1].x))) for s in reader
        }
    assert 15 < len(theirs) < 58
    names = ("x[-1]", "v[-1]", "t[0]", "x[1]")
    for shuffle in (False, True):
        ours = []
        for number in range(2):
            rank(number, 2)
            rows = petastorm(
                url,
                columns=sequences,
                feature_cols=names,
                batch_size_per_worker=4,
                shuffle=shuffle,
                trust=True,
                last_batch="pad",
            )
            for batch in rows.as_numpy():
                ours += list(zip(*(column.tolist() for column in batch), strict=True))
        assert len(ours) - len(theirs) in (0, 1)
        assert {repr(row) for row in ours} == theirs
    rank(0, 1)
    (batch, *_) = petastorm(
        url, columns=sequences, where={"x[1]": [5.0]}, batch_size_per_worker=4, trust=True
    ).as_numpy()
    assert batch["x[-1]"].tolist() == [3.0]


def test_ngrams_that_cannot_be_read(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path / "times")
    spark.range(9, numPartitions=1).selectExpr("-id t", "string(id) s").write.parquet(url)
    ngram_of = own("ngram").NGram

    def read(time: str, field: str = "t", **options: Any) -> Any:
        ngram = ngram_of({0: [field], 1: [field]}, 3, time)
        return petastorm(url, columns=ngram, batch_size_per_worker=4, **options)

    with pytest.raises(ValueError, match="'t' is not sorted within a row group"):
        read("t")
    with pytest.raises(ConfigError, match="times of an NGram are in 's', string"):
        read("s")
    with pytest.raises(ConfigError, match="field 'u', which is not a column"):
        read("t", "u")
    with pytest.raises(ConfigError, match="several columns of time: t, s"):
        read(".")
    with pytest.raises(ConfigError, match="an NGram and map is a TransformSpec"):
        read("t", map=own("transform").TransformSpec())


def test_starts_of_sequences() -> None:
    def starts(times: list[int], length: int, overlaps: bool = True) -> list[int]:
        form = SequenceForm({0: ["x"], length - 1: ["x"]}, "t", 4, overlaps)
        return form.starts(np.array(times)).tolist()

    assert starts([0, 3, 8, 10, 11, 20, 30], 2) == [0, 2, 3]
    assert starts([0, 1, 2, 3, 4, 5, 6], 3, overlaps=False) == [0, 3]
    assert starts([0, 1, 1, 1, 2, 3], 2, overlaps=False) == [0, 4]
    assert starts([5], 1) == [0]
    assert starts([1, 2], 3) == starts([], 2) == []


# ---- what is refused


def test_files_that_came_or_went(spark: SparkSession, tmp_path: Path) -> None:
    url = tmp_path / "ds"
    materialize(spark.range(30), str(url), rows_per_file=5)
    files = sorted(url.glob("*.parquet"))
    files[0].with_name("_other").mkdir()
    files[0].rename(url / "_other" / files[0].name)
    with pytest.raises(ValueError, match="1 files have other row groups"):
        PetastormSource(str(url), trust=True)
    (url / "_other" / files[0].name).rename(files[0])
    assert len(read(PetastormSource(str(url), trust=True))) == 30
    spark.range(5).write.mode("append").parquet(str(url))
    with pytest.raises(ValueError, match="none expected, 1 found"):
        PetastormSource(str(url), trust=True)


def test_a_file_that_changed_while_open(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(30).coalesce(1).write.parquet(str(tmp_path / "ds"))
    source = PetastormSource(str(tmp_path / "ds"))
    (file,) = (tmp_path / "ds").glob("*.parquet")
    for rows in (12, 30, 40):
        pq.write_table(pa.table({"id": range(rows)}), file)
        with pytest.raises(ValueError, match=r"\.parquet has changed since it was listed"):
            read(source, None, [Range(0, 3, 5)])


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no Parquet file found at"):
        PetastormSource(str(tmp_path / "nothing"))
    pq.write_table(pa.table({"id": range(12)}), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"b\.parquet is not a Parquet file, or is cut short"):
        PetastormSource(str(tmp_path))


def test_columns_that_are_not_there(written: str) -> None:
    with pytest.raises(ConfigError, match=r"no column 'vektor'\. Did you mean 'vector'"):
        PetastormSource(written, ["vektor"], trust=True)


def test_values_without_a_tensor(spark: SparkSession, tmp_path: Path) -> None:
    schema = unischema(
        ("id", np.int64, (), codecs().ScalarCodec(T.LongType()), False),
        ("wave", np.complex64, (2,), codecs().NdarrayCodec(), True),
    )
    df = spark.createDataFrame([(1, None)], "id long, wave binary")
    materialize(df, str(tmp_path / "ds"), schema)
    with pytest.raises(ConfigError, match="'wave' holds complex64"):
        PetastormSource(str(tmp_path / "ds"), trust=True)
    assert read(PetastormSource(str(tmp_path / "ds"), ["id"], trust=True)) == [{"id": 1}]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("map('a', id)", r"'x' is map<string,bigint>, which has no codec\. Select the values"),
        ("struct(id)", "which has no codec. Select its fields"),
        ("array('a')", "'x' is array<string>; only arrays of numbers"),
        ("cast(null as array<float>)", "no array to take the shape from"),
    ],
)
def test_columns_without_a_codec(
    spark: SparkSession, tmp_path: Path, column: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        materialize(spark.range(3).selectExpr(f"{column} x"), str(tmp_path / "ds"))
    assert not (tmp_path / "ds").exists()


def test_arguments_of_materialize(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(3)
    with pytest.raises(ConfigError, match="rows_per_file is 0"):
        materialize(df, str(tmp_path / "ds"), rows_per_file=0)
    with pytest.raises(ConfigError, match=r"row_group_size_mb is 1\.5"):
        materialize(df, str(tmp_path / "ds"), row_group_size_mb=1.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="exists already"):
        materialize(df, str(tmp_path))
    schema = unischema(("a", np.int64, (), codecs().ScalarCodec(T.LongType()), False))
    with pytest.raises(ConfigError, match="the Unischema has the fields a; the DataFrame"):
        materialize(df, str(tmp_path / "ds"), schema)


def test_size_of_row_groups(spark: SparkSession, tmp_path: Path) -> None:
    df = (
        spark.range(64)
        .coalesce(1)
        .selectExpr("id", "transform(sequence(1, 20000), i -> sqrt(id * 20000d + i)) noise")
    )
    before = spark.sparkContext._jsc.hadoopConfiguration().get("parquet.block.size")
    materialize(df, str(tmp_path / "ds"), row_group_size_mb=1)
    sizes = PetastormSource(str(tmp_path / "ds"), trust=True).sizes
    assert sum(sizes) == 64 and len(sizes) >= 8
    assert spark.sparkContext._jsc.hadoopConfiguration().get("parquet.block.size") == before


def test_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    materialize(spark.range(0), str(tmp_path / "ds"))
    source = PetastormSource(str(tmp_path / "ds"), trust=True)
    assert sum(source.sizes) == 0
    assert list(source.columns) == ["id"]


def test_without_petastorm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['petastorm'] = None\n"
        "from sparkdl.data.readers.petastorm.reader import petastorm\n"
        "petastorm('/nowhere', batch_size_per_worker=1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "MissingPackageError" in done.stderr and "'sparkdl-platform[petastorm]'" in done.stderr


# ---- arrays


def test_arrays_and_lists() -> None:
    ragged = [np.ones((2, 0)), None, np.arange(6.0).reshape(3, 2)]
    assert to_arrow(ragged, np.float64, (None, None)).to_pylist() == [
        [[], []],
        None,
        [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]],
    ]
    fixed = to_arrow([None, np.array([["a", "bc"]])], np.str_, (1, 2))
    assert fixed.to_pylist() == [None, [["a", "bc"]]]
    assert to_arrow([np.float32(1), None], np.float32, ()).to_pylist() == [1.0, None]
    assert to_arrow([], np.int8, (2, None)).to_pylist() == []
    with pytest.raises(ValueError, match=r"has the shape \(3,\); the Unischema says \(2,\)"):
        to_arrow([np.ones(3)], np.float64, (2,))
    with pytest.raises(ValueError, match="300"):
        to_arrow([np.array([300])], np.uint8, (1,))
