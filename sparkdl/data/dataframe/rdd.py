"""Runs in a Spark task. Pack the rows of an RDD into Arrow batches of about 1024 rows."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from sparkdl.data.schema import UnsupportedType, column
from sparkdl.errors import ConfigError

BATCH_ROWS = 1024


def schema_of_row(name: str, row: Any) -> pa.Schema:
    """Return the Arrow schema of rows like the first row of an RDD.

    Args:
        name: name of the dataset.
        row: a Row, a dict, or a tuple, whose columns are `_1`, `_2`, ...

    Raises:
        ConfigError: if `row` is not a row, or one of its values cannot become a tensor.

    Example:
        >>> schema_of_row("train", ([0.5, 1.0], 3)).names
        ['_1', '_2']
    """
    fields, problems = [], []
    for key, value in _named_values(name, row).items():
        try:
            fields.append(pa.field(key, pa.array([_vector_to_array(value)]).type))
            column(fields[-1])
        except (UnsupportedType, pa.ArrowException) as exc:
            problems.append(f"{key!r} is {value!r}: {exc}")
    if problems:
        raise ConfigError(
            f"the first row of the RDD for data {name!r} has values that cannot become tensors. "
            "Convert them, or create a DataFrame with a schema:\n- " + "\n- ".join(problems)
        )
    return pa.schema(fields)


def _named_values(name: str, row: Any) -> Mapping[str, Any]:
    if isinstance(row, Mapping):
        return row
    if isinstance(row, tuple | list) and row:
        names = getattr(row, "__fields__", None) or getattr(row, "_fields", None)
        return dict(zip(names or [f"_{i + 1}" for i in range(len(row))], row, strict=True))
    raise ConfigError(
        f"the RDD for data {name!r} holds {type(row).__name__}: {row!r}; expected rows, tuples or "
        "dicts with a value for each column."
    )


def _vector_to_array(value: Any) -> Any:
    """Return an ML vector as an array, and any other value unchanged."""
    return value.toArray() if hasattr(value, "toArray") else value


@dataclass(frozen=True)
class RowPacker:
    """Pack a partition of rows: yield (position of the reader, Arrow message of a batch).

    Attributes:
        schema: the serialized Arrow schema of the rows.
        num_readers: number of readers that the rows are dealt to equally.
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
            batch = _to_batch(chunk, schema)
            for place in range(self.num_readers):
                begin, end = (len(chunk) * i // self.num_readers for i in (place, place + 1))
                if begin < end:
                    message = batch.slice(begin, end - begin).serialize().to_pybytes()
                    yield (place + turn) % self.num_readers, message


def _to_batch(rows: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    names = schema.names
    ordered = [_values_in_order(row, names) for row in rows]
    columns = []
    for place, column_field in enumerate(schema):
        try:
            values = pa.array([_vector_to_array(row[place]) for row in ordered])
            columns.append(values.cast(column_field.type))  # Refuses a cast that loses data.
        except (pa.ArrowException, TypeError) as exc:
            raise TypeError(
                f"a row of the RDD has no value for column {column_field.name!r} that fits "
                f"{column_field.type}, the type in the first row: {exc}"
            ) from exc
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _values_in_order(row: Any, names: Sequence[str]) -> Sequence[Any]:
    """Return the values of a row in the order of the columns.

    A dict may leave columns out, which are then null. No value of a row is left out: a row with
    columns or values that the first row does not have is refused.
    """
    if isinstance(row, Mapping):
        if row.keys() <= set(names):
            return [row.get(name) for name in names]
        columns: Any = list(row)
    elif isinstance(row, tuple | list):
        columns = getattr(row, "__fields__", None) or getattr(row, "_fields", None)
        if len(row) == len(names) and (not columns or list(columns) == names):
            return row
        if columns and set(columns) == set(names) and len(row) == len(names):
            return [row[columns.index(name)] for name in names]
    else:
        columns = None
    problem = f"the columns {', '.join(map(str, columns))}" if columns else f"the value {row!r}"
    raise TypeError(
        f"a row of the RDD has {problem}; expected a value for each of the columns of the first "
        f"row: {', '.join(names)}. Make all rows equal, or create a DataFrame with a schema."
    )
