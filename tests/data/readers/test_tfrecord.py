"""TFRecord files as batches in a training process, by real TensorFlow."""

import contextlib
import gzip
import os
from collections import Counter, namedtuple
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from sparkdl import context
from sparkdl.data.lanes import Lane, Pass
from sparkdl.data.readers import local_copies
from sparkdl.data.readers import tfrecord as module
from sparkdl.data.readers.tfrecord import TFRecordSource, tfrecord
from sparkdl.data.shard import Range
from sparkdl.data.tfexample import marks
from sparkdl.data.tfexample.columns import Column, Kind
from sparkdl.data.tfexample.encode import encode
from sparkdl.data.tfexample.framing import frame
from sparkdl.errors import ConfigError
from sparkdl.files import storage

pytestmark = pytest.mark.slow

COLUMNS = [
    Column("id", Kind.INT64, pa.int64()),
    Column("pixels", Kind.FLOAT, pa.float32(), is_array=True),
    Column("näme", Kind.BYTES, pa.string()),
    Column("words", Kind.BYTES, pa.string(), is_array=True),
]


@pytest.fixture(autouse=True)
def small_files_have_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark after each two or three records, so that readers begin in the middle of files."""
    monkeypatch.setattr(marks, "MIN_DISTANCE_BYTES", 200)


def rows(start: int, stop: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {"id": i, "pixels": [i / 4] * 6, "näme": f"ü {i}", "words": ["w"] * (i % 3)}
            for i in range(start, stop)
        ],
        schema=pa.schema([(column.name, column.arrow_type) for column in COLUMNS]),
    )


def written(folder: str, sizes: Sequence[int]) -> str:
    """Write files with the given numbers of records; every third file is compressed."""
    before = 0
    for number, size in enumerate(sizes):
        data = frame(encode(rows(before, before + size), COLUMNS))
        data = gzip.compress(data) if number % 3 == 1 else data
        storage.write(f"{folder}/{number:02d}", data)
        before += size
    return folder


def ids(source: TFRecordSource, *lanes: Lane) -> list[int]:
    dataset = source.columns_of(lambda: Pass(lanes, 64), ["id"])
    return [int(i) for block in dataset for i in block["id"]]


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
                data_seed=5,
                folder=str(folder),
            )
        )

    return become


def test_columns_are_inferred_and_logged(root: str, caplog: pytest.LogCaptureFixture) -> None:
    source = TFRecordSource(written(root, [5, 0, 3]))
    assert source.sizes == [5, 0, 3]
    assert list(source.columns) == ["id", "näme", "pixels", "words"]
    assert caplog.messages == [
        f"{root}: the first 8 of 8 records have id: int64, näme: string, pixels: float32 [6], "
        "words: string [ragged]. Pass schema= if other records differ"
    ]
    [block] = source.columns_of(lambda: Pass.in_order([Range(0, 1, 3)]), source.columns)
    assert block["id"].numpy().tolist() == [1, 2]
    assert block["pixels"].numpy().tolist() == [[0.25] * 6, [0.5] * 6]
    assert block["näme"].numpy().tolist() == ["ü 1".encode(), "ü 2".encode()]
    assert block["words"].to_list() == [[b"w"], [b"w", b"w"]]
    assert block["pixels"].shape == (2, 6)


def test_schemas(root: str, caplog: pytest.LogCaptureFixture) -> None:
    import tensorflow as tf

    folder = written(root, [4])
    schema = {
        "pixels": ("float32", [2, 3]),
        "words": ("bytes", [None]),
        "näme": tf.string,
        "id": tf.io.FixedLenFeature([], tf.int64),
        "missing": tf.io.FixedLenFeature([], tf.int64, default_value=7),
        "none": tf.io.VarLenFeature(tf.int64),
    }
    source = TFRecordSource(folder, schema)
    assert caplog.text == ""
    dataset = source.columns_of(lambda: Pass.in_order([Range(0, 0, 4)]), source.columns)
    assert dataset.element_spec["pixels"].shape.as_list() == [None, 2, 3]
    [block] = dataset
    assert block["pixels"].shape == (4, 2, 3)
    assert block["missing"].numpy().tolist() == [7] * 4
    assert block["words"].to_list()[2] == [b"w", b"w"]
    assert block["none"].to_list() == [[]] * 4
    pair = namedtuple("pair", ["a", "b"])("float32", [2])
    for entry in (pair, "float64", ("float32", [None, 3]), 3, ("float32", [2], 0), "flaot32"):
        with pytest.raises(ConfigError, match=r"schema\['x'\] is .*; expected a dtype"):
            TFRecordSource(folder, {"x": entry})
    with pytest.raises(ConfigError, match="expected a dict from names to features"):
        TFRecordSource(folder, {})


def test_an_absent_array_of_any_length_is_empty(root: str) -> None:
    table = pa.table({"id": [0, 1, 2], "words": [["a"], None, ["b", "c"]]}).cast(
        pa.schema({"id": pa.int64(), "words": pa.list_(pa.string())})
    )
    records = encode(table.to_batches()[0], [COLUMNS[0], COLUMNS[3]])
    storage.write(f"{root}/0", frame(records))
    schema = {"words": ("string", [None]), "pixels": ("float32", [None])}
    for shuffle in (False, True):
        read = tfrecord(root, schema=schema, batch_size_per_worker=3, shuffle=shuffle)
        [arrays] = read.as_numpy()
        read.plan.numbers.upcoming = 0
        [tensors] = read
        assert [len(row) for row in arrays["pixels"]] == [0, 0, 0]
        assert [row.tolist() for row in arrays["words"]] == tensors["words"].to_list()
        assert sorted(map(len, tensors["words"].to_list())) == [0, 1, 2]


def test_sparse_features_become_dense(root: str) -> None:
    import tensorflow as tf

    values = {"place": [[2, 0], [], [4]], "value": [[0.5, 1.0], [], [2.0]]}
    columns = [
        Column("place", Kind.INT64, pa.int64(), is_array=True),
        Column("value", Kind.FLOAT, pa.float32(), is_array=True),
    ]
    schema = pa.schema([(column.name, column.arrow_type) for column in columns])
    records = encode(pa.table(values, schema).to_batches()[0], columns)
    storage.write(f"{root}/0", frame(records))
    rows = tfrecord(
        root,
        schema={"x": tf.io.SparseFeature("place", "value", tf.float32, 5)},
        batch_size_per_worker=2,
    )
    assert rows.element_spec.shape.as_list() == [None, 5]
    expected = [[[1, 0, 0.5, 0, 0], [0] * 5], [[0, 0, 0, 0, 2]]]
    assert [batch.numpy().tolist() for batch in rows] == expected
    assert [batch.tolist() for batch in rows.as_numpy()] == expected


def test_ranges_in_order_and_shuffled(root: str) -> None:
    source = TFRecordSource(written(root, [700, 1500, 0, 900]), {"id": "int64"})
    ranges = [Range(3, 10, 900), Range(0, 0, 700), Range(1, 1400, 1500), Range(0, 3, 4)]
    expected = [*range(2210, 3100), *range(700), *range(2100, 2200), 3]
    assert ids(source, Lane(tuple(ranges))) == expected
    lanes = [tuple(ranges[:2]), (Range(1, 1400, 1450),), (Range(1, 1450, 1500), ranges[3])]
    one, again, two = (
        ids(source, *(Lane(lane, seed + number) for number, lane in enumerate(lanes)))
        for seed in (1, 1, 5)
    )
    assert one == again != two
    assert Counter(one) == Counter(two) == Counter(expected)
    # The lanes are read in turn, in chunks of 64 rows from several sections of their ranges.
    window = one[: 64 + 50 + 51]
    assert {3, *range(2100, 2200)} < set(window) and window != sorted(window)
    assert 2 <= len({(row - 2210) // 16 for row in window if row >= 2210}) <= 6
    assert len({min(row // 50, 44) for row in window[:30]}) >= 3


def test_each_iteration_asks_for_a_pass(root: str) -> None:
    source = TFRecordSource(written(root, [4]), {"id": "int64"})
    passes = map(Pass.in_order, ([Range(0, 0, 2)], [Range(0, 2, 4)], []))
    dataset = source.columns_of(lambda: next(passes), ["id"])
    assert [[b["id"].numpy().tolist() for b in dataset] for _ in range(3)] == [
        [[0, 1]],
        [[2, 3]],
        [],
    ]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("shuffle", [False, True])
def test_all_ranks_together_see_every_row(
    root: str, rank: Callable[[int, int], None], world_size: int, shuffle: bool
) -> None:
    folder = written(root, [13, 1, 40, 0, 29])
    batches = []
    for number in range(world_size):
        rank(number, world_size)
        dataset = tfrecord(
            folder,
            batch_size_per_worker=8,
            label_cols="id",
            shuffle=shuffle,
            epochs=2,
            feature_cols=["pixels", "id"],
        )
        batches.append([label.numpy().tolist() for _, label in dataset])
    assert len({tuple(map(len, of_rank)) for of_rank in batches}) == 1  # Equal steps and sizes.
    for epoch in (0, 1):
        steps = len(batches[0]) // 2
        seen = [i for b in batches for step in b[epoch * steps : (epoch + 1) * steps] for i in step]
        assert set(seen) == set(range(83))
        assert len(seen) == -(-83 // world_size) * world_size
    assert (batches[0][:steps] == batches[0][steps:]) is not shuffle


def test_fit(root: str) -> None:
    import keras

    model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    dataset = tfrecord(
        written(root, [40, 24]), batch_size_per_worker=16, feature_cols="pixels", label_cols="id"
    )
    assert len(dataset) == 4
    model.fit(dataset, epochs=2, verbose=0, shuffle=False)


def nameless() -> int:
    """Return the number of open files of this process that have been removed from their folders."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sum(link.endswith("(deleted)") for link in links)


def test_files_that_are_not_local(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(f"{s3}/{tmp_path.name} ü", [30, 50, 20])
    monkeypatch.setattr(local_copies, "CHUNK_BYTES", 1000)
    source = TFRecordSource(f"{folder}/*")
    assert source.sizes == [30, 50, 20]
    ranges = [Range(2, 0, 20), Range(1, 5, 50)]
    before = nameless()
    expected = [*range(80, 100), *range(35, 80)]
    assert ids(source, Lane(tuple(ranges))) == expected
    assert nameless() == before + 2  # Copies of those that were wanted.
    storage.remove(folder)
    assert ids(source, Lane(tuple(ranges))) == expected  # A second pass needs no download.


def test_a_file_cut_off_or_damaged(root: str) -> None:
    import tensorflow as tf

    written(root, [6])
    path = Path(root, "00")
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    with pytest.raises(
        ValueError,
        match=r"corrupt TFRecord file .*röot.*/00': the record at byte \d+ is cut off: .* ends",
    ):
        TFRecordSource(root)
    path.write_bytes(data[:-8] + b"\1" + data[-7:])
    source = TFRecordSource(root, {"id": "int64"})
    with pytest.raises(tf.errors.DataLossError, match="corrupted record at"):
        ids(source, Lane((Range(0, 0, 6),)))
    path.write_bytes(frame([b"no example"]))
    with pytest.raises(ValueError, match=r"röot.*/00', in the records from byte 0 on: "):
        TFRecordSource(root)
    with pytest.raises(FileNotFoundError, match="no files found at"):
        tfrecord(f"{root}/no*", batch_size_per_worker=1)
    with pytest.raises(ConfigError, match="compression is 'GZIP'"):
        tfrecord(root, compression="GZIP", batch_size_per_worker=1)


def test_a_file_that_was_written_again(root: str, s3: str, tmp_path: Path) -> None:
    """With more records, of which the first ones would be read in place of those counted."""
    import tensorflow as tf

    for folder in (root, f"{s3}/{tmp_path.name}"):
        written(folder, [6])
        source = TFRecordSource(folder, {"id": "int64"})
        written(folder, [9])
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="00 has changed since it was listed"
        ):
            ids(source, Lane((Range(0, 0, 6),)))


def test_large_records_make_small_blocks(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 1000)
    source = TFRecordSource(written(root, [40]), {"id": "int64"})
    sizes = [
        int(b["id"].shape[0])
        for b in source.columns_of(lambda: Pass.in_order([Range(0, 0, 40)]), ["id"])
    ]
    assert sum(sizes) == 40
    assert max(sizes) <= 1000 // 60
