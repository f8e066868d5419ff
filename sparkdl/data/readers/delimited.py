"""Runs in the training process. Read CSV files as batches, with pyarrow."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import csv as arrow_csv

from sparkdl.data.agreed_pieces import Call, Pieces, agree
from sparkdl.data.batching import Batches, make_dataset, takes_batches
from sparkdl.data.readers.base import ArrowSource
from sparkdl.data.readers.parquet_pieces import pack_schema, unpack_schema
from sparkdl.data.readers.paths import Files, Paths, check_names, describe, find, find_again
from sparkdl.data.shard import Range
from sparkdl.errors import ConfigError

__all__ = ["DelimitedSource", "csv", "list_files"]

BLOCK_BYTES = 4 << 20

Types: TypeAlias = pa.Schema | Mapping[str, Any]


@takes_batches
def csv(
    path: Paths,
    *,
    schema: Types | None = None,
    delimiter: str = ",",
    header: bool = True,
    column_names: Sequence[str] | None = None,
    fill: Mapping[str, Any] | None = None,
    **batches: Any,
) -> Any:
    """Return this rank's share of CSV files as a `tf.data.Dataset`, with equal steps on every rank.

    The first rank reads all files once to count their rows, for all ranks. In each pass a rank
    reads the files of its share from their start; write at least as many files as there are ranks.
    If counting takes long, write the rows as Parquet once.

    `shuffle=True` reads up to 128 files of all ranks in turn, each in random order. Their rows are
    kept in memory, up to 256 MB, and on Spark's local disk beyond that, until they were read.

    Args:
        path: a file, a folder, a pattern, or a list of these; local paths, or URLs that fsspec
            supports. Files ending in `.gz`, `.bz2`, `.zst` or `.lz4` are decompressed.
        schema: types by column: a `pyarrow.Schema`, or names as in `{"a": "float32"}`. Other types
            are inferred from the first block (4 MB) of the first file with rows; pass the types of
            columns that are empty in this block, or whose later values have another type.
        delimiter: the character between values.
        header: True if the first line of each file names the columns.
        column_names: names of the columns; they replace the names of a header. Without a header
            and `column_names` the names are `f0`, `f1`, and so on.
        fill: values that replace empty values, by column name; without a value an empty number is
            an error.
        **batches: see `Batches`.

    Returns:
        A dataset of features, or of `(features, labels)`, with the types of `sparkdl.data.schema`.

    Raises:
        FileNotFoundError: if there is no file.
        ConfigError: if a column does not exist, or an argument is invalid.
        ValueError: if a line cannot be parsed, or a file has other columns than the first. During
            iteration: if a value does not have its column's type, a number is empty, or a file has
            changed.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("some.csv").write_text("height,width,label\\n1,2,0\\n3,,1\\n")
        >>> dataset = csv("some.csv", batch_size_per_worker=64, label_cols="label",
        ...     feature_cols=["height", "width"], schema={"height": "float32"}, fill={"width": 9})
        >>> for x, y in dataset:
        ...     print(x.numpy().tolist(), y.numpy())
        [[1.0, 2.0], [3.0, 9.0]] [0 1]
    """
    parsed = Batches.parse(batches)
    csv_format = _CsvFormat(schema, delimiter, header, column_names)
    names = {"delimiter": delimiter, "header": header, "column_names": column_names}
    call = Call("data.csv", {"path": path, "schema": schema, **names, **parsed.division})
    pieces = agree(call, lambda: list_files(path, csv_format))
    return make_dataset(DelimitedSource(path, csv_format, fill or {}, pieces), parsed)


class _CsvFormat:
    """The format of the files.

    Args:
        schema, delimiter, header, column_names: see `csv`.

    Attributes:
        types: the known types of columns, by name.
    """

    def __init__(
        self,
        schema: Types | None,
        delimiter: str,
        header: bool,
        column_names: Sequence[str] | None,
    ) -> None:
        if not isinstance(delimiter, str) or len(delimiter) != 1:
            raise ConfigError(f"delimiter is {delimiter!r}; expected one character.")
        self.types = _types(schema)
        if isinstance(column_names, str):
            raise ConfigError(f"column_names is {column_names!r}; expected a list of names.")
        names = list(column_names or ())
        self._parse = arrow_csv.ParseOptions(delimiter=delimiter)
        self._read = {
            "column_names": names,
            "skip_rows": 1 if header and names else 0,
            "autogenerate_column_names": not header and not names,
        }

    def open(self, source: Any, names: Sequence[str] | None = None) -> Any:
        """Open a stream of CSV text.

        Args:
            source: the stream.
            names: names of the columns to read; None for all.
        """
        read = arrow_csv.ReadOptions(block_size=BLOCK_BYTES, **self._read)
        convert = arrow_csv.ConvertOptions(column_types=self.types, include_columns=names)
        return arrow_csv.open_csv(
            source, read_options=read, parse_options=self._parse, convert_options=convert
        )


def _types(schema: Types | None) -> dict[str, pa.DataType]:
    if isinstance(schema, pa.Schema):
        return dict(zip(schema.names, schema.types, strict=True))
    column_types = {}
    for name, kind in (schema or {}).items():
        try:
            column_types[name] = kind if isinstance(kind, pa.DataType) else pa.type_for_alias(kind)
        except (TypeError, ValueError) as exc:
            raise ConfigError(
                f"schema[{name!r}] is {kind!r}; expected a pyarrow type or its name, such as "
                "'int64', 'float32', 'string', 'bool' or 'date32'."
            ) from exc
    return column_types


@dataclass(frozen=True)
class _File:
    """A CSV file.

    Attributes:
        files: the files that the file belongs to.
        number: index of the file in `files.paths`.
    """

    files: Files
    number: int

    @property
    def url(self) -> str:
        return self.files.url(self.files.paths[self.number])

    def inspect(self, csv_format: _CsvFormat) -> tuple[int, pa.Schema]:
        """Return the number of rows of the file and its columns; an empty file has no columns."""
        with self.files.arrow.open_input_stream(self.files.paths[self.number]) as content:
            if not content.read(1):
                return 0, pa.schema([])
        with self.opened(csv_format) as reader:
            schema = reader.schema
        with self.opened(csv_format, schema.names[:1]) as reader:
            return sum(batch.num_rows for batch in reader), schema

    @contextmanager
    def opened(self, csv_format: _CsvFormat, names: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield a reader of batches of some columns; None for all."""
        try:
            with (
                self.files.arrow.open_input_stream(self.files.paths[self.number]) as source,
                closing(csv_format.open(source, names)) as reader,
            ):
                yield reader
        except (pa.ArrowException, OSError) as exc:
            self.files.check(self.number)
            problem = str(exc)
            if "newlines_in_values" in problem:  # With this option, pyarrow may lose line ends.
                problem = "in a file this large no value may hold line ends. Write it as Parquet."
            if "conversion error" in problem:
                problem += ". Types are inferred from the first rows; to set them see schema=."
            raise ValueError(f"{self.url}: {problem}") from exc


def _files_of(matches: Sequence[Files]) -> list[_File]:
    return [_File(files, number) for files in matches for number in range(len(files.paths))]


def list_files(path: Paths, csv_format: _CsvFormat) -> Pieces:
    """Return the files, their numbers of rows and their columns, in JSON form.

    Args:
        path: see `csv`.
        csv_format: the format of the files.

    Raises:
        ValueError: if the files have different columns, or two columns of one name.
    """
    matches = find(path)
    files = _files_of(matches)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        inspected = list(pool.map(lambda file: file.inspect(csv_format), files))
    rows = [num_rows for num_rows, _ in inspected]
    schema = _common_schema(describe(path), files, rows, [schema for _, schema in inspected])
    return {
        "files": [files.to_dict() for files in matches],
        "rows": rows,
        "schema": pack_schema(schema),
    }


def _common_schema(
    name: str, files: Sequence[_File], rows: Sequence[int], schemas: Sequence[pa.Schema]
) -> pa.Schema:
    """Return the columns of the first file with rows, or of the first with a header."""
    nonempty = [piece for piece, schema in enumerate(schemas) if schema.names]
    if not nonempty:
        raise ValueError(f"{name}: no file has columns. Expected at least a header.")
    first = next((piece for piece in nonempty if rows[piece]), nonempty[0])
    names = schemas[first].names
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"{files[first].url} has several columns called {', '.join(map(repr, repeated))}. "
            "Name all columns: column_names=[...]."
        )
    for piece in nonempty:
        if set(schemas[piece].names) != set(schemas[first].names):
            raise ValueError(
                f"{files[piece].url} has columns {', '.join(schemas[piece].names)}; "
                f"{files[first].url} has {', '.join(schemas[first].names)}."
            )
    return schemas[first]


class DelimitedSource(ArrowSource):
    """The rows of CSV files; a piece is a file.

    Args:
        path, fill: see `csv`.
        csv_format: the format of the files.
        pieces: the result of `list_files` on the first rank; by default this process lists them.
    """

    def __init__(
        self,
        path: Paths,
        csv_format: _CsvFormat,
        fill: Mapping[str, Any],
        pieces: Pieces | None = None,
    ) -> None:
        pieces = list_files(path, csv_format) if pieces is None else pieces
        self.name = describe(path)
        self.options = {"fill": fill}
        self._format = csv_format
        self._files = _files_of(find_again(path, pieces["files"]))
        self.sizes = pieces["rows"]
        self.schema = unpack_schema(pieces["schema"])
        check_names({"schema": csv_format.types, "fill": fill}, self.schema)
        # The types of one file apply to all files; otherwise the types would depend on the rows.
        self._format.types.update(zip(self.schema.names, self.schema.types, strict=True))

    def read(self, ranges: Sequence[Range], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Implement `ArrowSource.read`; pyarrow parses a block while the previous one is used."""
        for part in ranges:
            file = self._files[part.piece]
            num_read = 0
            with file.opened(self._format, names) as reader:
                file.files.check(file.number)
                for batch in reader:
                    start = max(part.start - num_read, 0)
                    stop = min(part.stop - num_read, batch.num_rows)
                    if start < stop:
                        yield batch.slice(start, stop - start)
                    num_read += batch.num_rows
                    if num_read >= part.stop:
                        break
                # A remote file has no open descriptor: what is read later may be another file.
                if not file.files.is_local:
                    file.files.check(file.number)
            if num_read < part.stop:
                raise ValueError(
                    f"{file.url} has {num_read} rows, and had more when it was counted."
                )
