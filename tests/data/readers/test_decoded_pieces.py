"""Rows that are sorted by class come in batches of all classes."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv as arrow_csv

from sparkdl import context, data
from sparkdl.data.lanes import Lane
from sparkdl.data.readers import decoded_pieces
from sparkdl.data.readers.decoded_pieces import DecodedPieces
from sparkdl.data.shard import Range

CLASSES, ROWS, BATCH = 10, 40_000, 200
TABLE = pa.table({"id": np.arange(ROWS), "label": np.arange(ROWS) * CLASSES // ROWS})


def large_row_groups(folder: Path) -> Any:
    pq.write_table(TABLE, folder / "p", row_group_size=ROWS // 4)
    return data.parquet


def many_row_groups(folder: Path) -> Any:
    pq.write_table(TABLE, folder / "p", row_group_size=ROWS // 150)
    return data.parquet


def csv_files(folder: Path) -> Any:
    for number in range(2):
        part = TABLE.slice(number * ROWS // 2, ROWS // 2)
        arrow_csv.write_csv(part, folder / f"{number}.csv")
    return data.csv


def records(folder: Path) -> Any:
    import tensorflow as tf

    def int64(value: int) -> Any:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))

    with tf.io.TFRecordWriter(str(folder / "0.tfrecord")) as file:
        for row in TABLE.to_pylist():
            features = tf.train.Features(feature={k: int64(v) for k, v in row.items()})
            file.write(tf.train.Example(features=features).SerializeToString())
    return data.tfrecord


def entropy(labels: Any) -> float:
    """The entropy of the classes in a batch, in nats."""
    shares = np.bincount(labels, minlength=CLASSES) / len(labels)
    return float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum())


@pytest.mark.parametrize("make", [large_row_groups, many_row_groups, csv_files, records])
def test_sorted_rows_are_as_mixed_as_in_a_true_shuffle(
    make: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(context.VARIABLE, "{}")
    options = {"feature_cols": "id", "label_cols": "label", "global_batch_size": BATCH}
    dataset = make(tmp_path)(str(tmp_path), shuffle=True, **options)
    ids, labels = [], []
    for batch, classes in dataset.as_numpy_iterator():
        ids += batch.tolist()
        labels.append(classes)
    assert sorted(ids) == list(range(ROWS))
    shuffled = np.random.default_rng(0).permutation(np.concatenate(labels)).reshape(-1, BATCH)
    expected = np.mean([entropy(batch) for batch in shuffled])
    assert np.mean([entropy(batch) for batch in labels]) >= 0.95 * expected
    assert np.mean(np.abs(np.diff(ids)) < 10) < 0.1, "neighbours stay together"


# ---- pieces that several lanes read


@pytest.mark.parametrize("memory_bytes", [0, 1 << 30], ids=["disk", "memory"])
def test_a_piece_is_decoded_once_and_given_back(
    memory_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoded_pieces, "MEMORY_BYTES", memory_bytes)
    read = []

    def decode(part: Range) -> Iterator[pa.RecordBatch]:
        read.append(part)
        names = pa.array(["a", "b"] * (ROWS // 2)).dictionary_encode()
        table = pa.table({"id": TABLE["id"], "name": names})
        yield from table.slice(part.start, part.stop - part.start).to_batches(1000)

    parts = [Range(3, 100, 2500), Range(3, 2500, 2600), Range(3, 4000, 9000)]
    pieces = DecodedPieces(decode, [Lane(tuple(parts[:2])), Lane(tuple(parts[2:]))], 300)
    readers = [pieces.rows(part) for part in reversed(parts)]
    found = [[i for batch in rows for i in batch["id"].to_pylist()] for rows in readers]
    assert found == [list(range(part.start, part.stop)) for part in reversed(parts)]
    assert read == [Range(3, 100, 9000)]
    assert not pieces._pieces
    assert not pieces._memory_bytes


@pytest.mark.parametrize("num_rows", [1, ROWS])
def test_a_full_disk_is_an_error_with_advice(
    num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(part: Range) -> Iterator[pa.RecordBatch]:
        yield from TABLE.slice(0, num_rows).to_batches()

    full = functools.partial(open, "/dev/full", "r+b", buffering=1 << 16)
    monkeypatch.setattr(decoded_pieces, "MEMORY_BYTES", 0)
    monkeypatch.setattr(decoded_pieces.tempfile, "TemporaryFile", lambda **_: full())
    with pytest.raises(OSError, match="more and smaller row groups"):
        next(DecodedPieces(decode, [Lane((Range(0, 0, 5),))], 2).rows(Range(0, 0, 5)))
