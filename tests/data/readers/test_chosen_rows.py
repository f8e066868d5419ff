"""Rows are chosen by the hash of a column, by functions and by sets of values."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv as arrow_csv
from pyspark.sql import SparkSession

from sparkdl import data
from sparkdl.data.row_condition import RowCondition
from sparkdl.data.row_predicate import RowPredicate
from sparkdl.data.row_split import RowSplit
from sparkdl.errors import ConfigError
from tests.data.readers.test_contract import Activate, activate

__all__ = ["activate"]  # A fixture, used by its name.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("parquet", "csv"):
        (tmp_path / name).mkdir()
    for number, ids in enumerate(np.split(np.arange(3000), [100, 100, 1700])):
        users = pa.array([f"u{i // 10}" for i in ids], pa.string())
        table = pa.table({"id": ids, "user": users})
        pq.write_table(table, tmp_path / f"parquet/{number}.parquet", row_group_size=300)
        arrow_csv.write_csv(table, tmp_path / f"csv/{number}.csv")
    return tmp_path


def ids_of(rows: Any) -> list[int]:
    return [int(i) for batch in rows.as_numpy() for i in batch["id"]]


def test_both_sides_have_each_row_once_on_all_ranks(folder: Path, activate: Activate) -> None:
    found: dict[tuple[str, float], list[int]] = {}
    for reader in (data.parquet, data.csv):
        for split in (("user", 0.0, 0.8), ("user", 0.8, 1.0)):
            for rank in range(2):
                activate(rank, 2, folder=str(folder), url=str(folder))
                rows = reader(folder / reader.__name__, split=split, batch_size_per_worker=64)
                found.setdefault((reader.__name__, split[1]), []).extend(ids_of(rows))
    train, unseen = (set(found["parquet", begin]) for begin in (0.0, 0.8))
    assert train | unseen == set(range(3000)) and not train & unseen
    assert 0.7 < len(train) / 3000 < 0.9
    # Rows of a user stay together, and files of another format are split in the same way.
    assert {i // 10 for i in train} & {i // 10 for i in unseen} == set()
    assert set(found["csv", 0.0]) == train
    assert all(len(ids) - len(set(ids)) <= 1 for ids in found.values())


def test_a_split_is_shuffled_and_filtered_like_all_rows(folder: Path, activate: Activate) -> None:
    activate(0, 1)
    options: dict[str, Any] = {"split": ("id", 0.2, 0.6), "batch_size_per_worker": 64}
    rows = data.parquet(folder / "parquet", filter=[("id", ">=", 1000)], **options, shuffle=True)
    first, second = ids_of(rows), ids_of(rows)
    mask = RowSplit("id", 0.2, 0.6).mask(pa.array(range(3000)))
    assert sorted(first) == sorted(second) == [i for i in range(1000, 3000) if mask[i]]
    assert first != second


def test_conditions_are_functions_and_sets_that_all_must_hold(
    folder: Path, activate: Activate
) -> None:
    where = {"id": lambda ids: ids % 2 == 0, "user": {"u3", "u4", "u299", "nobody"}}
    expected = [*range(30, 50, 2), *range(2990, 3000, 2)]
    for reader, name in ((data.parquet, "parquet"), (data.csv, "csv"), (data.petastorm, "parquet")):
        found = []
        for rank in range(2):
            activate(rank, 2, folder=str(folder), url=str(folder))
            rows = reader(str(folder / name), where=where, batch_size_per_worker=4)
            found += ids_of(rows)
        assert sorted(set(found)) == expected and len(found) == 16
    activate(0, 1)
    split = ("user", 0.2, 0.4)  # Of the three users, only u3 is in it.
    path = folder / "parquet"
    both = data.parquet(path, where=where, split=split, batch_size_per_worker=4)
    alone = set(ids_of(data.parquet(path, split=split, batch_size_per_worker=4)))
    assert ids_of(both) == [i for i in expected if i in alone] == [*range(30, 40, 2)]


class Even:
    """A predicate as petastorm has them."""

    def get_fields(self) -> set[str]:
        return {"user", "id"}

    def do_include(self, values: dict[str, Any]) -> bool:
        assert isinstance(values["id"], np.int64) and isinstance(values["user"], str)
        return bool(values["id"] % 2 == 0 and values["user"] == "u3")


def test_a_predicate_is_asked_row_by_row(folder: Path, activate: Activate) -> None:
    for reader in (data.parquet, data.csv):
        activate(0, 1)
        rows = reader(folder / reader.__name__, where=Even(), batch_size_per_worker=4)
        assert ids_of(rows) == [*range(30, 40, 2)]
    values = [
        pa.array([1, None]),
        pa.array([[1.0], None]),
        pa.array(["a", None]).dictionary_encode(),
    ]
    seen = []

    class Seen(Even):
        def get_fields(self) -> set[str]:
            return {"a", "b", "c"}

        def do_include(self, values: dict[str, Any]) -> bool:
            seen.append(values)
            return values["a"] is not None

    assert RowPredicate(Seen()).mask(*values).tolist() == [True, False]
    assert seen == [{"a": 1, "b": np.array([1.0]), "c": "a"}, {"a": None, "b": None, "c": None}]
    with pytest.raises(ConfigError, match="reads column 'b', which does not exist"):
        RowPredicate(Seen()).check(pa.schema({"a": pa.int64()}))


def test_a_null_never_passes() -> None:
    values = pa.array([1, None, 3])
    assert RowCondition("x", lambda x: x > 0).mask(values).tolist() == [True, False, True]
    nan = pa.array([1.5, None, float("nan")], from_pandas=False)
    assert RowCondition("x", np.isnan).mask(nan).tolist() == [False, False, True]
    assert RowCondition("x", (1, 2)).mask(values).tolist() == [True, False, False]


def test_splits_of_an_elastic_gang_are_counted_by_themselves(
    folder: Path, activate: Activate
) -> None:
    found = []
    conditions: list[dict[str, Any]] = [
        {"split": ("id", 0.9, 1)},
        {"split": ("id", 0, 0.9)},
        {"where": {"id": lambda ids: ids < 100}},
        {"where": {"id": lambda ids: ids >= 100}},
    ]
    for condition in conditions:
        seen = set()
        for rank in range(2):
            activate(rank, 2, folder=str(folder), url=str(folder), is_elastic=True)
            seen |= set(
                ids_of(data.parquet(folder / "parquet", **condition, batch_size_per_worker=64))
            )
        found.append(seen)
    for one, other in (found[:2], found[2:]):
        assert one | other == set(range(3000)) and not one & other


def test_lanes_of_chosen_rows_have_no_threads(tmp_path: Path, activate: Activate) -> None:
    activate(0, 1)
    pq.write_table(pa.table({"id": range(6400)}), tmp_path / "rows.parquet", row_group_size=100)
    options: dict[str, Any] = {"shuffle": 640, "batch_size_per_worker": 64}
    rows = data.parquet(tmp_path, split=("id", 0, 0.9), feature_cols="id", **options)
    before = threading.active_count()
    batches = iter(rows.as_numpy())
    next(batches)
    assert threading.active_count() - before <= 2
    del batches


def test_values_of_categories_and_whole_numbers() -> None:
    words = pa.array(["a", None, "b"]).dictionary_encode()
    wanted = RowCondition("x", {"b"})
    wanted.check(pa.schema({"x": words.type}))
    assert wanted.mask(words).tolist() == [False, False, True]
    assert RowCondition("x", [1.0, np.int64(3)]).mask(pa.array([1, 2, 3])).tolist() == [1, 0, 1]
    with pytest.raises(ConfigError, match=r"where has \[1\.5\] .*: they are not whole numbers"):
        RowCondition("x", [1.5]).check(pa.schema({"x": pa.int64()}))
    with pytest.raises(ConfigError, match=r"column 'x', which is list<.*; expected a column of"):
        RowCondition("x", [1]).check(pa.schema({"x": pa.list_(pa.int64())}))


def test_wrong_conditions_are_refused(folder: Path, activate: Activate) -> None:
    activate(0, 1)
    path, size = folder / "parquet", {"batch_size_per_worker": 4}
    for wrong in ({}, "id", {"id": 3}, {3: [1]}, [("id", [1])]):
        with pytest.raises(ConfigError, match="expected a dict from columns to functions"):
            data.parquet(path, where=wrong, **size)
    with pytest.raises(ConfigError, match=r"where names column 'ids', .* Did you mean 'id'\?"):
        data.parquet(path, where={"ids": [1]}, **size)
    with pytest.raises(ConfigError, match=r"where has .*'one'.* expected values of int64"):
        data.parquet(path, where={"id": ["one"]}, **size)
    for function in (lambda ids: True, lambda ids: ids, lambda ids: ids[:1] > 0):
        with pytest.raises(ValueError, match="function of where for column 'id' returned an array"):
            data.parquet(path, where={"id": function}, **size)


@pytest.mark.slow
def test_spark_computes_the_same_places(spark: SparkSession) -> None:
    place = "conv(substr(md5(cast({} AS string)), 1, 8), 16, 10) / 4294967296"
    df = spark.range(-50, 50).selectExpr("id", "concat('ü', id) AS word")
    rows = df.selectExpr("id", "word", *(f"{place.format(n)} AS p_{n}" for n in ("id", "word")))
    table = rows.toArrow()
    for name in ("id", "word"):
        expected = np.asarray(table[f"p_{name}"]) < 0.4
        mask = RowSplit(name, 0.0, 0.4).mask(table[name].combine_chunks())
        assert mask.tolist() == expected.tolist() and 20 < mask.sum() < 60


def test_wrong_splits_are_refused(folder: Path, activate: Activate) -> None:
    activate(0, 1)
    ranges = ((0.9, 0.9), (0.5, 0.4), (-0.1, 0.5), (0.5, 1.5))
    for wrong in ("id", ("id", 0.9), (3, 0.0, 0.5), *(("id", *each) for each in ranges)):
        with pytest.raises(ConfigError, match=r"split is .*; expected a column and a range"):
            data.parquet(folder / "parquet", split=wrong, batch_size_per_worker=4)
    with pytest.raises(ConfigError, match="split names column 'ID', which does not exist"):
        data.parquet(folder / "parquet", split=("ID", 0.0, 0.5), batch_size_per_worker=4)
    pq.write_table(pa.table({"x": [0.5]}), folder / "x.parquet")
    with pytest.raises(ConfigError, match="split names column 'x', which is double; expected a"):
        data.parquet(folder / "x.parquet", split=("x", 0.0, 0.5), batch_size_per_worker=4)
    with pytest.raises(ConfigError, match="split= and where= are for files"):
        data.dataset(split=("id", 0, 0.5), batch_size_per_worker=4)
    with pytest.raises(ValueError, match="column 'id' has 1 nulls among 2 values, and split"):
        RowSplit("id", 0.0, 0.5).mask(pa.array([1, None]))
