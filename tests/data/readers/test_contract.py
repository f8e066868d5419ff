"""The contract of all readers: every row is read, on any number of ranks."""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv as arrow_csv

from sparkdl import context
from sparkdl.data.readers.delimited import csv
from sparkdl.data.readers.images import images
from sparkdl.data.readers.parquet import parquet
from sparkdl.data.readers.petastorm.reader import petastorm
from sparkdl.data.readers.tfrecord import tfrecord
from sparkdl.errors import ConfigError

pytestmark = pytest.mark.slow

# Takes the arguments of `Batches`, and makes the dataset of the rank that is active.
Dataset = Callable[..., Any]
# A row has the columns `id`, the labels, counted from 0; `a`, which is id / 2; and `b`, id + 1.
COLUMNS = {"id": pa.int64(), "a": pa.float32(), "b": pa.float32()}
# Where rows are cut into files: some are empty, and none are of one size.
CUTS = (0, 0, 1, 9, 9, 20)


def rows_of(begin: int, end: int) -> pa.Table:
    ids = np.arange(begin, end)
    values = {"id": ids, "a": ids / 2, "b": ids + 1}
    return pa.table({name: pa.array(values[name], kind) for name, kind in COLUMNS.items()})


def pieces(rows: int) -> Iterator[pa.Table]:
    """The rows in pieces, one for each file."""
    for begin, end in itertools.pairwise([min(cut, rows) for cut in CUTS] + [rows]):
        yield rows_of(begin, end)


def write_parquet(folder: Path, rows: int, row_group_size: int = 4) -> None:
    for number, table in enumerate(pieces(rows)):
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=row_group_size)
    (folder / "_SUCCESS").touch()


def from_parquet(folder: Path, rows: int) -> Dataset:
    write_parquet(folder, rows)
    return lambda **batches: parquet(str(folder), **batches)


def from_filtered(folder: Path, rows: int) -> Dataset:
    """Every row group has rows that are not wanted."""
    for number, table in enumerate(pieces(rows)):
        other = table.set_column(0, "id", pa.array([-1] * len(table), pa.int64()))
        mixed = pa.concat_tables([table, other])
        order = np.arange(2 * len(table)).reshape(2, -1).T.ravel()
        pq.write_table(mixed.take(order), folder / f"{number}.parquet", row_group_size=5)
    return lambda **batches: parquet(folder, filter=[("id", ">=", 0)], **batches)


def from_partitioned(folder: Path, rows: int) -> Dataset:
    """The label is not in the files, but the name of their folder."""
    for row in range(rows):
        (folder / f"id={row:03}").mkdir()
        pq.write_table(rows_of(row, row + 1).drop_columns(["id"]), folder / f"id={row:03}" / "p")
    if not rows:
        (folder / "id=0").mkdir()
        pq.write_table(rows_of(0, 0).drop_columns(["id"]), folder / "id=0/p")
    return lambda **batches: parquet(folder, **batches)


def from_csv(folder: Path, rows: int) -> Dataset:
    for number, table in enumerate(pieces(rows)):
        arrow_csv.write_csv(table, folder / f"{number}.csv")
    (folder / "empty.csv").touch()
    return lambda **batches: csv(folder, schema=COLUMNS, **batches)


def from_tfrecord(folder: Path, rows: int) -> Dataset:
    import tensorflow as tf

    def feature(value: Any) -> Any:
        if isinstance(value, int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))

    for number, table in enumerate(pieces(rows)):
        with tf.io.TFRecordWriter(str(folder / f"{number}.tfrecord")) as file:
            for row in table.to_pylist():
                features = tf.train.Features(feature={k: feature(v) for k, v in row.items()})
                file.write(tf.train.Example(features=features).SerializeToString())
    schema = {"id": "int64", "a": "float32", "b": "float32"}
    return lambda **batches: tfrecord(folder, schema=schema, **batches)


def from_petastorm(folder: Path, rows: int) -> Dataset:
    write_parquet(folder, rows)
    return lambda **batches: petastorm(str(folder), **batches)


def from_images(folder: Path, rows: int) -> Dataset:
    """An image of one pixel for each row; its columns have names of their own."""
    import tensorflow as tf

    files = []
    for row in range(rows):
        files.append(folder / f"{row}.png")
        pixel = tf.constant([[[row, row // 2, row + 1]]], tf.uint8)
        files[-1].write_bytes(tf.io.encode_png(pixel).numpy())

    names = {"id": "label", "a": "image", "b": "path"}

    def renamed(choice: Any) -> Any:
        if isinstance(choice, str):
            return names.get(choice, choice)
        if isinstance(choice, dict):
            return {key: renamed(part) for key, part in choice.items()}
        return None if choice is None else type(choice)(map(renamed, choice))

    def dataset(**batches: Any) -> Any:
        chosen = {"label_cols": None, **batches}
        chosen = {key: renamed(v) if "_col" in key else v for key, v in chosen.items()}
        return images(files, labels=np.arange(rows), size=(1, 1), **chosen)

    return dataset


READERS = {
    "parquet": from_parquet,
    "filtered": from_filtered,
    "partitioned": from_partitioned,
    "csv": from_csv,
    "tfrecord": from_tfrecord,
    "petastorm": from_petastorm,
    "images": from_images,
}

Make = Callable[[int], Dataset]
Activate = Callable[..., None]


@pytest.fixture(params=READERS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Return a function that writes a number of rows and returns a dataset that reads them."""

    def make(rows: int) -> Dataset:
        folder = tmp_path / f"{rows} röws"
        folder.mkdir()
        return READERS[request.param](folder, rows)

    return make


@pytest.fixture
def activate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Activate:
    """Makes this process one of several ranks."""
    monkeypatch.setenv(context.VARIABLE, "{}")
    (tmp_path / "trial").mkdir()

    def activate(rank: int, world_size: int, seed: int = 0, **fields: Any) -> None:
        named = {"folder": str(tmp_path / "trial"), **fields}
        me = context.Context(
            rank=rank,
            world_size=world_size,
            num_readers=world_size,
            data_seed=seed,
            # The seed of a process differs from rank to rank in some gangs.
            seed=1000 * seed + rank,
            **named,
        )
        context.activate(me)

    return activate


def passes(dataset: Any, number: int) -> list[list[list[int]]]:
    """The ids of each batch of each pass; the features must be those of their rows."""
    found = []
    for _ in range(number):
        batches = []
        for a, ids in dataset:
            batches.append(np.asarray(ids).tolist())
            values = np.asarray(a, np.float32).reshape(len(ids), -1)[:, 0]
            # The first one of an image is its red value, which is the id.
            assert values.tolist() in ([i / 2 for i in batches[-1]], batches[-1])
        found.append(batches)
    return found


def flat(batches: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(batches))


def of_all_ranks(
    dataset: Dataset,
    activate: Activate,
    world_size: int,
    seed: int = 0,
    arrays: bool = False,
    **batches: Any,
) -> list[list[list[list[int]]]]:
    """Two passes of each rank; all ranks take as many steps as their dataset says.

    With `arrays`, the batches are arrays, which take a tenth of the CPU time.
    """
    found = []
    for rank in range(world_size):
        activate(rank, world_size, seed=seed)
        made = dataset(feature_cols="a", label_cols="id", **batches)
        found.append(passes(made.as_numpy() if arrays else made, 2))
        length = len(made.as_numpy()) if arrays else int(made.cardinality())
        assert {len(one) for one in found[-1]} == {length}
    assert len({len(one[0]) for one in found}) == 1
    return found


# One rank, and a number that divides neither the rows nor the files.
WORLDS = pytest.mark.parametrize("world_size", [pytest.param(1, marks=pytest.mark.thorough), 3])


@WORLDS
def test_pad_gives_every_row_on_some_rank_and_repeats_few(
    make: Make, activate: Activate, world_size: int
) -> None:
    ranks = of_all_ranks(make(23), activate, world_size, batch_size_per_worker=4)
    each = -(-23 // world_size)
    for number in range(2):
        seen = Counter(i for rank in ranks for i in flat(rank[number]))
        assert set(seen) == set(range(23))
        assert sum(seen.values()) == each * world_size
        assert max(seen.values()) <= 2
        for rank in ranks:
            assert [len(batch) for batch in rank[number][:-1]] == [4] * (len(rank[number]) - 1)
        # In order: a rank's rows, and at its end its first again where it has one less.
        for rank in ranks:
            ids = flat(rank[number])
            assert ids in (
                list(range(ids[0], ids[0] + each)),
                [*range(ids[0], ids[0] + each - 1), ids[0]],
            )


@pytest.mark.parametrize("shuffle", [False, True])
@WORLDS
def test_rows_without_repeats_are_each_row_once(
    make: Make, activate: Activate, world_size: int, shuffle: bool
) -> None:
    dataset, ranks = make(23), []
    for rank in range(world_size):
        activate(rank, world_size)
        made = dataset(
            feature_cols="a", label_cols="id", batch_size_per_worker=4, shuffle=shuffle
        ).without_repeats
        ranks.append([*passes(made, 2), *passes(made.as_numpy(), 1)])
        assert {len(one) for one in ranks[-1]} == {int(made.cardinality())}
    for number in range(3):
        assert sorted(i for rank in ranks for i in flat(rank[number])) == list(range(23))


@WORLDS
def test_drop_gives_full_batches_and_no_row_twice(
    make: Make, activate: Activate, world_size: int
) -> None:
    ranks = of_all_ranks(make(23), activate, world_size, batch_size_per_worker=4, last_batch="drop")
    for number in range(2):
        seen = Counter(i for rank in ranks for i in flat(rank[number]))
        assert set(seen.values()) == {1}
        assert len(seen) == 23 // world_size // 4 * 4 * world_size
        assert {len(batch) for rank in ranks for batch in rank[number]} == {4}


@pytest.mark.parametrize("last_batch", ["pad", "drop"])
@WORLDS
def test_shuffle_gives_the_same_rows_in_another_order_each_pass(
    make: Make, activate: Activate, world_size: int, last_batch: str
) -> None:
    dataset = make(40)
    options: dict[str, Any] = {"shuffle": True, "last_batch": last_batch}
    options["batch_size_per_worker"] = 2
    ranks = of_all_ranks(dataset, activate, world_size, **options)
    orders = [[flat(rank[number]) for rank in ranks] for number in range(2)]
    for order in orders:
        seen = Counter(itertools.chain(*order))
        if last_batch == "pad":
            assert set(seen) == set(range(40))
        else:
            assert set(seen.values()) == {1}
        assert flat(order) != sorted(flat(order))
    assert orders[0] != orders[1]
    # A seed says which order; another one says another.
    assert of_all_ranks(dataset, activate, world_size, arrays=True, **options) == ranks
    assert of_all_ranks(dataset, activate, world_size, seed=1, arrays=True, **options) != ranks


def test_arrays_are_the_batches_of_the_dataset(make: Make, activate: Activate) -> None:
    dataset = make(23)
    for rank in (0, 2):
        activate(rank, 3)
        for options in ({"epochs": 2}, {"last_batch": "drop", "steps": 1}):
            made = dataset(feature_cols="a", label_cols="id", batch_size_per_worker=4, **options)
            arrays = made.as_numpy()
            assert len(arrays) == len(made) and arrays.batch_size == 4
            assert passes(arrays, 1) == passes(made, 1)
            for a, ids in arrays:
                assert isinstance(a, np.ndarray) and isinstance(ids, np.ndarray)
                ids += 1  # Arrays belong to the user.


def test_a_function_computes_columns_of_every_batch(make: Make, activate: Activate) -> None:
    def function(rows: dict[str, Any]) -> dict[str, Any]:
        ids = rows["id"] if "id" in rows else rows["label"]
        return {"twice": 2 * ids.astype(np.float32)}

    dataset = make(23)
    options: dict[str, Any] = {"feature_cols": "twice", "label_cols": "id", "shuffle": True}
    seen: list[int] = []
    for rank in range(2):
        activate(rank, 2)
        made = dataset(batch_size_per_worker=4, map=function, **options)
        of_tensorflow, of_numpy = list(made), list(made.as_numpy())
        assert len(of_tensorflow) == len(of_numpy) == len(made) == 3
        for twice, ids in [*of_tensorflow, *of_numpy]:
            assert (np.asarray(twice) == 2 * np.asarray(ids)).all()
        seen += [int(i) for _, ids in of_tensorflow for i in ids]
    assert set(seen) == set(range(23))


def test_arrays_are_shuffled_anew_and_an_epoch_can_be_chosen(
    make: Make, activate: Activate
) -> None:
    activate(0, 2)
    options: dict[str, Any] = {"feature_cols": "a", "label_cols": "id", "shuffle": True}
    dataset = make(40)
    arrays = dataset(batch_size_per_worker=4, **options).as_numpy()
    epochs = passes(arrays, 3)
    assert len({tuple(flat(epoch)) for epoch in epochs}) == 3
    (first,) = passes(dataset(batch_size_per_worker=4, **options), 1)
    # Another epoch has other rows: the pieces are divided anew.
    assert sorted(flat(epochs[0])) == sorted(flat(first))
    assert all(len(set(flat(epoch))) == 20 for epoch in epochs)
    again = dataset(batch_size_per_worker=4, **options).as_numpy()
    again.set_epoch(1)
    assert passes(again, 2) == epochs[1:]


@pytest.mark.parametrize("shuffle", [False, True])
def test_reading_goes_on_in_the_middle_of_an_epoch_with_other_ranks(
    make: Make, activate: Activate, shuffle: bool
) -> None:
    dataset = make(40)

    def read(rank: int, world_size: int, state: Any = None) -> Any:
        activate(rank, world_size)
        options: dict[str, Any] = {"feature_cols": "a", "label_cols": "id", "shuffle": shuffle}
        rows = dataset(batch_size_per_worker=4, **options)
        if state:
            rows.load_state_dict(state)
        return rows

    before = [read(rank, 2) for rank in range(2)]
    (state,) = {json.dumps(rows.state_dict(epoch=0, steps=2)) for rows in before}
    begun = [passes(rows.as_numpy(), 1)[0][:2] for rows in before]
    after = [read(rank, 3, json.loads(state)) for rank in range(3)]
    assert [int(rows.cardinality()) for rows in after] == [4] * 3  # As in all other epochs.
    rest = [passes(rows, 2) for rows in after]
    assert [[len(epoch) for epoch in epochs] for epochs in rest] == [[2, 4]] * 3
    used = Counter(i for batches in (*begun, *(first for first, _ in rest)) for i in flat(batches))
    assert used == Counter(range(40))
    arrays = read(0, 3, json.loads(state)).as_numpy()
    assert passes(arrays, 2) == rest[0]


def test_the_global_batch_is_shared_equally(make: Make, activate: Activate) -> None:
    ranks = of_all_ranks(make(12), activate, 3, global_batch_size=6)
    assert [rank[0] for rank in ranks] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]]


def test_steps_and_epochs(make: Make, activate: Activate) -> None:
    dataset = make(10)
    options: dict[str, Any] = {"batch_size_per_worker": 2, "steps": 2, "epochs": 3}
    for rank in range(2):
        activate(rank, 2)
        made = dataset(feature_cols="a", label_cols="id", **options)
    assert int(made.cardinality()) == 6
    assert passes(made, 2) == [[[5, 6], [7, 8]] * 3] * 2


def test_epochs_are_shuffled_each(make: Make, activate: Activate) -> None:
    activate(0, 1)
    made = make(40)(
        feature_cols="a", label_cols="id", batch_size_per_worker=40, shuffle=True, epochs=3
    )
    (epochs,) = passes(made, 1)
    assert [sorted(ids) for ids in epochs] == [list(range(40))] * 3
    assert len({tuple(ids) for ids in epochs}) == 3


def test_a_pass_that_ends_early_changes_nothing_for_the_next(
    make: Make, activate: Activate
) -> None:
    activate(0, 1)
    made = make(23)(feature_cols="a", label_cols="id", batch_size_per_worker=4)
    for _ in range(3):
        assert next(iter(made))[1].numpy().tolist() == [0, 1, 2, 3]
    assert [flat(one) for one in passes(made, 2)] == [list(range(23))] * 2


@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.thorough), 3])
def test_more_ranks_than_rows(make: Make, activate: Activate, rows: int) -> None:
    dataset = make(rows)
    ranks = of_all_ranks(dataset, activate, 4, batch_size_per_worker=2)
    assert [len(flat(rank[0])) for rank in ranks] == [1] * 4
    assert {i for rank in ranks for i in flat(rank[0])} == set(range(rows))
    options: dict[str, Any] = {"batch_size_per_worker": 2, "last_batch": "drop"}
    dropped = of_all_ranks(dataset, activate, 4, arrays=True, **options)
    assert dropped == [[[], []]] * 4


def test_no_rows_are_refused(make: Make, activate: Activate) -> None:
    dataset = make(0)
    activate(0, 1)
    with pytest.raises(ConfigError, match=r"has no rows\. A training loop would take no step"):
        dataset(batch_size_per_worker=2)


def test_structures_of_features(make: Make, activate: Activate) -> None:
    activate(0, 1)
    dataset = make(3)

    def first(**columns: Any) -> Any:
        made = dataset(batch_size_per_worker=4, **columns)
        (batch,) = made.as_numpy_iterator()
        return batch

    def same(found: Any, expected: Any) -> bool:
        return bool(np.array_equal(found, expected) and found.dtype == expected.dtype)

    ids, a, b = (first(feature_cols=name) for name in ("id", "a", "b"))
    assert ids.tolist() == [0, 1, 2]
    one, two = first(feature_cols=("a", "id"), label_cols="id"), first(feature_cols=("a", ("b",)))
    assert isinstance(one[0], tuple) and same(one[0][0], a) and same(one[0][1], ids)
    assert same(one[1], ids) and same(two[0], a) and same(two[1][0], b)
    named = first(feature_cols={"x": "a", "y": ("b", "id")}, label_cols={"z": "id"})
    assert set(named[0]) == {"x", "y"} and same(named[0]["x"], a) and same(named[0]["y"][1], ids)
    assert same(named[1]["z"], ids)
    weighted = first(feature_cols=("a", "b"), label_cols="a", weight_col="id")
    assert len(weighted) == 3 and same(weighted[1], a) and same(weighted[2], ids)
    made = dataset(batch_size_per_worker=4, feature_cols="b", label_cols="a", weight_col="id")
    (arrays,) = made.as_numpy()
    assert same(arrays[0], b) and same(arrays[1], a) and same(arrays[2], ids)
    stacked = first(feature_cols=["id", "id"])
    assert stacked.dtype == ids.dtype and stacked.tolist() == [[0, 0], [1, 1], [2, 2]]


def test_all_columns_that_are_no_labels_are_features(make: Make, activate: Activate) -> None:
    activate(0, 1)
    ((features, ids),) = make(3)(batch_size_per_worker=4, feature_cols=None, label_cols="id")
    assert len(features) == 2
    assert ids.numpy().tolist() == [0, 1, 2]


def test_it_says_and_keeps_what_it_holds(
    make: Make, activate: Activate, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = make(23)
    with caplog.at_level("INFO", logger="sparkdl.data"):
        for rank in range(2):
            activate(rank, 2, folder=str(tmp_path))
            dataset(batch_size_per_worker=4, label_cols="id")
    assert caplog.text.count("23 rows") == 1
    (line,) = (tmp_path / "data.jsonl").read_text().splitlines()
    said = json.loads(line)
    expected = {"rows": 23, "global_batch_size": 8, "steps": 3, "padded": 1, "dropped": 0}
    assert {name: said[name] for name in expected} == expected


def test_an_evaluator_sees_all_rows(make: Make, activate: Activate) -> None:
    dataset = make(9)
    activate(2, 2, role="evaluator")
    made = dataset(feature_cols="a", label_cols="id", batch_size_per_worker=4)
    assert passes(made, 1) == [[[0, 1, 2, 3], [4, 5, 6, 7], [8]]]
