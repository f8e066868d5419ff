"""Runs in the training process. Read datasets of petastorm, with or without a Unischema.

A Unischema describes how the values of each column were encoded. It is a pickle in the file
`_common_metadata`, which petastorm reads; petastorm's codecs decode the columns. The rows are read
by pyarrow, one row group after the other, and not by petastorm's reader pools: scalars are whole
columns, nulls stay nulls, and no pool can lose rows. A dataset without a Unischema is plain
Parquet.

Source of the format: `petastorm/etl/dataset_metadata.py` and `petastorm/codecs.py` of petastorm
0.13.1, https://github.com/uber/petastorm.
"""

import functools
import importlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyarrow.parquet import ParquetFile

from sparkdl.data.agreed_pieces import Call, Pieces, agree
from sparkdl.data.batching import Batches, make_dataset, takes_batches
from sparkdl.data.readers.base import ArrowSource
from sparkdl.data.readers.folder_columns import folder_texts, folder_types, folder_value
from sparkdl.data.readers.joined import JoinedSource
from sparkdl.data.readers.parquet_footers import TIMESTAMP_UNIT
from sparkdl.data.readers.parquet_pieces import pack_schema, unpack_schema
from sparkdl.data.readers.paths import Files, absolute, check_names
from sparkdl.data.readers.petastorm import compat
from sparkdl.data.readers.petastorm.materialize import materialize
from sparkdl.data.readers.petastorm.ngrams import RowSequences, SequenceForm, is_ngram, stored_names
from sparkdl.data.readers.petastorm.schema import decode, decoded_type
from sparkdl.data.readers.petastorm.transform import is_transform, transformed
from sparkdl.data.readers.table_formats import refuse_tables
from sparkdl.data.shard import Range
from sparkdl.errors import ConfigError, suggest
from sparkdl.files import storage

# Limits of a batch that is decoded at once; bytes as they are stored.
_MAX_BATCH_BYTES = 4 << 20
_MAX_BATCH_ROWS = 1 << 16


class UnischemaWarning(UserWarning):
    """Warns that a Unischema is a pickle: reading the dataset runs code of its writer."""


@takes_batches
def petastorm(
    url: str | Sequence[str],
    *,
    columns: Any = None,
    ragged: Sequence[str] | None = None,
    pad: Mapping[str, Any] | None = None,
    decode: Mapping[str, str] | None = None,
    fill: Mapping[str, Any] | None = None,
    trust: bool = False,
    **batches: Any,
) -> Any:
    """Return this rank's share of a petastorm dataset as a `tf.data.Dataset`.

    With a Unischema (written by `data.petastorm.materialize` or by petastorm itself) columns are
    decoded by the Unischema's codecs. Without a Unischema (written by Spark or by petastorm's
    `make_spark_converter`) columns are read as they are stored.

    Args:
        url: the dataset's folder: a local path, or a URL that fsspec supports; or a list of
            datasets with the same columns, whose rows come one dataset after the other.
        columns: names of the columns to read; by default all. Or an `NGram` of petastorm: an
            element is then a sequence of rows, and `x[-1]` is column `x` of its row at offset -1.
        ragged: names of the columns whose arrays differ in shape from row to row; by default the
            columns whose shape in the Unischema has a None.
        pad: values that fill shorter arrays up to the longest of their batch, by column name:
            `{"tokens": 0}`. See `bucket_by`.
        decode: dtypes of the binary columns without a codec that hold numbers, by name.
        fill: values that replace nulls, by column name; without a value a null is an error.
        trust: True silences the warning that reading a Unischema runs code of its writer.
        **batches: see `sparkdl.data.batching.Batches`. `map` may be a `TransformSpec` of
            petastorm, and `where` a predicate.

    Returns:
        A dataset of features, or of `(features, labels)`; a column is a tensor of (rows, *shape),
        or a `tf.RaggedTensor`.

    Raises:
        ImportError: if petastorm is not installed.
        ConfigError: if an argument is invalid, or a column does not exist.
        FileNotFoundError: if there is no Parquet file.
        ValueError: if files were added or removed after the dataset was materialized, or rows are
            missing.

    Warns:
        UnischemaWarning: once for each `url` with a Unischema, unless `trust` is True.

    Example:
        >>> from sparkdl import data
        >>> cats = data.petastorm("s3://bucket/cats", label_cols="label",
        ...                       batch_size_per_worker=64, trust=True)  # doctest: +SKIP
    """
    transform = batches.pop("map") if is_transform(batches.get("map")) else None
    parsed = Batches.parse(batches)
    ngram = columns if is_ngram(columns) else None
    names = stored_names(ngram) if ngram else columns and [getattr(c, "name", c) for c in columns]
    if ngram and transform:
        raise ConfigError(
            "columns is an NGram and map is a TransformSpec, whose function has single rows. Pass "
            "map=data.Map(function), whose function has the columns of sequences, such as 'x[0]'."
        )
    call = Call("data.petastorm", {"url": url, "columns": names, **parsed.division})
    urls = [absolute(each) for each in ([url] if isinstance(url, str) else url)]
    pieces = agree(call, lambda: {"datasets": _list_all(urls)})
    sources = []
    for each, listed in zip(urls, pieces["datasets"], strict=True):
        sources.append(PetastormSource(each, names, ragged, decode, fill, trust, listed, pad))
    source: ArrowSource = sources[0] if len(sources) == 1 else JoinedSource(sources)
    if ngram:
        source = RowSequences(source, SequenceForm.of(ngram, source.columns))
    if transform:
        is_by_row = sources[0].has_unischema
        parsed = transformed(parsed, transform, source.schema, pad, is_by_row)
    return make_dataset(source, parsed)


def _list_all(urls: Sequence[str]) -> list[Pieces]:
    if not urls:
        raise ConfigError("url is an empty list; expected at least one dataset.")
    with ThreadPoolExecutor(8) as pool:  # The threads mostly wait for a store.
        return list(pool.map(list_row_groups, urls))


petastorm.load = compat.load  # type: ignore[attr-defined]
petastorm.materialize = materialize  # type: ignore[attr-defined]


@dataclass(frozen=True, kw_only=True)
class _Group:
    """A row group.

    Attributes:
        file: number of its file in the `Files` of the dataset.
        number: number of the row group in the file.
        rows: number of rows.
        num_bytes: size in bytes as stored, before compression.
        folders: values in the names of the file's folders as text, by column; None for null.
    """

    file: int
    number: int
    rows: int
    num_bytes: int
    folders: Mapping[str, str | None]


class PetastormSource(ArrowSource):
    """The rows of a petastorm dataset; a piece is a row group, in the order of petastorm.

    Args:
        url, columns, ragged, decode, fill, trust, pad: see `petastorm`.
        pieces: the result of `list_row_groups` on the first rank; by default this process lists
            them.

    Attributes:
        has_unischema: True if a Unischema describes the columns.

    Example:
        >>> from pyarrow.parquet import write_table
        >>> write_table(pa.table({"x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}), "cats.parquet")
        >>> source = PetastormSource("cats.parquet")
        >>> source.sizes
        [3]
        >>> [batch.to_pylist() for batch in source.read([Range(0, 1, 2)], ["x"])]
        [[{'x': [3.0, 4.0]}]]
    """

    def __init__(
        self,
        url: str,
        columns: Sequence[str] | None = None,
        ragged: Sequence[str] | None = None,
        decode: Mapping[str, str] | None = None,
        fill: Mapping[str, Any] | None = None,
        trust: bool = False,
        pieces: Pieces | None = None,
        pad: Mapping[str, Any] | None = None,
    ) -> None:
        compat.load()
        pieces = list_row_groups(url) if pieces is None else pieces
        self.name = url
        filesystem, root = storage.filesystem(url)
        self._fields = _unischema_fields(url, compat.common_metadata(root, filesystem), trust)
        self.has_unischema = bool(self._fields)
        self._files = Files.from_dict(url, pieces["files"])
        self._groups = [_Group(**group) for group in pieces["groups"]]
        self.sizes = [group.rows for group in self._groups]
        self.schema = _schema(url, unpack_schema(pieces["schema"]), self._fields, columns)
        if ragged is None:
            variable = [name for name, field in self._fields.items() if None in field.shape]
            ragged = [name for name in variable if name in self.schema.names]
        self.options = {"ragged": ragged, "decode": decode, "fill": fill, "pad": pad}
        check_names(self.options, self.schema)

    def read(self, ranges: Sequence[Range], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Implement `ArrowSource.read`.

        Raises:
            ValueError: if a file has changed since the dataset was opened, or a value does not fit
                its field.
        """
        files = [self._groups[part.piece].file for part in ranges]
        last = {file: place for place, file in enumerate(files)}
        checked_files: set[int] = set()
        for place, (part, file) in enumerate(zip(ranges, files, strict=True)):
            is_first = self._files.is_local or file not in checked_files
            checked_files.add(file)
            yield from self._read_range(part, names, is_first)
            if not self._files.is_local and last[file] == place:
                self._files.check(file)

    def _read_range(
        self, part: Range, names: Sequence[str], is_checked: bool
    ) -> Iterator[pa.RecordBatch]:
        group, position, num_yielded = self._groups[part.piece], 0, 0
        path = self._files.paths[group.file]
        columns = [name for name in names if name not in group.folders]
        rows = max(1, _MAX_BATCH_BYTES * group.rows // max(1, group.num_bytes))
        with (
            self._open(group.file, path, is_checked) as source,
            ParquetFile(source, coerce_int96_timestamp_unit=TIMESTAMP_UNIT) as file,
        ):
            footer = file.metadata
            exists = group.number < footer.num_row_groups
            num_rows = footer.row_group(group.number).num_rows if exists else 0
            self._check_rows(num_rows, group.rows, group)
            for batch in file.iter_batches(min(rows, _MAX_BATCH_ROWS), [group.number], columns):
                begin = max(part.start - position, 0)
                end = max(min(part.stop - position, batch.num_rows), begin)
                rows_in_part = batch.slice(begin, end - begin)
                position += batch.num_rows
                num_yielded += rows_in_part.num_rows
                if rows_in_part.num_rows:
                    yield self._decode(rows_in_part, names, group)
                if position >= part.stop:
                    break
        self._check_rows(num_yielded, part.stop - part.start, group)

    @contextmanager
    def _open(self, file: int, path: str, is_checked: bool) -> Iterator[Any]:
        with self._files.arrow.open_input_file(path) as source:
            if is_checked:
                self._files.check(file)
            try:
                yield source
            except (pa.ArrowException, OSError):
                self._files.check(file)
                raise

    def _check_rows(self, num_rows: int, num_expected: int, group: _Group) -> None:
        if num_rows != num_expected:
            raise ValueError(
                f"{self.name}: read {num_rows} rows, but expected {num_expected}, from row group "
                f"{group.number} of {self._files.paths[group.file]}. The file has changed since "
                "the dataset was opened; open it again."
            )

    def _decode(self, batch: pa.RecordBatch, names: Sequence[str], group: _Group) -> Any:
        values = []
        for name in names:
            kind = self.schema.field(name).type
            if name in group.folders:
                value = folder_value(group.folders[name], kind)
                values.append(pa.repeat(value, batch.num_rows))
                continue
            stored, field = batch.column(name), self._fields.get(name)
            values.append(decode(field, stored, kind) if field else stored.cast(kind))
        return pa.RecordBatch.from_arrays(values, names=list(names))


def list_row_groups(url: str) -> Pieces:
    """Return the row groups of a dataset and the columns that its files store, in JSON form.

    Args:
        url: see `petastorm`.

    Raises:
        ConfigError: if the folder is that of a Delta, Hudi or Iceberg table.
        ValueError: if files were added or removed after the dataset was materialized.
    """
    compat.load()
    filesystem, root = storage.filesystem(url)
    if filesystem.isdir(root):
        refuse_tables(url, filesystem, root, [], matches=[])
    dataset = compat.ParquetDataset(root, filesystem)
    footers = dataset.footers()
    _check_unchanged(url, dataset, footers)
    folder = root.rpartition("/")[0] if root in dataset.entries else root.rstrip("/")
    files = Files.from_entries(url, filesystem, folder, dataset.entries)
    folders = [folder_texts(path[len(folder) :]) for path in files.paths]
    return {
        "files": files.to_dict(),
        "groups": list(_groups(footers, folders)),
        "schema": pack_schema(_stored_schema(footers[0], folder_types(folders))),
    }


def _check_unchanged(url: str, dataset: Any, footers: Sequence[Any]) -> None:
    metadata: Any = importlib.import_module("petastorm.etl.dataset_metadata")
    common = (dataset.common_metadata and dataset.common_metadata.metadata) or {}
    if metadata.UNISCHEMA_KEY not in common or metadata.ROW_GROUPS_PER_FILE_KEY not in common:
        return
    paths = [os.path.relpath(piece.path, dataset.paths) for piece in dataset.pieces]
    actual = {p: footer.num_row_groups for p, footer in zip(paths, footers, strict=True)}
    counts = json.loads(common[metadata.ROW_GROUPS_PER_FILE_KEY])
    changed = sorted(p for p in {*actual, *counts} if actual.get(p) != counts.get(p))
    if changed:
        first = changed[0]
        raise ValueError(
            f"{url} has changed since it was materialized: {len(changed)} files have other row "
            f"groups than its _common_metadata says, the first of them {first!r} "
            f"({counts.get(first, 'none')} expected, {actual.get(first, 'none')} found). "
            "Materialize it again."
        )


def _unischema_fields(url: str, common_metadata: Any, trust: bool) -> dict[str, Any]:
    """Return the fields of the Unischema by name; an empty dict without a Unischema."""
    metadata: Any = importlib.import_module("petastorm.etl.dataset_metadata")
    if metadata.UNISCHEMA_KEY not in ((common_metadata and common_metadata.metadata) or {}):
        return {}
    if not trust:
        _warn_of_pickle(url)
    dataset = SimpleNamespace(common_metadata=common_metadata, paths=url)
    fields: dict[str, Any] = dict(metadata.get_schema(dataset).fields)
    return fields


@functools.cache  # Warns once per url, even if a warning filter says "always".
def _warn_of_pickle(url: str) -> None:
    warnings.warn(
        f"the Unischema of {url} is a pickle: reading it runs any code that its writer put there. "
        "Read only datasets that you trust; trust=True silences this warning.",
        UnischemaWarning,
        stacklevel=5,
    )


def _groups(
    footers: Sequence[Any], folders: Sequence[Mapping[str, str | None]]
) -> Iterator[dict[str, Any]]:
    """Yield the fields of `_Group`; the files are numbered in the order of their paths."""
    for file, (footer, texts) in enumerate(zip(footers, folders, strict=True)):
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            yield {
                "file": file,
                "number": number,
                "rows": group.num_rows,
                "num_bytes": group.total_byte_size,
                "folders": texts,
            }


def _stored_schema(footer: Any, of_folders: Mapping[str, pa.DataType]) -> pa.Schema:
    """Return the columns of the files and of the names of their folders, whose types count."""
    schema = footer.schema.to_arrow_schema()
    for number in range(len(footer.schema)):
        column = footer.schema.column(number)
        if column.physical_type == "INT96" and column.path in schema.names:
            field = pa.field(column.path, pa.timestamp(TIMESTAMP_UNIT))
            schema = schema.set(schema.names.index(column.path), field)
    return pa.schema(
        list({**dict(zip(schema.names, schema.types, strict=True)), **of_folders}.items())
    )


def _schema(
    url: str, stored_schema: pa.Schema, fields: Mapping[str, Any], columns: Sequence[str] | None
) -> pa.Schema:
    names = columns or list(fields) or stored_schema.names
    for name in names:
        if name not in stored_schema.names:
            raise ConfigError(
                f"{url} has no column {name!r}.{suggest(name, stored_schema.names)} Columns are "
                f"{', '.join(stored_schema.names)}."
            )
    return pa.schema(
        stored_schema.field(n)
        if n not in fields
        else pa.field(n, decoded_type(fields[n], stored_schema.field(n).type))
        for n in names
    )
