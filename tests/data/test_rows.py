"""The result of a reader: a dataset of TensorFlow, or arrays of another framework without it."""

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl import data
from sparkdl.data.ragged import Ragged
from sparkdl.data.rows import Rows
from sparkdl.errors import ConfigError

Read = Callable[..., Any]
TABLE = pa.table(
    {
        "id": pa.array(range(10), pa.int64()),
        "x": pa.array([i / 2 for i in range(10)], pa.float32()),
        "word": [f"w{i}" for i in range(10)],
        "tokens": pa.array([list(range(i % 3)) for i in range(10)], pa.list_(pa.int64())),
    }
)


@pytest.fixture
def read(tmp_path: Path) -> Read:
    pq.write_table(TABLE, tmp_path / "rows.parquet")
    return lambda **batches: data.parquet(tmp_path, batch_size_per_worker=4, **batches)


WITHOUT_TENSORFLOW = """
import sys
from pyspark.sql import SparkSession
from sparkdl import data

folder, *frameworks = sys.argv[1:]
columns = {"feature_cols": ["id", "x"], "label_cols": "id", "batch_size_per_worker": 4}
for read in (data.parquet, data.csv, data.tfrecord):
    name = read.__name__
    rows = read(f"{folder}/{name}", **columns, shuffle=True)
    for framework in frameworks:
        batches = list(getattr(rows, f"as_{framework}")())
        assert sorted(int(i) for _, ids in batches for i in ids) == list(range(10)), batches
        assert [tuple(x.shape) for x, _ in batches] == [(4, 2), (4, 2), (2, 2)], batches
    assert not isinstance(rows, dict) and not hasattr(rows, "_repr_html_")
    assert "tensorflow" not in sys.modules, name
print("read")
"""


def write_all(folder: Path) -> None:
    from pyarrow import csv as arrow_csv

    from sparkdl.data.tfexample.columns import Column, Kind
    from sparkdl.data.tfexample.encode import encode
    from sparkdl.data.tfexample.framing import frame

    table = TABLE.select(["id", "x"])
    for name in ("parquet", "csv", "tfrecord"):
        (folder / name).mkdir()
    pq.write_table(table, folder / "parquet/1.parquet")
    arrow_csv.write_csv(table, folder / "csv/1.csv")
    columns = [Column("id", Kind.INT64, pa.int64()), Column("x", Kind.FLOAT, pa.float32())]
    records = encode(table.to_batches()[0], columns)
    (folder / "tfrecord/1.tfrecord").write_bytes(frame(records))


# In a process of its own: JAX has threads, and other tests fork.
OF_JAX = """
import sys
import numpy as np, pyarrow as pa, pyarrow.parquet as pq, pytest
from sparkdl import data
from sparkdl.errors import ConfigError

def read(**options):
    return data.parquet(sys.argv[1], batch_size_per_worker=4, **options).as_jax()

padded = read(feature_cols="tokens", pad={"tokens": 9})
assert [np.asarray(x).tolist() for x in padded][0] == [[9, 9], [0, 9], [0, 1], [9, 9]]
for column in ("tokens", "word"):
    with pytest.raises(ConfigError, match="for which JAX has no array"):
        list(read(feature_cols=column, ragged=["tokens"]))
buffers = {number: np.zeros((number, 2)) for number in (2, 4, 10)}

def in_buffers(rows):
    buffer = buffers[len(rows["id"])]
    buffer[:] = rows["id"][:, None]
    return {"pair": buffer, "n": rows["tokens"].sum(axis=1)}

mapped = data.Map(in_buffers, columns=["id", "tokens"], num_threads=1)
mapped = read(map=mapped, feature_cols="pair", label_cols="n", pad={"tokens": 0})
for kept in (list(mapped), list(mapped)):
    assert np.concatenate([x for x, _ in kept])[:, 1].tolist() == list(range(10))
    assert np.concatenate([y for _, y in kept]).tolist() == [0, 0, 1] * 3 + [0]
    assert {x.dtype for x, _ in kept} == {np.dtype("float32")}
pq.write_table(pa.table({"id": [1, 1 << 40]}), f"{sys.argv[1]}/rows.parquet")
with pytest.raises(ValueError, match=f"from 1 to {1 << 40}, and JAX would cut them to int32"):
    list(read())
print("read")
"""


def run(program: str, *arguments: str) -> None:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "read\n", done.stderr


@pytest.mark.slow
def test_other_frameworks_get_arrays_without_tensorflow(tmp_path: Path) -> None:
    write_all(tmp_path)
    run(WITHOUT_TENSORFLOW, str(tmp_path), "numpy", "jax")


@pytest.mark.slow
def test_jax_gets_padded_arrays_and_refuses_what_it_has_no_array_for(
    tmp_path: Path, read: Read
) -> None:
    run(OF_JAX, str(tmp_path))


@pytest.mark.slow
def test_rows_are_a_dataset_wherever_tensorflow_takes_one(read: Read) -> None:
    import tensorflow as tf

    rows, expected = read(feature_cols="id"), list(range(10))

    def ids(dataset: Any) -> list[int]:
        return [int(i) for batch in dataset for i in np.ravel(batch)]

    assert isinstance(rows, tf.data.Dataset) and type(rows) is Rows
    assert rows.element_spec == tf.TensorSpec([None], tf.int64)
    assert len(rows) == int(rows.cardinality()) == int(tf.data.experimental.cardinality(rows)) == 3
    assert ids(rows) == ids(rows.unbatch().batch(3)) == ids(rows.as_numpy_iterator()) == expected
    assert ids(rows.map(lambda i: i + 1)) == [i + 1 for i in expected]
    assert ids(tf.data.Dataset.map(rows, lambda i: i + 1)) == [i + 1 for i in expected]
    assert ids(rows.concatenate(rows).take(4)) == [*expected, *range(4)]
    assert ids(tf.data.Dataset.zip((rows, rows)).map(lambda a, b: a - b)) == [0] * 10
    assert ids(tf.data.Dataset.range(2).flat_map(lambda _: rows)) == expected * 2
    chosen = tf.data.Dataset.choose_from_datasets([rows, rows], tf.data.Dataset.range(2).repeat(3))
    assert sorted(ids(chosen)) == sorted(expected * 2)
    assert bool(rows) and repr(rows).startswith("<Rows of ")


@pytest.mark.slow
def test_rows_that_a_graph_uses_first_outlive_it(read: Read) -> None:
    import tensorflow as tf

    rows = read(feature_cols="x")

    @tf.function
    def total() -> Any:
        result = 0.0
        for x in rows:
            result += tf.reduce_sum(x)
        return result

    @tf.function
    def total_of(dataset: Any) -> Any:
        return dataset.reduce(0.0, lambda result, x: result + tf.reduce_sum(x))

    assert float(total()) == float(total_of(rows)) == 22.5
    assert len(list(rows)) == 3


@pytest.mark.slow
def test_a_copy_of_rows_is_a_dataset_too(read: Read) -> None:
    import tensorflow as tf

    rows = copy.copy(read(feature_cols="id"))
    assert isinstance(rows, tf.data.Dataset)
    assert [int(i) for batch in rows for i in batch] == list(range(10))


@pytest.mark.slow
def test_an_attribute_error_shows_its_reason(read: Read) -> None:
    rows = read(feature_cols="id")

    class Broken:
        padding = None

        def tensors(self) -> Any:
            raise AttributeError("no such reader")

    with pytest.raises(RuntimeError, match=r"cannot become a tf\.data\.Dataset: no such reader"):
        list(Rows("rows", Broken(), rows.plan))  # type: ignore[arg-type]


@pytest.mark.slow
def test_an_iterator_that_is_left_counts_all_its_epochs(read: Read) -> None:
    """A pass that was begun early, to read ahead, must not change the passes that follow."""

    def ids(batches: Any) -> list[int]:
        return [int(i) for batch in batches for i in np.asarray(batch)]

    options = {"feature_cols": "id", "shuffle": True, "epochs": 3}
    whole = read(**options).as_numpy()
    expected = [ids(whole) for _ in range(2)]
    assert expected[0] != expected[1]
    for num_batches in (1, 2, 3, 4):
        for left in (read(**options), read(**options).as_numpy()):
            batches = iter(left)
            first = ids(next(batches) for _ in range(num_batches))
            assert first == expected[0][: len(first)]
            del batches
            assert ids(left) == expected[1]
    assert len(read(**options)) == 9


@pytest.mark.slow
def test_keras_takes_rows_as_a_dataset(read: Read) -> None:
    import keras

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(loss="mse")
    rows = read(feature_cols=["x"], label_cols="x", epochs=2)
    unseen = read(feature_cols=["x"], label_cols="x")
    fitted = model.fit(rows, validation_data=unseen, shuffle=False, verbose=0)
    assert set(fitted.history) == {"loss", "val_loss"}
    weighted = read(feature_cols=["x"], label_cols="x", weight_col="id")
    assert model.fit(weighted, shuffle=False, verbose=0).history["loss"] != fitted.history["loss"]
    assert model.predict(read(feature_cols=["x"]), verbose=0).shape == (10, 1)


def test_ragged_arrays_and_strings_of_numpy(read: Read) -> None:
    rows = read(feature_cols=("tokens", "word"), ragged=["tokens"])
    (tokens, words), *_ = rows.as_numpy()
    assert [row.tolist() for row in tokens] == [[], [0], [0, 1], []]
    assert words.tolist() == ["w0", "w1", "w2", "w3"]


@pytest.mark.slow
def test_shorter_arrays_are_padded_to_the_longest_of_their_batch(read: Read) -> None:
    expected = [
        [[9, 9], [0, 9], [0, 1], [9, 9]],
        [[0, 9], [0, 1], [9, 9], [0, 9]],
        [[0, 1], [9, 9]],
    ]
    for choice in ("tokens", ("tokens",), {"a": ("tokens", "x")}):
        rows = read(feature_cols=choice, label_cols="x", pad={"tokens": 9})
        for found in (rows.as_numpy(), rows):
            tokens = [x["a"][0] if isinstance(x, dict) else x for x, _ in found]
            tokens = [x[0] if isinstance(x, tuple) else x for x in tokens]
            assert [np.asarray(x).tolist() for x in tokens] == expected


def test_nested_and_text_arrays_are_padded() -> None:
    nested = Ragged.from_lengths(np.array([1, 2, 3, 4]), [[2, 0, 1], [2, 1, 1]], pad=0)
    assert nested.padded().tolist() == [[[1, 2], [3, 0]], [[0, 0], [0, 0]], [[4, 0], [0, 0]]]
    words = Ragged.from_lengths(np.array(["a", "b"], object), [[0, 2]], pad="")
    assert words.padded().tolist() == [["", ""], ["a", "b"]]
    assert nested[1:2].padded().shape == (1, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_of_similar_length_come_together(read: Read, shuffle: bool) -> None:
    columns = {"feature_cols": "tokens", "label_cols": "id", "pad": {"tokens": -1}}
    rows = read(bucket_by="tokens", shuffle=shuffle, **columns)
    for found in (rows.as_numpy(), rows):
        lengths = [(np.asarray(x) >= 0).sum(axis=1) for x, _ in found]
        assert [len(one) for one in lengths] == [4, 4, 2]
        assert sorted(map(int, np.concatenate(lengths))) == sorted(i % 3 for i in range(10))
        assert sum(one.max() - one.min() for one in lengths) <= 2
    orders = {tuple(int(i) for _, ids in rows.as_numpy() for i in ids) for _ in range(4)}
    assert (len(orders) > 1) is shuffle


def test_few_steps_have_rows_of_all_lengths(tmp_path: Path) -> None:
    tokens = pa.array([[0] * (i % 50) for i in range(1000)], pa.list_(pa.int64()))
    pq.write_table(pa.table({"tokens": tokens}), tmp_path / "rows.parquet")
    rows = data.parquet(
        tmp_path, bucket_by="tokens", ragged=["tokens"], steps=5, batch_size_per_worker=10
    )
    lengths = [len(row) for batch in rows.as_numpy() for row in batch]
    assert sorted(lengths) == list(range(50))


def test_padding_and_buckets_are_for_arrays_that_differ_in_length(read: Read) -> None:
    with pytest.raises(TypeError, match="pad names column 'x' of type float, not an array"):
        read(pad={"x": 0})
    with pytest.raises(ConfigError, match=r"pad has 0\.5 for column 'tokens'"):
        read(pad={"tokens": 0.5})
    with pytest.raises(ConfigError, match="bucket_by names column 'x', whose arrays all have one"):
        read(feature_cols="x", bucket_by="x")
    with pytest.raises(ConfigError, match="bucket_by is 'tokens'; expected one of the selected"):
        read(feature_cols="x", bucket_by="tokens")


def test_a_column_that_is_feature_and_label_is_two_arrays(read: Read) -> None:
    for selected in ("x", ["x", "id"]):
        rows = read(feature_cols=selected, label_cols=selected).as_numpy()
        for _ in range(2):
            for x, y in rows:
                before = y.copy()
                assert (x == before).all() and (x >= 0).all()
                x -= 100
                assert (y == before).all()


def test_an_epoch_is_a_whole_number(read: Read) -> None:
    for wrong in (-1, 1.5, "1", True):
        with pytest.raises(ConfigError, match=f"epoch is {wrong!r}; expected a whole number"):
            read().as_numpy().set_epoch(wrong)
