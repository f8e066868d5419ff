"""Runs in the training process. Read the footers of Parquet files: row groups, columns, types.

The first rank does this for all ranks, see `agreed_pieces`.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import types

from sparkdl.data.agreed_pieces import Pieces
from sparkdl.data.readers.parquet_pieces import File, bind, check_file, pack_keys, pack_schema
from sparkdl.data.readers.paths import Files, Paths, find
from sparkdl.errors import ConfigError

__all__ = [
    "FILE_FORMAT",
    "TIMESTAMP_UNIT",
    "Fragment",
    "comparable_type",
    "list_row_groups",
    "row_groups_of",
]

NUM_THREADS = 16  # More than cores: the threads mostly wait for a store.

# Spark writes timestamps as INT96 by default, which nanoseconds cannot represent after 2262.
TIMESTAMP_UNIT = "us"
FILE_FORMAT = ds.ParquetFileFormat(coerce_int96_timestamp_unit=TIMESTAMP_UNIT)


@dataclass(frozen=True)
class Fragment:
    """A file as pyarrow represents it.

    Attributes:
        files: the files that the file belongs to.
        number: index of the file in `files.paths`.
        parquet: the file in pyarrow's dataset.
        keys: values of columns that the file need not store, such as those of its folders; a
            column that it stores has the values of the file.
    """

    files: Files
    number: int
    parquet: ds.ParquetFileFragment
    keys: dict[str, pa.Scalar]

    @property
    def url(self) -> str:
        return self.files.url(self.files.paths[self.number])

    def inspect(self, schemas: "_Schemas") -> File:
        """Read the footer.

        Args:
            schemas: the columns of other files.
        """
        try:
            self.parquet.ensure_complete_metadata()
        except (pa.ArrowException, OSError) as exc:
            raise ValueError(f"{self.url}: {exc}") from exc
        schema = schemas.shared(self.parquet.physical_schema)
        keys = {name: key for name, key in self.keys.items() if name not in schema.names}
        return File(self.files, self.number, schema, keys)


class _Schemas:
    """The columns of all files; files with equal columns share an object, which may be large."""

    def __init__(self) -> None:
        self._known: list[tuple[pa.Schema, pa.Schema]] = []

    def shared(self, stored: pa.Schema) -> pa.Schema:
        """Return the columns as they are compared between files.

        Args:
            stored: the columns of a file.
        """
        for other, schema in self._known:
            if other.equals(stored):
                return schema
        schema = pa.schema([(field.name, comparable_type(field.type)) for field in stored])
        self._known.append((stored, schema))
        return schema


def list_row_groups(paths: Paths, condition: Any) -> Pieces:
    """Return the row groups of Parquet files, in the form that `ParquetPieces` reads.

    Args:
        paths: see `find`.
        condition: condition for the rows to read, see the `filter` of `parquet`.

    Raises:
        FileNotFoundError, ConfigError: see `find`.
        ValueError, ConfigError: see `row_groups_of`.
    """
    found = find(paths, refuses_tables=True)
    return row_groups_of([f for files in found for f in _fragments(files)], condition)


def row_groups_of(fragments: list[Fragment], condition: Any) -> Pieces:
    """Return the row groups of files, in the form that `ParquetPieces` reads.

    Files that the condition excludes by the names of their folders are not opened. All other
    footers are read once, in parallel.

    Args:
        fragments: at least one file; the list is emptied.
        condition: condition for the rows to read, see the `filter` of `parquet`.

    Raises:
        ValueError: if a file is not a Parquet file.
        ConfigError: if the condition cannot be applied.
    """
    schemas = _Schemas()
    kept = list(fragments)
    if condition is not None:
        kept = _not_excluded(fragments, condition, schemas)
    first = (kept or fragments)[0].inspect(schemas)
    schema = _joined_schema(first, kept or fragments)
    expression, filtered = bind(condition, schema)

    def list_file(number: int) -> tuple[File, list[tuple[int, int, int]]]:
        file = kept[number].inspect(schemas)
        check_file(file, schema, first.url, filtered)
        groups = _row_groups(kept[number].parquet, expression, schema)
        # pyarrow's object keeps the footer, which may be large, in memory.
        kept[number] = dataclasses.replace(kept[number], parquet=None)
        return file, [(number, *group) for group in groups]

    fragments.clear()
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        listed = list(pool.map(list_file, range(len(kept))))
    groups = [group for _, of_file in listed for group in of_file]
    return {
        **_pack_files([file for file, _ in listed]),
        "schema": pack_schema(schema),
        "groups": [list(column) for column in zip(*groups, strict=True)] or [[], [], []],
    }


def _fragments(files: Files) -> Iterator[Fragment]:
    """Yield the files of one folder; at most the footer of the first one is read."""
    if not any("=" in path[len(files.folder) :] for path in files.paths):
        for number, path in enumerate(files.paths):
            yield Fragment(files, number, FILE_FORMAT.make_fragment(path, files.arrow), {})
        return
    options = ds.FileSystemFactoryOptions(
        partition_base_dir=files.folder, partitioning=ds.HivePartitioning.discover()
    )
    factory = ds.FileSystemDatasetFactory(files.arrow, list(files.paths), FILE_FORMAT, options)
    try:
        dataset = factory.finish()
    except (pa.ArrowException, OSError) as exc:
        raise ValueError(f"{files.url(files.paths[0])}: {exc}") from exc
    numbers = {path: number for number, path in enumerate(files.paths)}
    for fragment in sorted(dataset.get_fragments(), key=lambda each: numbers[each.path]):
        values = ds.get_partition_keys(fragment.partition_expression)
        keys = {
            field.name: pa.scalar(values[field.name], field.type)
            for field in dataset.schema
            if field.name in values
        }
        yield Fragment(files, numbers[fragment.path], fragment, keys)


def _not_excluded(
    fragments: Sequence[Fragment], condition: Any, schemas: _Schemas
) -> list[Fragment]:
    """Return the files that the names of their folders do not exclude.

    A column of the condition may exist in later files only, so the last file is tried as well.
    """
    if not any(fragment.keys for fragment in fragments):
        return list(fragments)
    try:
        schema = _joined_schema(fragments[0].inspect(schemas), fragments)
        expression, _ = bind(condition, schema)
    except ConfigError as exc:
        try:
            schema = _joined_schema(fragments[-1].inspect(schemas), fragments)
            expression, _ = bind(condition, schema)
        except ConfigError:
            raise exc from None
    kept = []
    for fragment in fragments:
        # A dataset of one file: pyarrow compares the condition with the names of its folders.
        parquet = fragment.parquet
        dataset = ds.FileSystemDataset([parquet], schema, parquet.format, fragment.files.arrow)
        if any(True for _ in dataset.get_fragments(filter=expression)):
            kept.append(fragment)
    return kept


def _joined_schema(file: File, fragments: Sequence[Fragment]) -> pa.Schema:
    fields = {field.name: field.type for field in file.schema}
    for fragment in fragments:
        for name, value in fragment.keys.items():
            fields.setdefault(name, value.type)
    return pa.schema(list(fields.items()))


def _row_groups(
    fragment: ds.ParquetFileFragment, expression: pc.Expression | None, schema: pa.Schema
) -> list[tuple[int, int]]:
    """Return the number of each row group, and of its rows that pass the filter."""
    if expression is None:
        return [(group.id, group.num_rows) for group in fragment.row_groups]
    groups = []
    for part in fragment.split_by_row_group(expression, schema=schema):
        (group,) = part.row_groups
        rows = part.scanner(filter=expression, schema=schema).count_rows()
        # If the folder's name decides that all rows pass, pyarrow counts those of the whole file.
        groups.append((group.id, min(rows, group.num_rows)))
    return groups


def _pack_files(files: Sequence[File]) -> Pieces:
    """Return the files in JSON form; equal schemas and keys are written once."""
    schemas: dict[int, tuple[int, pa.Schema]] = {}
    keys: dict[str, int] = {}
    packed_keys: list[str] = []
    schema_of_file, keys_of_file = [], []
    for file in files:
        number, _ = schemas.setdefault(id(file.schema), (len(schemas), file.schema))
        schema_of_file.append(number)
        named = pack_keys(file.keys)
        number = keys.setdefault(named, len(keys))
        packed_keys += [named] if number == len(packed_keys) else []
        keys_of_file.append(number)
    numbers: dict[int, tuple[Files, list[int]]] = {}
    for file in files:
        numbers.setdefault(id(file.files), (file.files, []))[1].append(file.number)
    return {
        "files": [whole.subset(some).to_dict() for whole, some in numbers.values()],
        "schemas": [pack_schema(schema) for _, schema in schemas.values()],
        "schema_of_file": schema_of_file,
        "keys": packed_keys,
        "keys_of_file": keys_of_file,
    }


def comparable_type(kind: pa.DataType) -> pa.DataType:
    """Return a list type whose values may be null, and any other type unchanged.

    Writers differ in this property of lists.
    """
    if types.is_fixed_size_list(kind):
        return pa.list_(comparable_type(kind.value_type), kind.list_size)
    if types.is_list(kind):
        return pa.list_(comparable_type(kind.value_type))
    if types.is_large_list(kind):
        return pa.large_list(comparable_type(kind.value_type))
    return kind
