"""Runs in a Spark task. The rows of an RDD as Arrow batches, at least 1024 rows at a time."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from sparkdl.data import schema as table
from sparkdl.errors import ConfigError

__all__ = ["RowPacker", "schema_of_row"]

BATCH_ROWS = 1024


def schema_of_row(name: str, row: Any) -> pa.Schema:
    """The Arrow schema of rows like this one: a Row, a dict, or a tuple (`_1`, `_2`, ...).

    Raises:
        ConfigError: it is no row, or a value in it has no tensor.

    Example:
        >>> schema_of_row("train", ([0.5, 1.0], 3)).names
        ['_1', '_2']
    """
    fields, wrong = [], []
    for key, value in _named(name, row).items():
        try:
            fields.append(pa.field(key, pa.array([_plain(value)]).type))
            table.column(fields[-1])
        except (table.UnsupportedType, pa.ArrowException) as exc:
            wrong.append(f"{key!r} is {value!r}: {exc}")
    if wrong:
        raise ConfigError(
            f"the first row of the RDD for data {name!r} has values that cannot become tensors. "
            "Convert them, or make it a DataFrame with a schema:\n- " + "\n- ".join(wrong)
        )
    return pa.schema(fields)


def _named(name: str, row: Any) -> Mapping[str, Any]:
    if isinstance(row, Mapping):
        return row
    if isinstance(row, tuple | list) and row:
        names = getattr(row, "__fields__", None) or getattr(row, "_fields", None)
        return dict(zip(names or [f"_{i + 1}" for i in range(len(row))], row, strict=True))
    raise ConfigError(
        f"the RDD for data {name!r} holds {type(row).__name__}: {row!r}; expected rows, tuples or "
        "dicts with a value for each column."
    )


def _plain(value: Any) -> Any:
    """ML vectors as arrays."""
    return value.toArray() if hasattr(value, "toArray") else value


@dataclass(frozen=True)
class RowPacker:
    """Packs a partition of rows: yields (place of the reader, Arrow message of a batch).

    Attributes:
        schema: their serialized Arrow schema.
        num_readers: among how many they are dealt out equally.
    """

    schema: bytes = field(repr=False)
    num_readers: int

    def __call__(self, partition: int, rows: Iterable[Any]) -> Iterator[tuple[int, bytes]]:
        schema = pa.ipc.read_schema(pa.py_buffer(self.schema))
        rows = iter(rows)
        for turn in itertools.count(partition):
            chunk = list(itertools.islice(rows, BATCH_ROWS * self.num_readers))
            if not chunk:
                return
            batch = _batch(chunk, schema)
            for place in range(self.num_readers):
                begin, end = (len(chunk) * i // self.num_readers for i in (place, place + 1))
                if begin < end:
                    message = batch.slice(begin, end - begin).serialize().to_pybytes()
                    yield (place + turn) % self.num_readers, message


def _batch(rows: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    if isinstance(rows[0], Mapping):
        rows = [_values(row, schema) for row in rows]
    columns = []
    for place, kind in enumerate(schema):
        try:
            values = pa.array([_plain(row[place]) for row in rows])
            columns.append(values.cast(kind.type))  # Refuses what would lose something.
        except (pa.ArrowException, TypeError, LookupError) as exc:
            raise TypeError(
                f"a row of the RDD has no value for column {kind.name!r} that fits {kind.type}, "
                f"the type in its first row: {exc}"
            ) from exc
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _values(row: Any, schema: pa.Schema) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in schema.names)
