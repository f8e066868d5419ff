"""Runs in the training process. Read the footers of Parquet files: row groups, columns, types."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import types

from sparkdl.data.readers.paths import Files, Paths, find
from sparkdl.errors import ConfigError

__all__ = ["File", "Footers", "RowGroup"]

NUM_THREADS = 16  # More than cores: the threads mostly wait for a store.


@dataclass(frozen=True)
class File:
    """A file, and the content of its footer.

    Attributes:
        files: the files that the file belongs to.
        path: path of the file on the filesystem of `files`.
        mark: see `Files.mark`; taken when the footer was read.
        schema: names and types of the columns stored in the file.
        keys: values of the columns that its folders define, such as `year=2020`.
    """

    files: Files
    path: str
    mark: str
    schema: pa.Schema
    keys: Mapping[str, pa.Scalar]

    @property
    def url(self) -> str:
        """The URL or local path of the file, as a user would write it."""
        return self.files.url(self.path)


@dataclass(frozen=True)
class RowGroup:
    """A row group.

    Attributes:
        file: number of its file in `Footers.files`.
        number: number of the row group in the file.
        rows: number of its rows that pass the filter.
    """

    file: int
    number: int
    rows: int


class Footers:
    """The footers of Parquet files, each read once, all in parallel.

    Args:
        paths: see `find`.
        condition: condition for the rows to read, see the `filter` of `parquet`.

    Attributes:
        files: the files in order.
        schema: the columns of the first file and the columns that folders define.
        filter: the condition as an expression; None without a condition.
        filtered: names of the columns in the condition.
        groups: the row groups with rows that pass the filter; some may have 0 such rows.

    Raises:
        ValueError: if a file is not a Parquet file.
        ConfigError: if the condition cannot be applied.
    """

    def __init__(self, paths: Paths, condition: Any) -> None:
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            fragments = [fragment for files in find(paths) for fragment in _fragments(files)]
            self.files = list(pool.map(_inspect, fragments))
            self.schema = self._joined_schema()
            self.filter, self.filtered = _bind(condition, self.schema)
            self.check_types(self.filtered)
            parquet_fragments = [fragment.parquet for fragment in fragments]
            groups = pool.map(self._row_groups, range(len(fragments)), parquet_fragments)
            self.groups = [group for groups_of_file in groups for group in groups_of_file]

    def _joined_schema(self) -> pa.Schema:
        fields = {field.name: field.type for field in self.files[0].schema}
        for file in self.files:
            for name, value in file.keys.items():
                fields.setdefault(name, value.type)
        return pa.schema(list(fields.items()))

    def _row_groups(self, number: int, fragment: ds.ParquetFileFragment) -> list[RowGroup]:
        if self.filter is None:
            return [RowGroup(number, group.id, group.num_rows) for group in fragment.row_groups]
        groups = []
        for part in fragment.split_by_row_group(self.filter, schema=self.schema):
            rows = part.scanner(filter=self.filter, schema=self.schema).count_rows()
            groups.append(RowGroup(number, part.row_groups[0].id, rows))
        return groups

    def check_types(self, names: Sequence[str]) -> None:
        """Validate that columns have the same type in all files.

        Args:
            names: names of the columns.

        Raises:
            ValueError: if types differ; the message names the file, the column and both types.
        """
        checked = set()
        for file in self.files:
            if (columns := (file.schema, tuple(file.keys))) in checked:
                continue
            checked.add(columns)
            for name in names:
                expected, first = self.schema.field(name).type, self.files[0].url
                if name in file.keys:
                    kind = file.keys[name].type
                elif name in file.schema.names:
                    kind = file.schema.field(name).type
                else:
                    raise ValueError(f"{file.url} has no column {name!r}, which other files have.")
                if kind != expected:
                    raise ValueError(
                        f"{file.url}: column {name!r} is {kind}; in {first} it is {expected}. "
                        "Write the files with one type."
                    )


@dataclass(frozen=True)
class _Fragment:
    """A file as pyarrow represents it.

    Attributes:
        files: the files that the file belongs to.
        parquet: the file in pyarrow's dataset.
        schema: the columns of pyarrow's dataset, including the columns that folders define.
    """

    files: Files
    parquet: ds.ParquetFileFragment
    schema: pa.Schema


def _fragments(files: Files) -> list[_Fragment]:
    options = ds.FileSystemFactoryOptions(
        partition_base_dir=files.folder, partitioning=ds.HivePartitioning.discover()
    )
    factory = ds.FileSystemDatasetFactory(
        files.arrow, list(files.paths), ds.ParquetFileFormat(), options
    )
    try:
        dataset = factory.finish()
    except (pa.ArrowException, OSError) as exc:
        raise ValueError(f"{files.url(files.paths[0])}: {exc}") from exc
    return [_Fragment(files, fragment, dataset.schema) for fragment in dataset.get_fragments()]


def _inspect(fragment: _Fragment) -> File:
    """Read the footer of a file."""
    files, path = fragment.files, fragment.parquet.path
    mark = files.mark(path)
    try:
        fragment.parquet.ensure_complete_metadata()
    except (pa.ArrowException, OSError) as exc:
        raise ValueError(f"{files.url(path)}: {exc}") from exc
    stored = fragment.parquet.physical_schema
    schema = pa.schema([(field.name, _without_nullability(field.type)) for field in stored])
    values = ds.get_partition_keys(fragment.parquet.partition_expression)
    keys = {
        field.name: pa.scalar(values[field.name], field.type)
        for field in fragment.schema
        if field.name in values and field.name not in schema.names
    }
    return File(files, path, mark, schema, keys)


def _without_nullability(kind: pa.DataType) -> pa.DataType:
    """Return a list type whose values may be null, and any other type unchanged.

    Writers differ in this property of lists.
    """
    if types.is_fixed_size_list(kind):
        return pa.list_(_without_nullability(kind.value_type), kind.list_size)
    if types.is_list(kind):
        return pa.list_(_without_nullability(kind.value_type))
    if types.is_large_list(kind):
        return pa.large_list(_without_nullability(kind.value_type))
    return kind


def _bind(condition: Any, schema: pa.Schema) -> tuple[pc.Expression | None, list[str]]:
    """Return a condition as an expression, and the names of the columns in the condition.

    Raises:
        ConfigError: if the condition is invalid, or names a column that does not exist.
    """
    if condition is None:
        return None, []
    empty = schema.empty_table()
    try:
        is_expression = isinstance(condition, pc.Expression)
        expression = condition if is_expression else pq.filters_to_expression(condition)
        empty.filter(expression)
    except (pa.ArrowException, ValueError, TypeError) as exc:
        raise ConfigError(
            f"filter={condition!r}: {exc}\nExpected an expression of pyarrow.compute, or a list "
            f'such as [("year", ">=", 2020)]. Columns are {", ".join(schema.names)}.'
        ) from exc
    return expression, [name for name in schema.names if _needs(empty, expression, name)]


def _needs(empty: pa.Table, expression: pc.Expression, name: str) -> bool:
    """Return True if an expression cannot be evaluated without a column.

    pyarrow has no function that lists the columns of an expression.
    """
    try:
        empty.drop_columns([name]).filter(expression)
    except pa.ArrowInvalid:
        return True
    return False
