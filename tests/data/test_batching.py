"""From rows in pieces to batches: what `make_dataset` does for every reader."""

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparkdl import context
from sparkdl.data.batching import Batches, _warn_of_few_pieces, make_dataset, takes_batches
from sparkdl.data.column_selection import ColumnSelection
from sparkdl.data.lanes import WINDOW_BYTES, Pass
from sparkdl.data.readers.base import ArrowSource, Source, TensorSource
from sparkdl.data.shard import Range
from sparkdl.data.shuffle import shuffled
from sparkdl.errors import ConfigError


@pytest.fixture(autouse=True)
def rank(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Outside a run, or one of several ranks."""
    monkeypatch.setenv(context.VARIABLE, "{}")
    return lambda rank, of, **fields: context.activate(
        context.Context(rank=rank, world_size=of, num_readers=of, **fields)
    )


class Tables(ArrowSource):
    """Tables in memory, each a piece; keeps what was read."""

    def __init__(self, *tables: pa.Table, **options: Any) -> None:
        self.name, self.options, self.schema = "tables", options, tables[0].schema
        self.tables = tables
        self.sizes = [len(table) for table in tables]
        self.asked: list[tuple[list[Range], list[str]]] = []

    def read(self, ranges: Sequence[Range], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        self.asked.append((list(ranges), list(names)))
        for one in ranges:
            table = self.tables[one.piece].select(list(names))
            yield from table.slice(one.start, one.stop - one.start).to_batches(3)


class Tensors(TensorSource):
    """The same rows as tensors, as readers have them that need TensorFlow to read."""

    def __init__(self, tables: Tables) -> None:
        self.name, self.sizes, self.columns = tables.name, tables.sizes, tables.columns
        self._tables = tables

    def columns_of(self, next_pass: Callable[[], Pass], names: Sequence[str]) -> Any:
        selection = ColumnSelection({name: name for name in names})
        return self._tables.blocks(next_pass, selection).tensors()


def numbers(begin: int, end: int) -> pa.Table:
    ids = np.arange(begin, end)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(ids, 2) / 2, pa.float32()), 2)
    return pa.table({"id": ids, "x": vectors, "name": pa.array([str(i) for i in ids], pa.string())})


def made(source: Source, **batches: Any) -> Any:
    return make_dataset(source, Batches.parse(batches))


# ---- arguments


def test_exactly_one_size_of_a_batch() -> None:
    for given in ({}, {"batch_size_per_worker": 1, "global_batch_size": 1}):
        with pytest.raises(ConfigError, match="expected exactly one"):
            Batches.parse(given)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8"])
@pytest.mark.parametrize("name", ["batch_size_per_worker", "global_batch_size", "epochs", "steps"])
def test_numbers_are_whole_and_positive(name: str, value: Any) -> None:
    given = {name: value}
    if "batch" not in name:
        given["global_batch_size"] = 1
    with pytest.raises(ConfigError, match=f"{name} is {value!r}; expected a whole number"):
        Batches.parse(given)


def test_a_near_miss_names_the_right_one() -> None:
    with pytest.raises(ConfigError, match=r"'batch_size'. Pass batch_size_per_worker= or"):
        Batches.parse({"batch_size": 8})
    with pytest.raises(ConfigError, match=r"'label_col'. Did you mean 'label_cols'\?"):
        Batches.parse({"label_col": "y"})
    with pytest.raises(ConfigError, match="last_batch is 'keep'; expected 'pad' or 'drop'"):
        Batches.parse({"global_batch_size": 8, "last_batch": "keep"})


def test_a_global_batch_that_ranks_cannot_share(rank: Callable[..., None]) -> None:
    rank(0, 3)
    with pytest.raises(
        ConfigError, match=r"64 cannot be shared equally by 3 ranks.*multiple of 3, such as 63"
    ):
        made(Tables(numbers(0, 9)), global_batch_size=64)


def test_readers_show_the_arguments_of_batches() -> None:
    @takes_batches
    def reader(path: str, *, own: int = 3, **batches: Any) -> None: ...

    shown = inspect.signature(reader).parameters
    assert list(shown)[:3] == ["path", "own", "batch_size_per_worker"]
    assert shown["last_batch"].default == "pad"
    assert "batches" not in shown


@pytest.mark.parametrize(
    ("sizes", "rank", "warns"),
    [
        ([1 << 17, 0], 0, True),
        ([1 << 17, 0], 1, False),
        ([1 << 16, 1 << 16], 0, False),
        ([100], 0, False),
    ],
)
def test_ranks_that_share_a_large_piece_are_told(
    sizes: list[int], rank: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    source: Any = SimpleNamespace(name="some.parquet", sizes=sizes)
    _warn_of_few_pieces(source, context.Context(rank=rank, num_readers=2))
    expected = "some.parquet has 1 pieces (files or row groups) with rows for 2 ranks"
    assert (expected in caplog.text) is warns


# ---- batches


@pytest.mark.slow
def test_only_columns_that_are_wanted_are_read() -> None:
    source = Tables(numbers(0, 4))
    list(made(source, feature_cols="x", label_cols="id", global_batch_size=2))
    assert {tuple(names) for _, names in source.asked} == {("x", "id")}


@pytest.mark.slow
def test_shapes_are_known_before_anything_is_read() -> None:
    source = Tables(numbers(0, 0), numbers(0, 5))
    dataset = made(source, label_cols="id", global_batch_size=2)
    features, labels = dataset.element_spec
    assert features["x"].shape.as_list() == [None, 2]
    assert features["name"].shape.as_list() == labels.shape.as_list() == [None]
    assert source.asked == [([Range(1, 0, 1)], ["x", "name", "id"])]


@pytest.mark.slow
@pytest.mark.parametrize("features", ["x", ["id", "x"], ("x", "name"), {"a": ["id"], "b": "name"}])
def test_sources_of_tensors_give_what_those_of_arrow_do(features: Any) -> None:
    import tensorflow as tf

    source = Tables(numbers(0, 5), numbers(5, 12))
    both = [
        made(one, feature_cols=features, label_cols="id", global_batch_size=5)
        for one in (source, Tensors(source))
    ]
    assert both[0].element_spec == both[1].element_spec
    for one, other in zip(*both, strict=True):
        tf.nest.map_structure(lambda a, b: np.testing.assert_array_equal(a, b), one, other)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [2, 3, 4, 20])
def test_ragged_columns_are_batched(batch_size: int) -> None:
    rows = [[1] * n for n in (0, 3, 1, 2, 0, 5, 1, 1, 4)]
    source = Tables(pa.table({"x": rows, "id": range(9)}), ragged=["x"])
    batches = list(made(source, feature_cols="x", label_cols="id", global_batch_size=batch_size))
    assert [row for x, _ in batches for row in x.to_list()] == rows
    assert [len(ids) for _, ids in batches[:-1]] == [batch_size] * (len(batches) - 1)


@pytest.mark.slow
def test_a_fit_of_keras_takes_it_as_it_is() -> None:
    import keras

    source = Tables(numbers(0, 10))
    dataset = made(source, feature_cols="x", label_cols="id", global_batch_size=4, epochs=2)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert len(dataset) == 6
    history = model.fit(dataset, epochs=2, shuffle=False, verbose=0).history
    assert len(history["loss"]) == 2


@pytest.mark.slow
def test_tensorflow_does_not_shard_it_again() -> None:
    import tensorflow as tf

    dataset = made(Tables(numbers(0, 4)), global_batch_size=2).map(lambda x: x)
    policy = dataset.options().experimental_distribute.auto_shard_policy
    # Only what asks for it by a `shard` of its own is sharded with the latter.
    policies = tf.data.experimental.AutoShardPolicy
    assert policy in (policies.OFF, policies.HINT)


@pytest.mark.slow
def test_what_reading_raises_is_shown() -> None:
    import tensorflow as tf

    class Broken(Tables):
        def read(self, ranges: Sequence[Range], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
            yield from super().read(ranges, names)
            if ranges[0].stop > 1:
                raise ValueError("file 7 is gone")

    dataset = made(Broken(numbers(0, 7)), feature_cols="id", global_batch_size=2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="ValueError: file 7 is gone"):
        list(dataset)


@pytest.mark.slow
def test_a_null_names_its_column() -> None:
    import tensorflow as tf

    source = Tables(pa.table({"x": [1.0, 2.0, None]}))
    with pytest.raises(tf.errors.InvalidArgumentError, match="column 'x' has 1 nulls"):
        list(made(source, global_batch_size=2))
    filled = Tables(pa.table({"x": [1.0, 2.0, None]}), fill={"x": 3.0})
    (batch,) = made(filled, global_batch_size=4)
    assert batch.numpy().tolist() == [1, 2, 3]


@pytest.mark.slow
def test_less_than_was_promised_is_an_error() -> None:
    """A rank that takes fewer steps than the others would make them wait forever."""
    import tensorflow as tf

    class Short(Tables):
        def read(self, ranges: Sequence[Range], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
            return super().read(ranges[:1], names)

    dataset = made(Short(numbers(0, 4), numbers(4, 8)), feature_cols="id", global_batch_size=2)
    with pytest.raises(
        tf.errors.FailedPreconditionError,
        match="expected to contain 4 elements",
    ):
        list(dataset)


@pytest.mark.slow
def test_an_iterator_that_is_left_leaves_no_thread() -> None:
    dataset = made(Tables(numbers(0, 4000)), feature_cols="id", global_batch_size=2)
    next(iter(dataset))
    before = threading.active_count()
    for _ in range(10):
        next(iter(dataset))
    assert threading.active_count() <= before + 1


# ---- order


def batches_of(rows: int, size: int) -> list[pa.RecordBatch]:
    return pa.table({"id": np.arange(rows)}).to_batches(size)


def ids_of(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [i for batch in batches for i in batch.column(0).to_pylist()]


def test_shuffled_rows_are_the_same_rows() -> None:
    def mixed(*lengths: int, seed: int = 3) -> list[int]:
        lanes = [(iter(batches_of(length, 7)), seed) for length in lengths]
        return ids_of(shuffled(lanes, 64, WINDOW_BYTES))

    found = mixed(1000)
    assert sorted(found) == list(range(1000)) and found != list(range(1000))
    assert found == mixed(1000) != mixed(1000, seed=4)
    assert mixed(0) == mixed() == []
    assert sorted(mixed(100, 5, 0, 70)) == sorted([*range(100), *range(5), *range(70)])


def test_only_a_window_is_held_in_memory() -> None:
    taken = []

    def reading() -> Iterator[pa.RecordBatch]:
        for batch in batches_of(1000, 10):
            taken.append(batch)
            yield batch

    rows = shuffled([(reading(), 0)], 100, WINDOW_BYTES)
    first = next(rows)
    assert len(taken) <= 11
    assert set(first.column(0).to_pylist()) <= set(range(110))


def test_categories_of_several_files_are_shuffled_together() -> None:
    batches = [
        pa.record_batch({"c": pa.array(values).dictionary_encode()})
        for values in (["a", "b"], ["c", "b"])
    ]
    (mixed,) = shuffled([(iter(batches), 0)], 10, WINDOW_BYTES)
    assert sorted(mixed.column(0).to_pylist()) == ["a", "b", "b", "c"]


def test_large_rows_make_a_smaller_window_and_small_batches() -> None:
    def reading() -> Iterator[pa.RecordBatch]:
        for number in range(40):
            rows = pa.array([bytes(1 << 20)] * 16)
            taken.append(number)
            yield pa.record_batch({"image": rows})

    taken: list[int] = []
    sizes = []
    for batch in shuffled([(reading(), 0)], 1 << 16, WINDOW_BYTES):
        sizes.append(batch.num_rows)
        assert batch.nbytes <= 10 << 20
        assert len(taken) * 16 - sum(sizes) <= 272
    assert sum(sizes) == 640


def test_lanes_of_large_rows_take_turns_in_a_window_of_bytes() -> None:
    def reading(lane: int) -> Iterator[pa.RecordBatch]:
        for number in range(3):
            taken.append(lane)
            yield pa.record_batch({"lane": [lane], "number": [number], "image": [bytes(1 << 20)]})

    taken: list[int] = []
    found: list[tuple[int, int]] = []
    # Two chunks of a lane are twice what all eight lanes may hold together.
    for batch in shuffled([(reading(lane), lane) for lane in range(8)], 1 << 10, 1 << 17):
        assert len(taken) - len(found) <= 2
        found += zip(batch["lane"].to_pylist(), batch["number"].to_pylist(), strict=True)
    assert sorted(found) == [(lane, number) for lane in range(8) for number in range(3)]
    assert taken[:8] == list(range(8))


def test_rows_without_bytes_are_shuffled_as_others_are() -> None:
    batches = [pa.record_batch({"x": pa.nulls(count)}) for count in (3, 5)]
    mixed = shuffled([(iter(batches), 0)], 4, WINDOW_BYTES)
    assert sum(batch.num_rows for batch in mixed) == 8
