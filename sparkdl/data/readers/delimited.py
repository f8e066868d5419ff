"""Runs in the training process. Read CSV files as batches, with pyarrow."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyarrow import types

from sparkdl.data.agreed_pieces import Call, Pieces, agree
from sparkdl.data.batching import Batches, make_dataset, takes_batches
from sparkdl.data.readers.base import ArrowSource
from sparkdl.data.readers.csv_format import CsvFormat, Types, parse_types
from sparkdl.data.readers.csv_numbers import are_whole, has_rounded, may_be_rounded
from sparkdl.data.readers.csv_text import AmbiguousText, HasEscapes
from sparkdl.data.readers.folder_columns import folder_values, with_folder_columns, within_folders
from sparkdl.data.readers.parquet_pieces import pack_schema, unpack_schema
from sparkdl.data.readers.paths import Files, Paths, check_names, describe, find, find_again
from sparkdl.data.shard import Range

_COLUMN = re.compile(r"In CSV column #(\d+)")
_MISSING = re.compile(r"Column (.*) in include_columns does not exist", re.DOTALL)


@takes_batches
def csv(
    path: Paths,
    *,
    schema: Types | None = None,
    sep: str = ",",
    delimiter: str | None = None,
    header: bool = True,
    column_names: Sequence[str] | None = None,
    encoding: str = "utf-8",
    quote: str = '"',
    escape: str | None = None,
    comment: str | None = None,
    nullValue: str | Sequence[str] = "",
    fill: Mapping[str, Any] | None = None,
    **batches: Any,
) -> Any:
    """Return this rank's share of CSV files as a `tf.data.Dataset`, with equal steps on every rank.

    The first rank reads all files once to count their rows, for all ranks. In each pass a rank
    reads the files of its share from their start; write at least as many files as there are ranks.
    If counting takes long, write the rows as Parquet once.

    `shuffle=True` reads up to 128 files of all ranks in turn, each in random order. Their rows are
    kept in memory, up to 256 MB, and on Spark's local disk beyond that, until they were read.

    Options have the names that they have in Spark. An empty value is a null, in quotes or not, as
    Spark and pandas read it. NaN is a number.

    Args:
        path: a file, a folder, a pattern, or a list of these; local paths, or URLs that fsspec
            supports. Files ending in `.gz`, `.bz2`, `.zst` or `.lz4` are decompressed.
        schema: types by column: a `pyarrow.Schema`, or names as in `{"a": "float32"}`. Other types
            are inferred from the first block (4 MB) of the first file with rows; pass the types of
            columns that are empty in this block, or whose later values have another type. Whole
            numbers that int64 does not hold are refused: read them as `string` or `uint64`.
        sep: the character between values.
        delimiter: another name of `sep`, as in Spark.
        header: True if the first line of each file names the columns.
        column_names: names of the columns; they replace the names of a header. Without a header
            and `column_names` the names are `f0`, `f1`, and so on.
        encoding: the encoding of the text, such as `latin-1`.
        quote: the character around values that hold `sep`, quotes or line ends; empty for none.
        escape: the character before a quote within quoted text: a backslash in files of Spark, and
            `'"'` in those of pandas and most other programs, which double the quote. By default
            both are read, and text in which they differ is refused: a backslash before a quote or a
            backslash.
        comment: the first character of lines that are no rows; by default there are none.
        nullValue: a text that is a null, as an empty one always is, or a list of them:
            `["NA", "null"]`.
        fill: values that replace nulls, by column name; without a value a null is an error.
        **batches: see `Batches`.

    Returns:
        A dataset of features, or of `(features, labels)`, with the types of `sparkdl.data.schema`.

    Raises:
        FileNotFoundError: if there is no file.
        ConfigError: if a column does not exist, or an argument is invalid.
        ValueError: if a line cannot be parsed, text has another encoding, whole numbers are too
            large, or a file has other columns than the first. During iteration: if a value does not
            have its column's type, a value is null, or a file has changed.

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
    csv_format = CsvFormat(
        types=parse_types(schema),
        header=header,
        column_names=column_names or (),
        sep=sep if delimiter is None else delimiter,
        encoding=encoding,
        quote=quote,
        escape=escape,
        comment=comment,
        null_value=nullValue,
    )
    call = Call("data.csv", {"path": path, **vars(csv_format), **parsed.division})
    pieces = agree(call, lambda: list_files(path, csv_format))
    return make_dataset(DelimitedSource(path, csv_format, fill or {}, pieces), parsed)


@dataclass(frozen=True)
class _File:
    """A CSV file.

    Attributes:
        files: the files that the file belongs to.
        number: index of the file in `files.paths`.
        keys: values of columns that the file's folders define; they replace those in the file.
        has_escapes: see `CsvFormat.open`.
    """

    files: Files
    number: int
    keys: Mapping[str, pa.Scalar]
    has_escapes: bool | None = None

    @property
    def url(self) -> str:
        return self.files.url(self.files.paths[self.number])

    def inspect(self, csv_format: CsvFormat) -> "_Inspected":
        """Return rows and columns of the file; an empty file has no columns."""
        with self.files.arrow.open_input_stream(self.files.paths[self.number]) as content:
            if not content.read(1):
                return _Inspected(0, pa.schema([]), False, {})
        try:
            return self._inspect(csv_format)
        except HasEscapes:
            return replace(self, has_escapes=True)._inspect(csv_format)

    def _inspect(self, csv_format: CsvFormat) -> "_Inspected":
        with self.open(csv_format) as reader:
            schema = reader.schema.remove_metadata()
            names = schema.names  # Decodes them.
        refusals = self._refusals(csv_format, schema)
        first = replace(csv_format.of(schema), types=csv_format.types)
        with self.open(first, names[:1]) as reader:
            rows = sum(batch.num_rows for batch in reader)
        return _Inspected(rows, schema, bool(self.has_escapes), refusals)

    def _refusals(self, csv_format: CsvFormat, schema: pa.Schema) -> dict[str, str]:
        """Return why columns are refused whose type does not hold the values, by column."""
        inferred = [field for field in schema if field.name not in csv_format.types]
        refusals = {
            field.name: f"{self.url}: column {field.name!r} has text that is not UTF-8. Pass its "
            "encoding, such as encoding='latin-1'."
            for field in inferred
            if types.is_binary(field.type)
        }
        floats = [field.name for field in inferred if types.is_floating(field.type)]
        if not floats or len(set(schema.names)) < len(schema):
            return refusals
        with self._texts(csv_format, floats) as batches:
            texts = next(batches, None)
        if texts is None:
            return refusals
        for name in floats:
            values = texts.column(name).drop_null()
            if are_whole(values) or has_rounded(values):
                refusals[name] = self._rounded_message(name)
        return refusals

    @contextmanager
    def _texts(self, csv_format: CsvFormat, names: Sequence[str]) -> Iterator[Any]:
        """Yield batches of some columns as text."""
        as_text = {**csv_format.types, **dict.fromkeys(names, pa.string())}
        with self.open(replace(csv_format, types=as_text), names) as reader:
            yield iter(reader)

    def check_not_rounded(self, csv_format: CsvFormat, name: str) -> None:
        """Validate that float64 has all whole numbers of a column.

        Raises:
            ValueError: if it has not.
        """
        with self._texts(csv_format, [name]) as batches:
            is_rounded = any(has_rounded(batch.column(name).drop_null()) for batch in batches)
        if is_rounded:
            raise ValueError(self._rounded_message(name))

    def _rounded_message(self, name: str) -> str:
        return (
            f"{self.url}: column {name!r} has whole numbers that float64 rounds. Pass a type: "
            f"schema={{{name!r}: 'string'}}, 'int64', 'uint64' or, to accept it, 'float64'."
        )

    @contextmanager
    def open(self, csv_format: CsvFormat, names: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield a reader of batches of some columns; None for all."""
        try:
            with (
                self.files.arrow.open_input_stream(self.files.paths[self.number]) as source,
                closing(csv_format.open(source, names, self.has_escapes)) as reader,
            ):
                yield reader
        except (pa.ArrowException, OSError, UnicodeDecodeError, AmbiguousText) as exc:
            self.files.check(self.number)
            raise ValueError(f"{self.url}: {self._explained(exc, csv_format)}") from exc

    def _explained(self, exc: Exception, csv_format: CsvFormat) -> str:
        problem = str(exc)
        if missing := _MISSING.match(problem):
            return f"the file has no column {missing[1]}, which other files or their folders have."
        if "newlines_in_values" in problem:  # With this option, pyarrow may lose line ends.
            return "in a file this large no value may hold line ends. Write it as Parquet."
        if isinstance(exc, UnicodeDecodeError) or "invalid UTF8" in problem:
            problem += f". The text is not {csv_format.encoding}; for others see encoding="
        elif "conversion error" in problem:
            problem += (
                ". Types are inferred from the first rows; to set them see schema=. If the text "
                "means that there is no value, pass nullValue="
            )
        else:
            return problem
        if match := _COLUMN.search(problem):
            with self.files.arrow.open_input_stream(self.files.paths[self.number]) as source:
                every = replace(csv_format, types={})
                with closing(every.open(source, None, self.has_escapes)) as reader:
                    name = reader.schema.names[int(match[1])]
            problem = problem.replace(match[0], f"In column {name!r}")
        return f"{problem}."


@dataclass(frozen=True)
class _Inspected:
    """The rows and columns of a file.

    Attributes:
        rows: number of its rows.
        schema: its columns.
        has_escapes: True if its text must be rewritten.
        refused: why columns cannot be read, by name.
    """

    rows: int
    schema: pa.Schema
    has_escapes: bool
    refused: Mapping[str, str]


def _files_of(matches: Sequence[Files], csv_format: CsvFormat) -> list[_File]:
    places = [(files, number) for files in matches for number in range(len(files.paths))]
    keys = folder_values(within_folders(matches), csv_format.types)
    return [_File(*place, each) for place, each in zip(places, keys, strict=True)]


def list_files(path: Paths, csv_format: CsvFormat) -> Pieces:
    """Return the files, their numbers of rows and their columns, in JSON form.

    Args:
        path: see `csv`.
        csv_format: the format of the files.

    Raises:
        ValueError: if the files have different columns, or two columns of one name.
    """
    matches = find(path)
    files = _files_of(matches, csv_format)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        inspected = list(pool.map(lambda file: file.inspect(csv_format), files))
    rows = [each.rows for each in inspected]
    schema = _common_schema(describe(path), files, rows, [each.schema for each in inspected])
    return {
        "files": [files.to_dict() for files in matches],
        "rows": rows,
        "has_escapes": [each.has_escapes for each in inspected],
        "refused": {name: text for each in inspected for name, text in each.refused.items()},
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
    # Folders may define a column that other files store.
    of_folders = {key for file in files for key in file.keys}
    for piece in nonempty:
        if set(schemas[piece].names) - of_folders != set(names) - of_folders:
            raise ValueError(
                f"{files[piece].url} has columns {', '.join(schemas[piece].names)}; "
                f"{files[first].url} has {', '.join(names)}."
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
        csv_format: CsvFormat,
        fill: Mapping[str, Any],
        pieces: Pieces | None = None,
    ) -> None:
        pieces = list_files(path, csv_format) if pieces is None else pieces
        self.name = describe(path)
        self.options = {"fill": fill}
        inspected = _files_of(find_again(path, pieces["files"]), csv_format)
        self._files = [
            replace(file, has_escapes=has_escapes)
            for file, has_escapes in zip(inspected, pieces["has_escapes"], strict=True)
        ]
        self._refusals: Mapping[str, str] = pieces["refused"]
        self._given_types = csv_format.types
        self._not_rounded: set[tuple[int, str]] = set()
        self.sizes = pieces["rows"]
        self._stored_schema = unpack_schema(pieces["schema"])
        keys = {name: value.type for file in self._files for name, value in file.keys.items()}
        stored_types = dict(zip(self._stored_schema.names, self._stored_schema.types, strict=True))
        self.schema = pa.schema(list({**stored_types, **keys}.items()))
        check_names({"schema": csv_format.types, "fill": fill}, self.schema)
        # The types of one file apply to all files; otherwise the types would depend on the rows.
        kinds = dict(zip(self.schema.names, self.schema.types, strict=True))
        self._format = replace(csv_format.of(self._stored_schema), types=kinds)

    def read(self, ranges: Sequence[Range], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Implement `ArrowSource.read`; pyarrow parses a block while the previous one is used."""
        if refused := [self._refusals[name] for name in names if name in self._refusals]:
            raise ValueError("\n".join(refused))
        for part in ranges:
            file = self._files[part.piece]
            num_read = 0
            stored = [name for name in names if name not in file.keys]
            with file.open(self._format, stored or self._stored_schema.names[:1]) as reader:
                file.files.check(file.number)
                for batch in reader:
                    self._check_large(batch, part.piece)
                    start = max(part.start - num_read, 0)
                    stop = min(part.stop - num_read, batch.num_rows)
                    if start < stop:
                        rows = batch.slice(start, stop - start)
                        yield with_folder_columns(rows, len(rows), names, file.keys)
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

    def _check_large(self, batch: pa.RecordBatch, piece: int) -> None:
        """Look at the text of columns of float64 that may have been whole numbers, once."""
        for field in batch.schema:
            key = (piece, field.name)
            if not types.is_float64(field.type) or field.name in self._given_types:
                continue
            if key not in self._not_rounded and may_be_rounded(batch.column(field.name)):
                self._files[piece].check_not_rounded(self._format, field.name)
                self._not_rounded.add(key)
