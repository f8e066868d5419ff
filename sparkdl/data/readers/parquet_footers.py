"""Runs in the training process.

What Parquet files hold, before a row is read: row groups, columns, types.
"""

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

AT_ONCE = 16  # Mostly waiting for a store.


@dataclass(frozen=True)
class File:
    """A file: where it is, and what it held when its footer was read.

    Attributes:
        files, path: where.
        mark: see `Files.mark`.
        schema: the columns that are stored in it.
        keys: the values of columns that its folders stand for, such as `year=2020`.
    """

    files: Files
    path: str
    mark: str
    schema: pa.Schema
    keys: Mapping[str, pa.Scalar]

    @property
    def url(self) -> str:
        """How a person would write it."""
        return self.files.url(self.path)


@dataclass(frozen=True)
class RowGroup:
    """A row group: its file, its number there, and how many rows of it are wanted."""

    file: int
    number: int
    rows: int


class Footers:
    """What the footers say, each read once and all at the same time.

    Args:
        paths: see `find`.
        condition: which rows are wanted: see `parquet`.

    Attributes:
        files: in order.
        schema: the columns of the first, and those of folders.
        filter, filtered: the condition, and the columns that it looks at.
        groups: the row groups with rows that are wanted. Others may be among them, with none.

    Raises:
        ValueError: a file is no Parquet.
        ConfigError: the condition cannot be applied.
    """

    def __init__(self, paths: Paths, condition: Any) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = [found for files in find(paths) for found in _fragments(files)]
            self.files = list(pool.map(_inspect, *zip(*found, strict=True)))
            self.schema = self._joined_schema()
            self.filter, self.filtered = _bound(condition, self.schema)
            self.check_types(self.filtered)
            fragments = [fragment for _, fragment, _ in found]
            groups = pool.map(self._row_groups, range(len(found)), fragments)
            self.groups = [group for some in groups for group in some]

    def _joined_schema(self) -> pa.Schema:
        fields = {field.name: field.type for field in self.files[0].schema}
        for file in self.files:
            for name, value in file.keys.items():
                fields.setdefault(name, value.type)
        return pa.schema(list(fields.items()))

    def _row_groups(self, number: int, fragment: ds.ParquetFileFragment) -> list[RowGroup]:
        if self.filter is None:
            groups = fragment.row_groups
            return [RowGroup(number, group.id, group.num_rows) for group in groups]
        found = []
        for part in fragment.split_by_row_group(self.filter, schema=self.schema):
            rows = part.scanner(filter=self.filter, schema=self.schema).count_rows()
            found.append(RowGroup(number, part.row_groups[0].id, rows))
        return found

    def check_types(self, names: Sequence[str]) -> None:
        """Refuse files in which these columns are not as in the first.

        Raises:
            ValueError: names file, column and both types.
        """
        seen = set()
        for file in self.files:
            if (kinds := (file.schema, tuple(file.keys))) in seen:
                continue
            seen.add(kinds)
            for name in names:
                kind, first = self.schema.field(name).type, self.files[0].url
                if name in file.keys:
                    found = file.keys[name].type
                elif name in file.schema.names:
                    found = file.schema.field(name).type
                else:
                    raise ValueError(f"{file.url} has no column {name!r}, which other files have.")
                if found != kind:
                    raise ValueError(
                        f"{file.url}: column {name!r} is {found}; in {first} it is {kind}. "
                        "Write the files with one type."
                    )


_Found = tuple[Files, ds.ParquetFileFragment, pa.Schema]


def _fragments(files: Files) -> list[_Found]:
    """The files as pyarrow sees them, and the types of what their folders say."""
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
    return [(files, fragment, dataset.schema) for fragment in dataset.get_fragments()]


def _inspect(files: Files, fragment: ds.ParquetFileFragment, kinds: pa.Schema) -> File:
    mark = files.mark(fragment.path)
    try:
        fragment.ensure_complete_metadata()
    except (pa.ArrowException, OSError) as exc:
        raise ValueError(f"{files.url(fragment.path)}: {exc}") from exc
    schema = pa.schema([(field.name, _plain(field.type)) for field in fragment.physical_schema])
    values = ds.get_partition_keys(fragment.partition_expression)
    keys = {
        field.name: pa.scalar(values[field.name], field.type)
        for field in kinds
        if field.name in values and field.name not in schema.names
    }
    return File(files, fragment.path, mark, schema, keys)


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type without what writers differ in: whether the values of a list could be null."""
    if types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type), kind.list_size)
    if types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if types.is_large_list(kind):
        return pa.large_list(_plain(kind.value_type))
    return kind


def _bound(condition: Any, schema: pa.Schema) -> tuple[pc.Expression | None, list[str]]:
    """A condition as an expression, and the columns that it looks at."""
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
    return expression, [name for name in schema.names if not _applies(empty, expression, name)]


def _applies(empty: pa.Table, expression: pc.Expression, without: str) -> bool:
    """Whether the expression can be evaluated without a column; pyarrow has no list of them."""
    try:
        empty.drop_columns([without]).filter(expression)
    except pa.ArrowInvalid:
        return False
    return True
