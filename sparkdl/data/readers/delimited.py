"""Runs in the training process. CSV files as batches, read by pyarrow."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import csv as arrow_csv

from sparkdl.data.batching import Batches, make_dataset, takes_batches
from sparkdl.data.readers.base import ArrowSource
from sparkdl.data.readers.paths import Paths, check_names, find, shown
from sparkdl.data.shard import Range
from sparkdl.errors import ConfigError

__all__ = ["DelimitedSource", "csv"]

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
    """This rank's share of CSV files as a `tf.data.Dataset`, with equal steps on every rank.

    Every rank goes through all files once beforehand, to count rows, and reads each file that it
    shares from the start. Where that takes long, write the rows as Parquet once.

    Args:
        path: a file, a folder, a pattern or a list of such; local, or URLs that fsspec understands.
            Files ending in `.gz`, `.bz2`, `.zst` or `.lz4` are decompressed.
        schema: types by column: a `pyarrow.Schema`, or names as in `{"a": "float32"}`. Other types
            are inferred from the first block (4 MB) of the first file with rows; say those of
            columns that are empty there, or whose later values differ.
        delimiter: what is between values.
        header: whether the first line of each file names the columns.
        column_names: the names; with a header, instead of its own. Without either they are `f0`,
            `f1`, and so on.
        fill: what stands for an empty value, by column; without it one of a number is an error.
        **batches: see `Batches`.

    Returns:
        Features, or `(features, labels)`, with the types of `sparkdl.data.schema`.

    Raises:
        FileNotFoundError: there is no file.
        ConfigError: a column is not there, or an argument is wrong.
        ValueError: a line does not parse, or a file has other columns than the first. While it is
            read: a value that is none of its column's type, an empty one, or a changed file.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("some.csv").write_text("height,width,label\\n1,2,0\\n3,,1\\n")
        >>> dataset = csv("some.csv", batch_size_per_worker=64, label_cols="label",
        ...     feature_cols=["height", "width"], schema={"height": "float32"}, fill={"width": 9})
        sparkdl: some.csv: 2 rows; batches of 64...
        >>> for x, y in dataset:
        ...     print(x.numpy().tolist(), y.numpy())
        [[1.0, 2.0], [3.0, 9.0]] [0 1]
    """
    parsed = Batches.parse(batches)
    form = _Form(schema, delimiter, header, column_names)
    return make_dataset(DelimitedSource(path, form, fill or {}), parsed)


class _Form:
    """How the files are written."""

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
        self._read = arrow_csv.ReadOptions(
            block_size=BLOCK_BYTES,
            column_names=names,
            skip_rows=1 if header and names else 0,
            autogenerate_column_names=not header and not names,
        )

    def open(self, source: Any, names: Sequence[str] | None = None) -> Any:
        """Start to read a stream: these columns of it, or all."""
        convert = arrow_csv.ConvertOptions(column_types=self.types, include_columns=names)
        return arrow_csv.open_csv(
            source, read_options=self._read, parse_options=self._parse, convert_options=convert
        )


def _types(schema: Types | None) -> dict[str, pa.DataType]:
    if isinstance(schema, pa.Schema):
        return dict(zip(schema.names, schema.types, strict=True))
    found = {}
    for name, kind in (schema or {}).items():
        try:
            found[name] = kind if isinstance(kind, pa.DataType) else pa.type_for_alias(kind)
        except (TypeError, ValueError) as exc:
            raise ConfigError(
                f"schema[{name!r}] is {kind!r}; expected a type of pyarrow or its name, such as "
                "'int64', 'float32', 'string', 'bool' or 'date32'."
            ) from exc
    return found


class DelimitedSource(ArrowSource):
    """The rows of some CSV files; a piece is a file.

    Args:
        path, fill: see `csv`.
        form: how the files are written.
    """

    def __init__(self, path: Paths, form: _Form, fill: Mapping[str, Any]) -> None:
        self.name, self.options = shown(path), {"fill": fill}
        self._form = form
        self._files = [(files, at) for files in find(path) for at in files.paths]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            self._marks = [files.mark(at) for files, at in self._files]
            counted = list(pool.map(self._count, range(len(self._files))))
        self.sizes = [rows for rows, _ in counted]
        self.schema = self._agreed([schema for _, schema in counted])
        check_names({"schema": form.types, "fill": fill}, self.schema)
        # What one file showed holds for all, or else their types would depend on their rows.
        self._form.types.update(zip(self.schema.names, self.schema.types, strict=True))

    def _url(self, piece: int) -> str:
        files, path = self._files[piece]
        return files.url(path)

    def _count(self, piece: int) -> tuple[int, pa.Schema]:
        """The rows of a file, and its columns: none of an empty file."""
        files, path = self._files[piece]
        with files.arrow.open_input_stream(path) as content:
            if not content.read(1):
                return 0, pa.schema([])
        with self._opened(piece) as reader:
            schema = reader.schema
        with self._opened(piece, schema.names[:1]) as reader:
            return sum(batch.num_rows for batch in reader), schema

    def _agreed(self, schemas: Sequence[pa.Schema]) -> pa.Schema:
        """The columns of the first file with rows, or else with a header."""
        full = [piece for piece, schema in enumerate(schemas) if schema.names]
        if not full:
            raise ValueError(f"{self.name}: no file has columns. Expected a header at least.")
        first = next((piece for piece in full if self.sizes[piece]), full[0])
        names = schemas[first].names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"{self._url(first)} has several columns called {', '.join(map(repr, twice))}. "
                "Name all of them: column_names=[...]."
            )
        for piece in full:
            if set(schemas[piece].names) != set(schemas[first].names):
                raise ValueError(
                    f"{self._url(piece)} has columns {', '.join(schemas[piece].names)}; "
                    f"{self._url(first)} has {', '.join(schemas[first].names)}."
                )
        return schemas[first]

    def read(self, ranges: Sequence[Range], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `ArrowSource.read`. pyarrow parses a block while the one before it is in use."""
        for wanted in ranges:
            files, path = self._files[wanted.piece]
            if files.mark(path) != self._marks[wanted.piece]:
                raise ValueError(
                    f"{files.url(path)} has changed since it was counted. Start again."
                )
            seen = 0
            with self._opened(wanted.piece, names) as reader:
                for batch in reader:
                    start = max(wanted.start - seen, 0)
                    stop = min(wanted.stop - seen, batch.num_rows)
                    if start < stop:
                        yield batch.slice(start, stop - start)
                    seen += batch.num_rows
                    if seen >= wanted.stop:
                        break
            if seen < wanted.stop:
                raise ValueError(f"{files.url(path)} gave {seen} rows, and had more when counted.")

    @contextmanager
    def _opened(self, piece: int, names: Sequence[str] | None = None) -> Iterator[Any]:
        files, path = self._files[piece]
        try:
            with (
                files.arrow.open_input_stream(path) as source,
                closing(self._form.open(source, names)) as reader,
            ):
                yield reader
        except (pa.ArrowException, OSError) as exc:
            said = str(exc)
            if "newlines_in_values" in said:  # With it, pyarrow may lose the end of a line.
                said = "in a file this large no value may hold line ends. Write it as Parquet."
            if "conversion error" in said:
                said += ". Types that were not given are those of the first rows: see schema=."
            raise ValueError(f"{files.url(path)}: {said}") from exc
