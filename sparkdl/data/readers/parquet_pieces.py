"""Runs in the training process. The row groups that all ranks divide, and how to read their files.

The first rank lists them, see `parquet_footers`; the other ranks get them as JSON.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from sparkdl.data.readers.filter_values import typed_values
from sparkdl.data.readers.parquet_types import comparable_type, is_stored_alike
from sparkdl.data.readers.paths import Files, Paths, find_again
from sparkdl.errors import ConfigError


@dataclass(frozen=True)
class File:
    """A file, and what its footer and its folders say of its columns.

    Attributes:
        files: the files that the file belongs to.
        number: index of the file in `files.paths`.
        schema: names and types of the columns stored in the file; shared by files with equal ones.
        keys: values of the columns that the file does not store, or that its folders define, such
            as `year=2020`; these replace values that the file stores.
    """

    files: Files
    number: int
    schema: pa.Schema
    keys: Mapping[str, pa.Scalar]

    @property
    def path(self) -> str:
        """The path of the file on its filesystem."""
        return self.files.paths[self.number]

    @property
    def url(self) -> str:
        """The URL or local path of the file, as a user would write it."""
        return self.files.url(self.path)


@dataclass(frozen=True)
class RowGroup:
    """A row group.

    Attributes:
        file: number of its file in `ParquetPieces.files`.
        number: number of the row group in the file.
        rows: number of its rows that pass the filter.
    """

    file: int
    number: int
    rows: int


class ParquetPieces:
    """The row groups of Parquet files.

    Args:
        paths: the user's paths.
        condition: condition for the rows to read, see the `filter` of `parquet`.
        pieces: the result of `parquet_footers.list_row_groups` on the first rank.

    Attributes:
        files: the files in order, without those that the names of their folders exclude.
        schema: the columns of the first file and the columns that folders define, with the types
            that all files have in common.
        filter: the condition as an expression; None without a condition.
        filtered: names of the columns in the condition.
        groups: the row groups with rows that pass the filter; some may have 0 such rows.
    """

    def __init__(self, paths: Paths, condition: Any, pieces: Mapping[str, Any]) -> None:
        schemas = [unpack_schema(schema) for schema in pieces["schemas"]]
        keys = [_unpack_keys(key_names) for key_names in pieces["keys"]]
        places = [
            (files, number)
            for files in find_again(paths, pieces["files"])
            for number in range(len(files.paths))
        ]
        self.files = [
            File(*place, schemas[schema], keys[key_names])
            for place, schema, key_names in zip(
                places, pieces["schema_of_file"], pieces["keys_of_file"], strict=True
            )
        ]
        self.schema = unpack_schema(pieces["schema"])
        self.filter, self.filtered = bind(condition, self.schema)
        self.groups = [RowGroup(*numbers) for numbers in zip(*pieces["groups"], strict=True)]

    def columns_to_read(self, names: Sequence[str]) -> list[str]:
        """Return the names of the columns to read, and of those in the condition."""
        return list(dict.fromkeys([*names, *self.filtered]))

    def check_types(self, names: Sequence[str]) -> None:
        """Validate that columns have the same type in all files.

        Args:
            names: names of the columns.

        Raises:
            ValueError: if types differ; the message names the file, the column and both types.
        """
        checked = set()
        for file in self.files:
            if (columns := (id(file.schema), tuple(file.keys))) not in checked:
                checked.add(columns)
                check_file(file, self.schema, self.files[0].url, names)


def check_file(file: File, schema: pa.Schema, first_url: str, names: Iterable[str]) -> None:
    """Validate that columns of a file have the types of all files, as Parquet stores them.

    The unit and the zone of a timestamp may differ: writers differ in both.

    Args:
        file: the file.
        schema: the columns of the files and of all folders.
        first_url: the first file, for the message.
        names: names of the columns.

    Raises:
        ValueError: if a type differs, or the file has no such column, or two.
    """
    for name in names:
        if file.schema.names.count(name) > 1:
            raise ValueError(
                f"{file.url} has two columns {name!r}; expected different names. Write the file "
                "again, or choose other columns by feature_cols."
            )
        common_kind = schema.field(name).type
        if name in file.keys:
            kind = file.keys[name].type
        elif name in file.schema.names:
            kind = file.schema.field(name).type
        else:
            raise ValueError(f"{file.url} has no column {name!r}, which other files have.")
        if not is_stored_alike(kind, common_kind):
            raise ValueError(
                f"{file.url}: column {name!r} is {kind}; in {first_url} it is {common_kind}. "
                "Write the files with one type."
            )


def filter_rows(
    batch: pa.RecordBatch,
    schema: pa.Schema,
    keys: Mapping[str, pa.Scalar],
    condition: pc.Expression | None,
) -> pa.RecordBatch:
    """Return the rows of a batch that pass a condition; rows are counted and read by this function.

    Args:
        batch: the columns stored in a file.
        schema: the columns to return, with the types that all files have in common.
        keys: values of the columns that the file does not store, or that its folders define.
        condition: a condition of columns of `schema`; None for all rows.
    """
    arrays = []
    for field in schema:
        if field.name in keys:
            array = pa.repeat(keys[field.name], batch.num_rows)
        else:
            array = batch.column(field.name)
        arrays.append(array if array.type == field.type else _cast(array, field))
    if not arrays:
        return batch
    whole = pa.RecordBatch.from_arrays(arrays, schema=schema)
    if condition is None:
        return whole
    # RecordBatch.filter of pyarrow 19 fails if no row passes.
    passed = pa.Table.from_batches([whole]).filter(condition).combine_chunks().to_batches()
    return passed[0] if passed else whole.slice(0, 0)


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return array.cast(comparable_type(array.type)).cast(field.type)
    except pa.ArrowInvalid as exc:
        raise pa.ArrowInvalid(
            f"column {field.name!r} is {array.type} here and of another type in other files; "
            f"expected values that {field.type} holds: {exc} Write the files with one type."
        ) from exc


def bind(condition: Any, schema: pa.Schema) -> tuple[pc.Expression | None, list[str]]:
    """Return a condition as an expression, and the names of the columns in the condition.

    Args:
        condition: see the `filter` of `parquet`.
        schema: the columns.

    Raises:
        ConfigError: if the condition is invalid, or names a column that does not exist.
    """
    if condition is None:
        return None, []
    # Without a row, pyarrow accepts some conditions that it cannot evaluate.
    row = pa.Table.from_arrays([pa.nulls(1, kind) for kind in schema.types], schema=schema)
    try:
        is_expression = isinstance(condition, pc.Expression)
        typed = typed_values(condition, schema)
        expression = typed if is_expression else pq.filters_to_expression(typed)
        row.filter(expression)
    except ConfigError:
        raise
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as exc:
        zones = ", ".join(f"{field.name!r} is {field.type}" for field in schema if _is_time(field))
        advice = f" A datetime has a time zone if its column has one: {zones}." if zones else ""
        raise ConfigError(
            f"filter={condition!r}: {exc}\nExpected an expression of pyarrow.compute, or a list "
            f'such as [("year", ">=", 2020)].{advice} Columns are {", ".join(schema.names)}.'
        ) from exc
    return expression, [name for name in schema.names if _needs(row, expression, name)]


def _is_time(field: pa.Field) -> bool:
    return bool(types.is_timestamp(field.type))


def _needs(row: pa.Table, expression: pc.Expression, name: str) -> bool:
    """Return True if an expression cannot be evaluated without a column.

    pyarrow has no function that lists the columns of an expression.
    """
    try:
        row.drop_columns([name]).filter(expression)
    except pa.ArrowInvalid:
        return True
    return False


def pack_schema(schema: pa.Schema) -> str:
    """Return a schema as text."""
    return base64.b64encode(schema.serialize()).decode()


def unpack_schema(text: str) -> pa.Schema:
    """Return the schema of a text of `pack_schema`."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def pack_keys(keys: Mapping[str, pa.Scalar]) -> str:
    """Return values of columns, by name, as text: a row in Arrow's format."""
    columns = [pa.array([value.as_py()], value.type) for value in keys.values()]
    row = pa.RecordBatch.from_arrays(columns, list(keys))
    return pack_schema(row.schema) + " " + base64.b64encode(row.serialize()).decode()


def _unpack_keys(text: str) -> dict[str, pa.Scalar]:
    """Return the values of a text of `pack_keys`."""
    schema, row = text.split(" ")
    read = pa.ipc.read_record_batch(pa.py_buffer(base64.b64decode(row)), unpack_schema(schema))
    return {name: read[name][0] for name in read.schema.names}
