"""Files that are replaced while a pass reads them: their old rows, or an error that names them."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl import data
from sparkdl.data.readers import csv_format
from sparkdl.data.readers.parquet import ParquetSource
from sparkdl.data.shard import Range
from sparkdl.data.tfexample import framing
from sparkdl.data.tfexample.columns import Column, Kind
from sparkdl.data.tfexample.encode import encode
from tests.helpers.counted_store import CountedStore

ROWS, NEW = 40_000, 10_000_000
MESSAGE = "has changed since it was listed"


def write_parquet(path: Path, base: int) -> None:
    pq.write_table(
        pa.table({"x": np.arange(base, base + ROWS)}),
        path,
        row_group_size=ROWS // 8,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
    )


def write_csv(path: Path, base: int) -> None:
    path.write_text("x\n" + "".join(f"{n + NEW * 2}\n" for n in range(base, base + ROWS)))


def write_records(path: Path, base: int) -> None:
    column = Column("x", Kind.INT64, pa.int64())
    batch = pa.record_batch({"x": pa.array(range(base + NEW * 2, base + NEW * 2 + ROWS))})
    path.write_bytes(framing.frame(encode(batch, [column])))


def arrays(loader: Any) -> Iterator[Any]:
    return iter(loader.as_numpy())


def tensors(dataset: Any) -> Iterator[Any]:
    return (batch.numpy() for batch in dataset)


READERS: dict[str, tuple[Callable[[Path, int], None], Any, Callable[[Any], Iterator[Any]]]] = {
    "parquet": (write_parquet, data.parquet, arrays),
    "petastorm": (write_parquet, data.petastorm, arrays),
    "csv": (write_csv, data.csv, arrays),
    "tfrecord": (write_records, data.tfrecord, arrays),
    "tfrecord of TensorFlow": (write_records, data.tfrecord, tensors),
}


@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("name", READERS)
def test_rows_are_the_old_ones_or_an_error_names_the_file(
    tmp_path: Path, name: str, shuffle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framing, "CHUNK_BYTES", 1 << 16)
    monkeypatch.setattr(csv_format, "BLOCK_BYTES", 1 << 14)
    write, reader, iterate = READERS[name]
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(3):
        write(folder / f"{number}.file", number * ROWS)
    loader = reader(str(folder), batch_size_per_worker=1000, feature_cols="x", shuffle=shuffle)
    batches = iterate(loader)
    seen = [next(batches)]
    for number in range(3):
        write(tmp_path / "new", number * ROWS + NEW)
        os.replace(tmp_path / "new", folder / f"{number}.file")
    error: Exception | None = None
    try:
        seen += batches
    except Exception as exc:
        error = exc
    values = np.sort(np.concatenate(seen)) % (NEW * 2)
    if error is None:
        assert values.tolist() == list(range(3 * ROWS))
    else:
        assert MESSAGE in str(error) and ".file" in str(error)
        assert (values < NEW).all() or "TensorFlow" in name


def test_an_image_that_was_replaced(tmp_path: Path) -> None:
    import tensorflow as tf

    for shade in (1, 2):
        folder = tmp_path / "images" / str(shade)
        folder.mkdir(parents=True)
        png = tf.io.encode_png(tf.fill([4, 4, 3], tf.constant(shade, tf.uint8)))
        tf.io.write_file(str(folder / "a.png"), png)
    images = data.images(tmp_path / "images", size=(4, 4), batch_size_per_worker=2)
    assert len(list(images)) == 1
    os.utime(tmp_path / "images" / "2" / "a.png", (1, 1))
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"2/a\.png {MESSAGE}"):
        list(images)


@pytest.mark.parametrize("reader", [ParquetSource])
def test_an_object_that_is_replaced_between_row_groups(tmp_path: Path, reader: Any) -> None:
    store = CountedStore.start()
    for name, base in (("old", 0), ("new", NEW)):
        write_parquet(tmp_path / name, base)
    store.objects["bucket/table/a.parquet"] = (tmp_path / "old").read_bytes()
    source = reader("counted://bucket/table", None, {})
    batches = source.read([Range(piece, 0, ROWS // 8) for piece in range(8)], ["x"])
    next(batches)
    store.objects["bucket/table/a.parquet"] = (tmp_path / "new").read_bytes()
    found: list[int] = []
    try:
        for batch in batches:
            found += batch[0].to_pylist()
    except ValueError as exc:
        assert MESSAGE in str(exc) and "a.parquet" in str(exc)
    else:  # All row groups were asked for before.
        assert max(found) < NEW
