"""Functions of the user on the columns of a batch: `map=` of the readers."""

import functools
import itertools
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl import data
from sparkdl.data import Map
from sparkdl.data.batch_map import Output
from sparkdl.data.mapped_blocks import MappedBlocks
from sparkdl.errors import ConfigError
from tests.data.readers.test_contract import Activate, activate

__all__ = ["activate"]  # A fixture, used by its name.

Read = Callable[..., Any]
TABLE = pa.table(
    {
        "id": pa.array(range(10), pa.int64()),
        "x": pa.array([i / 2 for i in range(10)], pa.float32()),
        "word": [f"w{i}" for i in range(10)],
        "tokens": pa.array([list(range(i % 3)) for i in range(10)], pa.list_(pa.int64())),
    }
)


ROUND = {"ranks": 1, "batch_size": 3, "steps": 1}


@pytest.fixture
def read(tmp_path: Path) -> Read:
    pq.write_table(TABLE, tmp_path / "rows.parquet", row_group_size=3)

    def read(function: Any, **options: Any) -> Any:
        ragged = [] if "pad" in options else ["tokens"]
        options = {"batch_size_per_worker": 4, "ragged": ragged, **options}
        return data.parquet(tmp_path / "rows.parquet", map=function, **options)

    return read


def lists(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


def test_returned_columns_are_added_and_replace_others(read: Read) -> None:
    def function(rows: dict[str, Any]) -> dict[str, Any]:
        assert list(rows) == ["id", "x"]
        assert rows["x"].dtype == np.float32
        return {"x": rows["x"] * 2, "square": rows["id"] ** 2}

    rows = read(Map(function, ["id", "x"]), feature_cols=("x", "word"), label_cols="square")
    batches = list(rows.as_numpy())
    assert [square.tolist() for _, square in batches] == [[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]
    assert [x.tolist() for (x, _), _ in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [word.tolist() for (_, word), _ in batches][2] == ["w8", "w9"]
    # By default features are all columns, and the function is given all.
    (batch,) = read(lambda rows: {"n": rows["tokens"]}, batch_size_per_worker=10).as_numpy()
    assert list(batch) == ["id", "x", "word", "tokens", "n"]


def test_only_the_columns_that_are_needed_are_read(read: Read) -> None:
    rows = read(Map(lambda rows: {"y": rows["x"]}, ["x"]), feature_cols=["id", "y"])
    assert list(rows.blocks._blocks._convert.shapes) == ["x", "id"]
    assert lists(rows.as_numpy())[2] == [[8.0, 4.0], [9.0, 4.5]]


@pytest.mark.parametrize("num_threads", [1, 4])
def test_batches_keep_their_order_whichever_is_ready_first(read: Read, num_threads: int) -> None:
    """With several threads, the first batch is ready when the one after it is."""
    second = threading.Event()
    calls: list[int] = []

    def function(rows: dict[str, Any]) -> dict[str, Any]:
        calls.append(len(rows["id"]))
        first = int(rows["id"][0])
        if num_threads > 1 and first == 0 and len(calls) > 1:
            assert second.wait(60)
        if first == 4:
            second.set()
        return {"id": rows["id"] * 10}

    rows = read(Map(function, num_threads=num_threads), feature_cols="id")
    assert lists(rows.as_numpy()) == [[0, 10, 20, 30], [40, 50, 60, 70], [80, 90]]
    assert sorted(calls) == [2, 3, 4, 4]  # The outputs are learnt from a row group of 3 rows.


def test_random_numbers_are_the_same_with_any_number_of_threads(
    read: Read, activate: Activate
) -> None:
    def function(rows: dict[str, Any], random: np.random.Generator) -> dict[str, Any]:
        return {"r": random.random(len(rows["id"]))}

    def found(num_threads: int, rank: int = 0, seed: int = 0) -> list[Any]:
        activate(rank, 2, seed=seed)
        rows = read(Map(function, num_threads=num_threads), feature_cols="r")
        return [lists(rows.as_numpy()), lists(rows.as_numpy())]

    first, second = found(1)
    assert first != second and first[0] != first[1]
    assert found(3) == [first, second]
    assert found(1, rank=1) != [first, second] != found(1, seed=1)
    activate(0, 1)
    rows = read(function, feature_cols="r", batch_size_per_worker=3).as_numpy()
    whole = lists(rows)
    rows.load_state_dict({**rows.state_dict(), "epoch": 0, "rounds": [ROUND]})
    rest = {number for batch in lists(rows) for number in batch}
    assert len(rest) == 7 and rest.isdisjoint(number for batch in whole for number in batch)


def test_ragged_and_padded_columns_come_and_go(read: Read) -> None:
    def function(rows: dict[str, Any]) -> dict[str, Any]:
        twice = np.empty(len(rows["tokens"]), object)
        twice[:] = [2 * tokens for tokens in rows["tokens"]]
        return {"twice": twice}

    rows = read(function, feature_cols={"t": "tokens", "u": "twice"})
    (batch, *_) = rows.as_numpy()
    assert [row.tolist() for row in batch["t"]] == [[], [0], [0, 1], []]
    assert [row.tolist() for row in batch["u"]] == [[], [0], [0, 2], []]
    # What is not replaced is padded after the function.
    padded = read(
        Map(lambda rows: {"n": (rows["tokens"] != 9).sum(1)}),
        feature_cols=("tokens", "n"),
        pad={"tokens": 9},
        bucket_by="tokens",
    )
    batches = list(padded.as_numpy())
    assert [(t.tolist(), n.tolist()) for t, n in batches[:1]] == [([[]] * 4, [0] * 4)]
    assert batches[2][0].tolist() == [[0, 1], [0, 1]] and batches[2][1].tolist() == [2, 2]


def test_lengths_may_differ_from_batch_to_batch_if_declared(read: Read) -> None:
    def function(rows: dict[str, Any]) -> dict[str, Any]:
        return {"one": np.ones((len(rows["id"]), 1 + int(rows["id"][0])), np.int32)}

    outputs = {"one": ("int32", [None])}
    rows = read(Map(function, outputs=outputs), feature_cols="one")
    assert [batch.shape for batch in rows.as_numpy()] == [(4, 1), (4, 5), (2, 9)]
    with pytest.raises(
        ValueError, match=r"column 'one' as int32 \[5\] in each row; expected int32 \[1\]"
    ):
        list(read(function, feature_cols="one").as_numpy())


def test_strings_and_bytes_stay_whole(read: Read) -> None:
    def function(rows: dict[str, Any]) -> dict[str, Any]:
        raw = [b"\x00" * int(i) for i in rows["id"]]
        return {
            "raw": raw,
            "upper": np.char.upper(rows["word"].astype(str)),
            "list": ["a\x00"] * len(raw),
        }

    names = ("raw", "upper", "list")
    batches = list(read(functools.partial(function), feature_cols=names).as_numpy())
    raw, upper, texts = batches[2]
    assert raw.tolist() == [b"\x00" * 8, b"\x00" * 9]
    assert upper.tolist() == ["W8", "W9"] and texts.tolist() == ["a\x00"] * 2
    assert "test_strings_and_bytes" in Map(functools.partial(function)).name


def test_arrays_have_memory_of_their_own(read: Read) -> None:
    def function(rows: dict[str, Any]) -> dict[str, Any]:
        rows["id"] += 100
        return {
            "flipped": rows["x"][::-1],
            "same": rows["x"],
            "one": np.broadcast_to(1, (len(rows["x"]),)),
        }

    constants = {number: np.ones(number) for number in (2, 3, 4)}
    weights = read(lambda rows: {"w": constants[len(rows["id"])]}, feature_cols="w").as_numpy()
    for batch in itertools.chain(weights, weights):
        assert (batch == 1).all()
        batch *= 2

    names = ("flipped", "same", "x", "one")
    for batch in read(function, feature_cols=names).as_numpy():
        for number, array in enumerate(batch):
            assert array.flags.c_contiguous and array.flags.writeable
            array += number
        assert (batch[0][::-1] + 1 == batch[1]).all() and (batch[1] + 1 == batch[2]).all()


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda rows: rows["id"], "returned ndarray; expected a dict from names"),
        (lambda rows: {"y": rows["id"][:-1]}, r"column 'y' for 3 rows, but its shape is \[2\]"),
        (lambda rows: {"y": 1.0}, r"but its shape is \[\]"),
        (lambda rows: {"y": [[1], [1, 2], []]}, "but setting an array element"),
        (lambda rows: {"y": np.zeros(3, complex)}, "but its dtype is complex128"),
        (lambda rows: {"y": [None] * 3}, "neither strings nor arrays"),
        (lambda rows: {"y": ["a", None, "c"]}, "neither strings nor arrays"),
        (lambda rows: {1: rows["id"]}, "column 1 for 3 rows, but its name is not a string"),
    ],
)
def test_what_a_function_may_not_return(read: Read, returned: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(returned)


def test_an_error_names_the_function_and_keeps_its_traceback(read: Read) -> None:
    def broken(rows: dict[str, Any]) -> dict[str, Any]:
        if rows["id"][0] == 4:
            return {"y": rows["missing"]}
        return {"y": rows["id"]}

    batches = iter(read(broken, feature_cols="y").as_numpy())
    assert next(batches).tolist() == [0, 1, 2, 3]
    with pytest.raises(
        RuntimeError,
        match=r"function .*broken \(.*test_batch_map\.py:\d+\) of map= failed for a batch of 4 "
        r"rows with the columns id, x, word, tokens: KeyError: 'missing'",
    ) as caught:
        next(batches)
    lines = traceback.format_exception(caught.value)
    assert any('return {"y": rows["missing"]}' in line for line in lines)
    assert not [t for t in threading.enumerate() if t.name.startswith("sparkdl-map")]


def test_an_iteration_that_is_left_ends_its_threads(read: Read) -> None:
    batches = iter(read(lambda rows: {"y": rows["id"]}, batch_size_per_worker=1).as_numpy())
    next(batches)
    assert [t for t in threading.enumerate() if t.name.startswith("sparkdl-map")]
    batches.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("sparkdl-map")]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "map is 3; expected a function of a dict of arrays"),
        (Map(len, "x"), "columns of data.Map is 'x'; expected a list"),
        (Map(len, ["z"]), "data.Map names column 'z', which does not exist"),
        (Map(len, num_threads=0), "num_threads is 0"),
        (Map(len, outputs=["y"]), "expected a dict from names to a dtype"),  # type: ignore[arg-type]
        (Map(len, outputs={"y": "flaot32"}), "outputs of data.Map has 'flaot32' for 'y'"),
        (Map(len, outputs={"y": ("float32", [-1])}), "and the shape of a row"),
        (Map(len, outputs={"y": "datetime64[s]"}), "expected a dtype such as"),
    ],
)
def test_invalid_maps(read: Read, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(value)


def test_other_outputs_than_declared_are_refused_before_the_first_step(read: Read) -> None:
    def function(rows: dict[str, Any]) -> dict[str, Any]:
        return {"y": rows["x"].astype(np.float64)}

    with pytest.raises(ConfigError, match=r"'y' as float64 in each row; expected float32.*astype"):
        read(Map(function, outputs={"y": "float32"}))
    with pytest.raises(ConfigError, match="returned the columns y; expected y, z"):
        read(Map(function, outputs={"y": "float64", "z": "int64"}))
    with pytest.raises(ConfigError, match=r"no column 'yy'\. Did you mean 'y'"):
        read(function, feature_cols="yy")
    with pytest.raises(ConfigError, match="column 'tokens' cannot be stacked"):
        read(function, feature_cols=["tokens", "y"])
    with pytest.raises(ConfigError, match="bucket_by is 'y'; expected one of the selected"):
        read(function, bucket_by="y")


def test_no_rows(tmp_path: Path) -> None:
    pq.write_table(TABLE.slice(0, 0), tmp_path / "none.parquet")

    def read(function: Any) -> Any:
        options = {"feature_cols": "y", "ragged": ["tokens"]}
        path = tmp_path / "none.parquet"
        return data.parquet(path, map=function, batch_size_per_worker=4, **options)

    declared = Map(lambda rows: {"y": rows["x"]}, outputs={"y": "float32"})
    for function in (lambda rows: {"y": rows["x"]}, declared):
        with pytest.raises(ConfigError, match=r"none\.parquet has no rows"):
            read(function)


def test_rows_that_are_left_out_do_not_reach_the_function(read: Read) -> None:
    seen = []

    def function(rows: dict[str, Any]) -> dict[str, Any]:
        seen.append(len(rows["id"]))
        return {}

    rows = read(function, feature_cols="id", last_batch="drop")
    seen.clear()
    assert lists(rows.as_numpy()) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert seen == [4, 4]


def test_mixtures_of_datasets_with_functions(read: Read) -> None:
    both = [read(lambda rows, by=by: {"y": rows["id"] * by}, feature_cols="y") for by in (1, -1)]
    assert lists(data.mix(both, stop="longest").as_numpy())[:2] == [[0, 1, 0, -1], [2, 3, -2, -3]]


def test_outputs_in_words() -> None:
    assert str(Output.parse("y", ("string", [2]))) == "string [2]"
    assert str(Output.parse("y", np.float32)) == "float32"


@pytest.mark.slow
def test_datasets_of_tensorflow_have_the_same_batches(read: Read) -> None:
    def function(rows: dict[str, Any]) -> dict[str, Any]:
        image = np.repeat(rows["x"], 6).reshape(-1, 2, 3)
        names = np.char.upper(rows["word"].astype(str))
        return {"image": image, "name": names, "short": rows["tokens"]}

    rows = read(
        function,
        feature_cols={"image": "image", "name": "name", "tokens": "tokens", "short": "short"},
        label_cols=["id", "x"],
        weight_col="x",
        epochs=2,
    )
    features, labels, weights = rows.element_spec
    assert features["image"].shape.as_list() == [None, 2, 3]
    assert features["short"].shape.as_list() == [None, None]
    assert labels.shape.as_list() == [None, 2] and weights.shape.as_list() == [None]
    pairs = list(zip(rows, rows.as_numpy(), strict=True))
    assert len(pairs) == len(rows) == 6
    for (features, labels, weights), (x, y, w) in pairs:
        assert (features["image"].numpy() == x["image"]).all()
        assert [name.decode() for name in features["name"].numpy()] == x["name"].tolist()
        for name in ("tokens", "short"):
            assert features[name].to_list() == [row.tolist() for row in x[name]]
        assert (labels.numpy() == y).all() and (weights.numpy() == w).all()
    padded = read(lambda rows: {"y": rows["x"]}, feature_cols=("tokens", "y"), pad={"tokens": 7})
    assert [t.numpy().tolist() for t, _ in padded][2] == [[0, 1], [7, 7]]
    buffers = {number: np.zeros(number) for number in (2, 3, 4)}

    def again(rows: dict[str, Any]) -> dict[str, Any]:
        buffer = buffers[len(rows["id"])]
        buffer[:] = rows["id"]
        return {"id": buffer}

    kept = list(read(Map(again, num_threads=1), feature_cols="id"))
    assert lists(batch.numpy() for batch in kept) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert isinstance(rows.blocks, MappedBlocks)


@pytest.mark.slow
def test_an_error_within_fit_has_the_users_line(read: Read) -> None:
    import tensorflow as tf

    def broken(rows: dict[str, Any]) -> dict[str, Any]:
        if len(rows["x"]) < 3:
            raise ValueError("so few")
        return {"y": rows["x"]}

    with pytest.raises(tf.errors.OpError) as caught:
        list(read(broken, feature_cols="y"))
    for text in ("RuntimeError: the function", "ValueError: so few", 'raise ValueError("so few")'):
        assert text in str(caught.value)
