"""Rows of sorted files are shuffled: against a true shuffle, for any number of pieces and ranks."""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv as arrow_csv

from sparkdl import context, data
from sparkdl.context import Context
from sparkdl.data.batching import Batches, passes
from sparkdl.data.dataframe.known_order import pass_order
from sparkdl.data.readers.base import ArrowSource
from sparkdl.data.shard import Range
from sparkdl.data.tfexample.columns import Column, Kind
from sparkdl.data.tfexample.encode import encode
from sparkdl.data.tfexample.framing import frame

BATCH, CLASSES, EPOCHS = 256, 10, 4
ROWS, WINDOW = 1 << 16, 1 << 14
NUM_PIECES = (1, 2, 5, 16, 48, 64, 200, 3000)


class Sorted(ArrowSource):
    """Pieces whose rows are numbered through."""

    name = "sorted"

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self.schema = pa.schema([("id", pa.int64())])
        self._starts = np.cumsum(sizes) - np.asarray(sizes)

    def read(self, ranges: Sequence[Range], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for part in ranges:
            start = int(self._starts[part.piece])
            yield pa.record_batch({"id": np.arange(start + part.start, start + part.stop)})


def sizes_of(num_pieces: int, are_equal: bool) -> list[int]:
    """The sizes of pieces with `ROWS` rows together; the largest have ten times the mean."""
    random = np.random.default_rng(num_pieces)
    weights = np.ones(num_pieces) if are_equal else random.lognormal(0, 1, num_pieces)
    ends = np.round(np.cumsum(weights) / weights.sum() * ROWS).astype(int)
    return np.diff(ends, prepend=0).tolist()


def orders(source: ArrowSource, ranks: int, **options: Any) -> "list[list[np.ndarray[Any, Any]]]":
    """The ids of the rows in the order of each pass and rank."""
    batches = Batches.parse({"global_batch_size": BATCH, "shuffle": WINDOW, **options})
    found = []
    for rank in range(ranks):
        me = Context(rank=rank, world_size=ranks, num_readers=ranks, data_seed=11)
        read = passes(source.sizes, batches, me, ["id"])
        passed = [
            np.concatenate([batch["id"] for batch in source.read_pass(read.next(), ["id"])])
            for _ in range(EPOCHS)
        ]
        found.append(passed)
    return [list(each) for each in zip(*found, strict=True)]


def largest_correlation(epochs: "list[list[np.ndarray[Any, Any]]]") -> float:
    """The largest correlation, of two epochs, of the steps at which a row is read."""
    rows = max(int(order.max()) for ranks in epochs for order in ranks) + 1
    steps = np.full((len(epochs), rows), np.nan)
    for number, ranks in enumerate(epochs):
        for order in ranks:
            steps[number, order] = np.arange(len(order))
    steps = steps[:, ~np.isnan(steps).any(0)]
    pairs = combinations(steps, 2)
    return max(abs(float(np.corrcoef(one, two)[0, 1])) for one, two in pairs)


def entropy(labels: "np.ndarray[Any, Any]") -> float:
    """The mean entropy of the classes in batches, in nats; all batches but a last, smaller one."""
    whole = labels[: len(labels) // BATCH * BATCH].reshape(-1, BATCH)
    shares = np.stack([(whole == label).mean(1) for label in range(CLASSES)])
    return float(-(shares * np.log(np.where(shares > 0, shares, 1))).sum(0).mean())


def relative_entropy(ranks: "list[np.ndarray[Any, Any]]", labels: "np.ndarray[Any, Any]") -> float:
    """The entropy of global batches, relative to that of a true shuffle."""
    each = BATCH // len(ranks)
    steps = min(len(order) for order in ranks) // each
    ids = np.stack([order[: steps * each].reshape(steps, each) for order in ranks], 1).ravel()
    truly = np.random.default_rng(0).permutation(labels)
    return entropy(labels[ids]) / entropy(truly)


def classes_of(sizes: Sequence[int]) -> "dict[str, np.ndarray[Any, Any]]":
    """Labels of sorted rows: each file has all, the files follow each other, or both."""
    within = np.concatenate([np.arange(size) / max(size, 1) for size in sizes])
    over = np.arange(sum(sizes)) / sum(sizes)
    both = (over * 2).astype(int) * (CLASSES // 2) + (within * (CLASSES // 2)).astype(int)
    return {
        "inside pieces": (within * CLASSES).astype(int),
        "over pieces": (over * CLASSES).astype(int),
        "both": both,
    }


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("are_equal", [True, False], ids=["equal", "unequal"])
@pytest.mark.parametrize("num_pieces", NUM_PIECES)
def test_every_epoch_is_a_shuffle(num_pieces: int, are_equal: bool, ranks: int) -> None:
    sizes = sizes_of(num_pieces, are_equal)
    epochs = orders(Sorted(sizes), ranks)
    for order in epochs:
        assert np.array_equal(np.sort(np.concatenate(order)), np.arange(ROWS))
        for sorting, labels in classes_of(sizes).items():
            assert relative_entropy(order, labels) >= 0.95, sorting
        neighbours = np.abs(np.diff(order[0])) < 10
        assert neighbours.mean() < 0.02
    assert largest_correlation(epochs) < 0.1


@pytest.mark.parametrize("rows", [ROWS, 5 * ROWS // 4])
def test_rows_from_spark_are_shuffled(rows: int) -> None:
    """The rows of a rank, in the order of their arrival; those of one task arrive together."""
    epochs = [[pass_order(rows, WINDOW, seed=[3, epoch])] for epoch in range(EPOCHS)]
    for order in epochs:
        assert np.array_equal(np.sort(order[0]), np.arange(rows))
        for sorting, labels in classes_of([rows // 8] * 8).items():
            assert relative_entropy(order, labels) >= 0.95, sorting
    assert largest_correlation(epochs) < 0.1


# ---- readers

FILES, FILE_ROWS = 12, 1000
SMALL = {"shuffle": 4096, "feature_cols": "id", "label_cols": "label", "global_batch_size": BATCH}


def tables() -> list[pa.Table]:
    """The content of the files, each sorted by label."""
    numbers = np.arange(FILE_ROWS)
    return [
        pa.table(
            {
                "id": number * FILE_ROWS + numbers,
                "label": numbers * CLASSES // FILE_ROWS,
                "tokens": [[1] * (1 + i % 3) for i in range(FILE_ROWS)],
            }
        )
        for number in range(FILES)
    ]


def parquet(folder: Path) -> Callable[[], Any]:
    for number, table in enumerate(tables()):
        pq.write_table(table, folder / f"{number}.parquet")
    return lambda **more: data.parquet(folder, **SMALL, **more)


def csv(folder: Path) -> Callable[[], Any]:
    for number, table in enumerate(tables()):
        arrow_csv.write_csv(table.drop_columns(["tokens"]), folder / f"{number}.csv")
    return lambda: data.csv(folder, **SMALL)


def tfrecord(folder: Path) -> Callable[[], Any]:
    columns = [Column(name, Kind.INT64, pa.int64()) for name in ("id", "label")]
    for number, table in enumerate(tables()):
        (batch,) = table.select(["id", "label"]).to_batches()
        folder.joinpath(f"{number}.tfrecord").write_bytes(frame(encode(batch, columns)))
    return lambda: data.tfrecord(folder, **SMALL)


def petastorm(folder: Path) -> Callable[[], Any]:
    parquet(folder)
    return lambda: data.petastorm(f"file://{folder}", **SMALL)


def mix(folder: Path) -> Callable[[], Any]:
    read = parquet(folder)
    return lambda: data.mix([read()])


def buckets(folder: Path) -> Callable[[], Any]:
    parquet(folder)
    columns = {"id": "id", "tokens": "tokens"}
    options = {**SMALL, "feature_cols": columns, "pad": {"tokens": 0}, "bucket_by": "tokens"}
    return lambda: data.parquet(folder, **options)


@pytest.mark.parametrize("make", [parquet, csv, tfrecord, petastorm, mix, buckets])
def test_sorted_files_are_shuffled_by_each_reader(
    make: Callable[[Path], Callable[[], Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(context.VARIABLE, "{}")
    rows = make(tmp_path)()
    labels = np.concatenate([table["label"] for table in tables()])
    epochs = []
    for _ in range(3):
        batches = [features for features, _ in rows.as_numpy_iterator()]
        ids = [batch["id"] if isinstance(batch, dict) else batch for batch in batches]
        epochs.append([np.concatenate(ids)])
    for order in epochs:
        # A mix has whole batches only.
        assert len(order[0]) > FILES * FILE_ROWS - BATCH
        assert len(np.unique(order[0])) == len(order[0])
        assert relative_entropy(order, labels) >= 0.95
    assert largest_correlation(epochs) < 0.1
