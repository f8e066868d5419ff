"""Runs on the driver. Choose the rows of a DataFrame that a version of a model has not seen."""

import functools
from typing import TYPE_CHECKING, Any

from sparkdl.errors import ConfigError, named_type, suggest
from sparkdl.files import storage
from sparkdl.models.training_rows import TrainingRows
from sparkdl.models.version import ModelVersion

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The kind of the values of a column, see `data.row_keys.kind_of`, by the name of Spark's type.
_KINDS = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "integer"),
    "string": "text",
    "binary": "binary",
    "date": "date",
}
_SEEN = "sparkdl_seen"
# Digests that go to Spark at once: its message to a task may have 128 MiB.
MAX_DIGESTS = 1_000_000


def new_rows(rows: "DataFrame", version: ModelVersion) -> "DataFrame":
    """Return the rows of a DataFrame on which a version of a model was not trained.

    It is for a training that goes on each night with the rows that have come since. The trainings
    need the option `row_key="customer"`, see `affected`: rows are known by their key, so that a row
    that has changed under the same key is not new. Rows of validation data are not new either, and
    neither are the rows of trainings from whose checkpoints the version began.

    The digests of all rows that the version has seen pass through the driver, 16 bytes each on the
    disk and some 300 in its memory.

    Args:
        rows: the rows, of Spark.
        version: the version, as `models.get` returns it.

    Returns:
        The new rows, with all their columns, in any order. Spark looks for them when they are used.

    Raises:
        ConfigError: if not all rows of the version are known, or `rows` is no DataFrame of Spark,
            lacks a column of the key or has it with another type.

    Example:
        >>> from sparkdl import experiment, models
        >>> live = models.get("churn", alias="live")  # doctest: +SKIP
        >>> new = models.new_rows(spark.table("customers"), live)  # doctest: +SKIP
        >>> run = experiment.launch(  # doctest: +SKIP
        ...     train, {"learning_rate": [0.001]}, data=new, row_key="customer",
        ...     init_from=experiment.load(live.run).trials[live.trial],
        ... )
    """
    if not hasattr(rows, "sparkSession"):
        raise ConfigError(f"rows is {named_type(rows)}; expected a DataFrame of Spark.")
    found = TrainingRows.of(version)
    title = f"version {version.version} of the model {version.name}"
    if found.problems or not found.records:
        problems = "; ".join(dict.fromkeys(found.problems)) or "it has recorded no rows"
        raise ConfigError(
            f"which rows {title} has seen is not known: {problems}. Train it anew with row_key=."
        )
    for columns in sorted({tuple(record["columns"]) for record in found.records}):
        records = [record for record in found.records if tuple(record["columns"]) == columns]
        _check(rows, records, title)
        digests = {digest for record in records for digest in _digests(record)}
        rows = _without(rows, columns, digests)
    return rows


def _check(rows: "DataFrame", records: list[dict[str, Any]], title: str) -> None:
    types = dict(rows.dtypes)
    for record in records:
        for name, kind in zip(record["columns"], record["kinds"], strict=True):
            if name not in types:
                raise ConfigError(
                    f"rows has no column {name!r}, by which the rows of {title} are known."
                    f"{suggest(name, list(types))} Columns are {', '.join(types)}."
                )
            if _KINDS.get(types[name]) != kind:
                raise ConfigError(
                    f"column {name!r} of rows is {types[name]}, and it was {kind} in the data "
                    f"{record['data']!r} of {title}. Cast it to the type that it had."
                )


def _digests(record: dict[str, Any]) -> list[str]:
    """Return the digests of a record, in hexadecimal digits.

    Raises:
        ConfigError: if the record is damaged.
    """
    from sparkdl.data.row_keys import DIGEST_BYTES

    data = storage.read(record["url"])
    if len(data) % DIGEST_BYTES:
        raise ConfigError(f"the record {record['url']} is damaged: a part of it is missing.")
    text, width = data.hex(), 2 * DIGEST_BYTES
    return [text[place : place + width] for place in range(0, len(text), width)]


def _without(rows: "DataFrame", columns: tuple[str, ...], digests: set[str]) -> "DataFrame":
    """Return the rows whose key has none of the digests."""
    import pandas as pd
    from pyspark.sql import functions

    listed = sorted(digests)
    frames = [
        rows.sparkSession.createDataFrame(
            pd.DataFrame({_SEEN: listed[begin : begin + MAX_DIGESTS]}), f"{_SEEN} string"
        )
        for begin in range(0, max(1, len(listed)), MAX_DIGESTS)
    ]
    seen = functools.reduce(lambda left, right: left.union(right), frames)
    types = dict(rows.dtypes)
    key = functions.concat(*(_encoded(rows[_quoted(name)], types[name]) for name in columns))
    return rows.join(seen, functions.md5(key) == seen[_SEEN], "left_anti")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _encoded(column: "Column", kind: str) -> "Column":
    """Return the bytes of a value after their length, as `data.row_keys.digests` has them."""
    from pyspark.sql import functions

    data = column if kind == "binary" else functions.encode(column.cast("string"), "UTF-8")
    digits = functions.lpad(functions.hex(functions.length(data)), 8, "0")
    # The lowest byte is the first one.
    pairs = [functions.substring(digits, place, 2) for place in (7, 5, 3, 1)]
    whole = functions.concat(functions.unhex(functions.concat(*pairs)), data)
    null = functions.unhex(functions.lit("ff" * 4))
    return functions.when(column.isNull(), null).otherwise(whole)
