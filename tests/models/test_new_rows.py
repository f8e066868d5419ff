"""Rows that a version has not seen: the oracle is an anti-join of pandas."""

import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sparkdl import models
from sparkdl.data.row_keys import KeyLog
from sparkdl.errors import ConfigError
from sparkdl.files.layout import RunPaths
from tests.models.test_affected import run_of, version_of

DAY = datetime.date(2024, 2, 29)
# The columns of a key, with types of Spark and values; the first half was seen.
KEYS: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "integer": ("id long", [(n,) for n in (0, -1, 7, 2**63 - 1, -(2**63), 10, 11, 127)]),
    "byte": ("id byte", [(n,) for n in (0, -128, 127, 1, 2, 3)]),
    "text": ("id string", [(t,) for t in ("", "a", "ö€😀", "x" * 300, "A", "a ", "1", "ö")]),
    "binary": (
        "id binary",
        [(bytes([0]),), (b"",), (b"\xff\xfe",), (bytes(256),), (b"a",), (b"b",)],
    ),
    "date": (
        "id date",
        [
            (DAY,),
            (datetime.date(1, 1, 1),),
            (DAY + datetime.timedelta(1),),
            (datetime.date(9999, 12, 31),),
        ],
    ),
    "two": (
        "shop string, id int",
        [("a", 1), ("b", 2), ("", 11), ("a", 2), ("b", 1), ("1", 1)],
    ),
    "nulls": ("shop string, id int", [("a", None), (None, 1), ("a", 1), (None, None)]),
}


def saw(run: RunPaths, types: str, rows: list[tuple[Any, ...]], *, data: str = "train") -> None:
    """Record rows of the first trial, as its training process does."""
    arrow = {
        "long": pa.int64(),
        "int": pa.int32(),
        "byte": pa.int8(),
        "string": pa.large_string(),
        "binary": pa.binary(),
        "date": pa.date32(),
    }
    columns = [column.split() for column in types.split(", ")]
    schema = pa.schema([(name, arrow[kind]) for name, kind in columns])
    names = [name for name, _ in columns]
    log = KeyLog(Path(run.trial(0).folder, "row-keys"), 0, data, names, schema, 1)
    values = [
        pa.array(part, field.type)
        for part, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    log.add(pa.record_batch(values, schema=schema))
    log.close()


@pytest.mark.parametrize("kind", KEYS)
def test_new_rows_are_those_of_an_anti_join_of_pandas(
    kind: str, root: str, spark: SparkSession
) -> None:
    types, keys = KEYS[kind]
    half = len(keys) // 2
    run = run_of(root, "nightly")
    saw(run, types, keys[:1])
    saw(run, types, keys[1:half], data="validation")
    version_of(root, "loans", 1, run)
    # Each new row comes twice: rows are chosen, not keys.
    rows = [(*key, 0.5 * place) for place, key in enumerate([*keys, *keys[half:]])]
    names = [column.split()[0] for column in types.split(", ")]
    whole, seen = (
        pd.DataFrame(rows, columns=[*names, "x"]),
        pd.DataFrame(keys[:half], columns=names),
    )
    merged = whole.merge(seen, on=names, how="left", indicator=True)
    expected = merged[merged["_merge"] == "left_only"]["x"].tolist()
    frame = spark.createDataFrame(rows, f"{types}, x double").repartition(3)
    new = models.new_rows(frame, models.get("loans", 1, root=root))
    assert new.columns == [*names, "x"]
    assert sorted(row.x for row in new.collect()) == sorted(expected) != []


def test_rows_are_not_new_that_any_dataset_had_by_its_own_key(
    root: str, spark: SparkSession
) -> None:
    run = run_of(root, "nightly")
    saw(run, "id long", [(1,), (2,)])
    saw(run, "shop string, id long", [("a", 3)], data="validation")
    version_of(root, "loans", 1, run)
    rows = [("b", 1), ("a", 3), ("b", 3), ("a", 4)]
    new = models.new_rows(
        spark.createDataFrame(rows, "shop string, id long"), models.get("loans", 1, root=root)
    )
    assert sorted(map(tuple, new.collect())) == [("a", 4), ("b", 3)]


def test_what_is_not_known_is_refused(root: str, spark: SparkSession) -> None:
    version_of(root, "without", 1, run_of(root, "without"))
    version_of(root, "alone", 1, None)
    known = run_of(root, "with")
    saw(known, "id long", [(1,)])
    version_of(root, "with", 1, known)
    frame = spark.createDataFrame([("1", 1)], "id string, idx long")
    for name, rows, says in (
        ("without", frame, "has recorded no rows, see row_key="),
        ("alone", frame, "it was exported from a model that is of no run"),
        ("with", frame, "column 'id' of rows is string, and it was integer in the data 'train'"),
        ("with", frame.drop("id"), r"rows has no column 'id', .* Did you mean 'idx'\? Columns are"),
    ):
        with pytest.raises(ConfigError, match=says):
            models.new_rows(rows, models.get(name, 1, root=root))
    file = next(Path(known.trial(0).folder, "row-keys").glob("*.md5"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="is damaged"):
        models.new_rows(
            frame.drop("id").withColumnRenamed("idx", "id"), models.get("with", 1, root=root)
        )
