"""Runs in the training process. Read the footers of Parquet files: row groups, columns, types.

The first rank does this for all ranks, see `agreed_pieces`.
"""

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq
from pyarrow import types

from sparkdl.data.agreed_pieces import Pieces
from sparkdl.data.readers.folder_columns import folder_values, within_folders
from sparkdl.data.readers.parquet_pieces import (
    File,
    bind,
    check_file,
    filter_rows,
    pack_keys,
    pack_schema,
)
from sparkdl.data.readers.parquet_types import common_schema, comparable_type, is_view
from sparkdl.data.readers.paths import Files, Paths, find
from sparkdl.errors import ConfigError

NUM_THREADS = 16  # More than cores: the threads mostly wait for a store.

# Spark writes timestamps as INT96 by default, which nanoseconds cannot represent after 2262.
TIMESTAMP_UNIT = "us"
FILE_FORMAT = ds.ParquetFileFormat(coerce_int96_timestamp_unit=TIMESTAMP_UNIT)

# Where Spark keeps the types of its columns. Source: `ParquetReadSupport.scala` of Spark 4.
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_INTERVAL = pa.duration("us")

# Rows of the columns of a condition that are decoded at once.
COUNTED_ROWS = 1 << 14


@dataclass(frozen=True)
class Fragment:
    """A file before its footer is read.

    Attributes:
        files: the files that the file belongs to.
        number: index of the file in `files.paths`.
        keys: values of columns that the file's folders define; they replace those in the file.
        absent: values of columns that count if the file does not store them.
        parquet: the file in pyarrow's dataset.
    """

    files: Files
    number: int
    keys: Mapping[str, pa.Scalar]
    absent: Mapping[str, pa.Scalar] = field(default_factory=dict)
    parquet: ds.ParquetFileFragment = None

    @classmethod
    def of(
        cls,
        files: Files,
        number: int,
        keys: Mapping[str, pa.Scalar],
        absent: Mapping[str, pa.Scalar] | None = None,
    ) -> "Fragment":
        """Create from the attributes; the file is not opened."""
        equal = [
            pc.field(name) == value if value.is_valid else pc.field(name).is_null()
            for name, value in keys.items()
        ]
        expression = functools.reduce(and_, equal) if equal else None
        parquet = FILE_FORMAT.make_fragment(files.paths[number], files.arrow, expression)
        return cls(files, number, keys, absent or {}, parquet)

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
        schema = schemas.comparable(self.parquet.physical_schema)
        absent = {name: key for name, key in self.absent.items() if name not in schema.names}
        return File(self.files, self.number, schema, {**absent, **self.keys})


class _Schemas:
    """The columns of all files; files with equal columns share an object, which may be large."""

    def __init__(self) -> None:
        self._entries: list[tuple[pa.Schema, set[str], pa.Schema]] = []

    def comparable(self, stored: pa.Schema) -> pa.Schema:
        """Return the columns as they are compared between files.

        Args:
            stored: the columns of a file.
        """
        intervals = _intervals(stored.metadata or {})
        for other, others_intervals, schema in self._entries:
            if other.equals(stored) and intervals == others_intervals:
                return schema
        schema = pa.schema(
            [
                (field.name, _INTERVAL if field.name in intervals else comparable_type(field.type))
                for field in stored
            ]
        )
        self._entries.append((stored, intervals, schema))
        return schema


def _intervals(metadata: Mapping[bytes, bytes]) -> set[str]:
    """Return the columns that are intervals in Spark, which stores them as plain integers."""
    columns = metadata.get(_SPARK_SCHEMA, b"")
    if b'"interval' not in columns:
        return set()
    fields = json.loads(columns)["fields"]
    return {field["name"] for field in fields if str(field["type"]).startswith("interval")}


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
    return row_groups_of(list(_fragments(found)), condition)


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
    remaining = list(fragments)
    if condition is not None:
        remaining = _not_excluded(fragments, condition, schemas)
    first = (remaining or fragments)[0].inspect(schemas)
    schema = _joined_schema(first, remaining or fragments)
    schema = _known_types(schema, remaining, schemas)
    expression, filtered = bind(condition, schema)
    uses_statistics = expression is not None and _statistics_decide(expression, schema, filtered)

    def list_file(number: int) -> tuple[File, list[tuple[int, int, int]]]:
        file = remaining[number].inspect(schemas)
        check_file(file, schema, first.url, filtered)
        groups = _row_groups(remaining[number], file, expression, schema, filtered, uses_statistics)
        # pyarrow's object keeps the footer, which may be large, in memory.
        remaining[number] = dataclasses.replace(remaining[number], parquet=None)
        return file, [(number, *group) for group in groups]

    fragments.clear()
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        listed = list(pool.map(list_file, range(len(remaining))))
    groups = [group for _, of_file in listed for group in of_file]
    return {
        **_pack_files([file for file, _ in listed]),
        "schema": pack_schema(_types_of_all(schema, [file for file, _ in listed])),
        "groups": [list(column) for column in zip(*groups, strict=True)] or [[], [], []],
    }


def _fragments(matches: Sequence[Files]) -> Iterator[Fragment]:
    """Yield all files, with the columns that their folders define; no file is opened."""
    keys = iter(folder_values(within_folders(matches), {}))
    for files in matches:
        for number in range(len(files.paths)):
            yield Fragment.of(files, number, next(keys))


def _not_excluded(
    fragments: Sequence[Fragment], condition: Any, schemas: _Schemas
) -> list[Fragment]:
    """Return the files that the names of their folders do not exclude.

    A column of the condition may exist in later files only, so the last file is tried as well.
    """
    if not any(fragment.keys or fragment.absent for fragment in fragments):
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
    remaining = []
    for fragment in fragments:
        # A dataset of one file: pyarrow compares the condition with the names of its folders.
        parquet = fragment.parquet
        dataset = ds.FileSystemDataset([parquet], schema, parquet.format, fragment.files.arrow)
        if any(True for _ in dataset.get_fragments(filter=expression)):
            remaining.append(fragment)
    return remaining


def _joined_schema(file: File, fragments: Sequence[Fragment]) -> pa.Schema:
    fields = {field.name: field.type for field in file.schema}
    for fragment in fragments:
        for name, value in fragment.keys.items():
            fields[name] = value.type
        for name, value in fragment.absent.items():
            fields.setdefault(name, value.type)
    return pa.schema(list(fields.items()))


def _known_types(schema: pa.Schema, fragments: Sequence[Fragment], schemas: _Schemas) -> pa.Schema:
    """Return columns with their types; one that is null in a whole file has none there."""
    fields = {field.name: field for field in schema}
    for fragment in fragments:
        unknown = [name for name, field in fields.items() if _is_unknown(field.type)]
        if not unknown:
            break
        stored = fragment.inspect(schemas).schema
        fields |= {name: stored.field(name) for name in unknown if name in stored.names}
    return pa.schema(fields.values())


def _types_of_all(schema: pa.Schema, files: Sequence[File]) -> pa.Schema:
    """Return columns with the types that all files have in common."""
    different = {(id(file.schema), tuple(file.keys)): file for file in files}
    for file in different.values():
        schema = common_schema(schema, file.schema, but=file.keys)
    return schema


def _is_unknown(kind: pa.DataType) -> bool:
    while not types.is_null(kind):
        if not (types.is_list(kind) or types.is_large_list(kind)):
            return False
        kind = kind.value_type
    return True


def _row_groups(
    fragment: Fragment,
    file: File,
    expression: pc.Expression | None,
    schema: pa.Schema,
    filtered: Sequence[str],
    uses_statistics: bool,
) -> list[tuple[int, int]]:
    """Return the number of each row group, and of its rows that pass the filter.

    The rows are counted as they are read later, by their values: statistics and values may differ.
    """
    if expression is None:
        return [(group.id, group.num_rows) for group in fragment.parquet.row_groups]
    numbers = [group.id for group in fragment.parquet.row_groups]
    stored_names = [name for name in filtered if name not in file.keys]
    columns = pa.schema([schema.field(name) for name in filtered])
    # Statistics have the types of their file: pyarrow does not compare those of views with text.
    has_views = any(map(is_view, fragment.parquet.physical_schema.types))
    is_alike = all(file.schema.field(name).type == schema.field(name).type for name in stored_names)
    if uses_statistics and is_alike and not has_views:
        try:
            parts = fragment.parquet.split_by_row_group(expression, schema=schema)
        except pa.ArrowException as exc:
            raise _not_compared(file, columns, exc) from exc
        numbers = [group.id for part in parts for group in part.row_groups]
    if not numbers:
        return []
    footer, path = fragment.parquet.metadata, file.path
    columns = common_schema(columns, file.schema, but=file.keys)
    try:
        with file.files.arrow.open_input_file(path) as source:
            parquet = pq.ParquetFile(
                source,
                metadata=footer,
                pre_buffer=not file.files.is_local,
                coerce_int96_timestamp_unit=TIMESTAMP_UNIT,
            )
            counts = []
            for number in numbers:
                batches = parquet.iter_batches(COUNTED_ROWS, [number], stored_names)
                rows = (filter_rows(batch, columns, file.keys, expression) for batch in batches)
                counts.append((number, sum(batch.num_rows for batch in rows)))
            return counts
    except (pa.ArrowException, OSError) as exc:
        raise _not_compared(file, columns, exc) from exc


def _not_compared(file: File, columns: pa.Schema, exc: Exception) -> ValueError:
    large = [field.name for field in columns if types.is_uint64(field.type)]
    advice = (
        f" Column {large[0]!r} is uint64: in an expression, compare it with "
        "pyarrow.scalar(value, pyarrow.uint64())."
        if large and isinstance(exc, pa.ArrowInvalid)
        else ""
    )
    return ValueError(f"{file.url}: {exc}{advice}")


def _statistics_decide(
    expression: pc.Expression, schema: pa.Schema, filtered: Sequence[str]
) -> bool:
    """Return True if no row passes a condition in a row group that its statistics exclude.

    The statistics of floats leave out NaN, which passes conditions such as `x != 1.5`.
    """
    if any(types.is_nested(schema.field(name).type) for name in filtered):
        return False
    floats = [name for name in filtered if types.is_floating(schema.field(name).type)]
    local = pyarrow.fs.LocalFileSystem()
    for name in floats:
        nan = pa.scalar(float("nan"), schema.field(name).type)
        # Nothing is opened: pyarrow compares the condition with what is known of all rows.
        all_nan = FILE_FORMAT.make_fragment("", local, pc.field(name) == nan)
        dataset = ds.FileSystemDataset([all_nan], schema, FILE_FORMAT, local)
        if any(True for _ in dataset.get_fragments(filter=expression)):
            return False
    return True


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
