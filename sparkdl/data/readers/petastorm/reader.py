"""Runs in the training process. Datasets of petastorm, with a Unischema or without: plain Parquet.

A Unischema says how the values of each column were encoded. It is a pickle in the file
`_common_metadata`, and so is read by petastorm itself; its codecs decode the columns. The rows
come row group by row group from pyarrow, not through petastorm's reader pools: scalars are then
whole columns, nulls stay nulls, and no pool can lose any.

Source of the format: `petastorm/etl/dataset_metadata.py` and `petastorm/codecs.py` of petastorm
0.13.1, https://github.com/uber/petastorm.
"""

import functools
import importlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow.parquet import ParquetFile

from sparkdl import storage
from sparkdl.data.batching import Batches, make_dataset, takes_batches
from sparkdl.data.readers.base import ArrowSource
from sparkdl.data.readers.paths import check_names
from sparkdl.data.readers.petastorm import compat
from sparkdl.data.readers.petastorm.materialize import materialize
from sparkdl.data.readers.petastorm.schema import decode, decoded_type
from sparkdl.data.shard import Range
from sparkdl.errors import ConfigError, suggest

__all__ = ["PetastormSource", "UnischemaWarning", "petastorm"]

# How many bytes, as they are stored, are decoded at a time, and how many rows at most.
_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 1 << 16


class UnischemaWarning(UserWarning):
    """A Unischema is a pickle: reading the dataset runs what its writer put there."""


@takes_batches
def petastorm(
    url: str,
    *,
    columns: Sequence[str] | None = None,
    ragged: Sequence[str] | None = None,
    decode: Mapping[str, str] | None = None,
    fill: Mapping[str, Any] | None = None,
    trust: bool = False,
    **batches: Any,
) -> Any:
    """This rank's share of a dataset that petastorm can read, as a `tf.data.Dataset`.

    With a Unischema (written by `data.petastorm.materialize`, or petastorm itself) columns are
    decoded by its codecs. Without one they are read as they are, such as those that Spark or
    petastorm's `make_spark_converter` wrote.

    Args:
        url: the dataset's folder: a local path, or a URL that fsspec understands.
        columns: the names of those to read; by default all.
        ragged: columns whose arrays differ in shape from row to row; by default those whose shape
            in the Unischema has a None.
        decode: binary columns without a codec that hold numbers, with their dtype.
        fill: what stands for a null, by column; a null is refused otherwise.
        trust: whoever can write to `url` may run code here. True silences the warning about it.
        **batches: see `sparkdl.data.batching.Batches`.

    Returns:
        Elements are `(features, labels)`, or features alone; a column is a tensor of
        (rows, *shape), or a `tf.RaggedTensor`.

    Raises:
        ImportError: petastorm is not installed.
        ConfigError: an argument is wrong, or a column is not there.
        FileNotFoundError: there is no Parquet file.
        ValueError: files have come or gone since the dataset was materialized, or rows are missing.

    Warns:
        UnischemaWarning: once for each `url` with a Unischema, unless `trust`.

    Example:
        >>> from sparkdl import data
        >>> cats = data.petastorm("s3://bucket/cats", label_cols="label",
        ...                       batch_size_per_worker=64, trust=True)  # doctest: +SKIP
    """
    parsed = Batches.parse(batches)
    return make_dataset(PetastormSource(url, columns, ragged, decode, fill, trust), parsed)


petastorm.materialize = materialize  # type: ignore[attr-defined]


@dataclass(frozen=True)
class _Group:
    """One row group."""

    path: str
    number: int
    rows: int
    num_bytes: int
    folders: Mapping[str, Any]  # The columns that are kept in the names of its folders.


class PetastormSource(ArrowSource):
    """The row groups of a dataset, sorted by file: the order in which petastorm numbers them.

    Args:
        url, columns, ragged, decode, fill, trust: see `petastorm`.

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
    ) -> None:
        compat.load()
        self.name = url
        self._filesystem, path = storage.filesystem(url)
        dataset = compat.ParquetDataset(path, self._filesystem)
        footers = dataset.footers()
        self._fields = _unischema(url, dataset, footers, trust)
        self._groups = list(_groups(dataset, footers))
        self.sizes = [group.rows for group in self._groups]
        self.schema = _schema(url, dataset, footers[0], self._fields, columns)
        variable = [name for name, field in self._fields.items() if None in field.shape]
        ragged = [n for n in variable if n in self.schema.names] if ragged is None else ragged
        self.options = {"ragged": ragged, "decode": decode, "fill": fill}
        check_names(self.options, self.schema)

    def read(self, ranges: Sequence[Range], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `ArrowSource.read`.

        Raises:
            ValueError: a row group has fewer rows than its footer said, or a value does not fit.
        """
        for part in ranges:
            yield from self._read(part, names)

    def _read(self, part: Range, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        group, at, done = self._groups[part.piece], 0, 0
        stored = [name for name in names if name not in group.folders]
        rows = max(1, _BATCH_BYTES * group.rows // max(1, group.num_bytes))
        with ParquetFile(group.path, filesystem=self._filesystem) as file:
            footer = file.metadata
            known = group.number < footer.num_row_groups
            there = footer.row_group(group.number).num_rows if known else 0
            self._check(there, group.rows, group)
            for batch in file.iter_batches(min(rows, _BATCH_ROWS), [group.number], stored):
                begin = max(part.start - at, 0)
                wanted = batch.slice(begin, max(min(part.stop - at, batch.num_rows) - begin, 0))
                at += batch.num_rows
                done += wanted.num_rows
                if wanted.num_rows:
                    yield self._decoded(wanted, names, group)
                if at >= part.stop:
                    break
        self._check(done, part.stop - part.start, group)

    def _check(self, found: int, expected: int, group: _Group) -> None:
        if found != expected:
            raise ValueError(
                f"{self.name}: {found} rows came of {expected} expected from row group "
                f"{group.number} of {group.path}. The file has changed since the dataset was "
                "opened; open it again."
            )

    def _decoded(self, batch: pa.RecordBatch, names: Sequence[str], group: _Group) -> Any:
        values = []
        for name in names:
            kind = self.schema.field(name).type
            if name in group.folders:
                value = pa.scalar(group.folders[name])
                values.append(pa.repeat(value, batch.num_rows).cast(kind))
                continue
            found, field = batch.column(name), self._fields.get(name)
            values.append(decode(field, found, kind) if field else found.cast(kind))
        return pa.RecordBatch.from_arrays(values, names=list(names))


def _unischema(url: str, dataset: Any, footers: Sequence[Any], trust: bool) -> dict[str, Any]:
    """The fields of the Unischema by name; none without one."""
    metadata: Any = importlib.import_module("petastorm.etl.dataset_metadata")
    said = (dataset.common_metadata and dataset.common_metadata.metadata) or {}
    if metadata.UNISCHEMA_KEY not in said:
        return {}
    if metadata.ROW_GROUPS_PER_FILE_KEY in said:
        paths = [os.path.relpath(piece.path, dataset.paths) for piece in dataset.pieces]
        there = {p: footer.num_row_groups for p, footer in zip(paths, footers, strict=True)}
        known = json.loads(said[metadata.ROW_GROUPS_PER_FILE_KEY])
        wrong = sorted(p for p in {*there, *known} if there.get(p) != known.get(p))
        if wrong:
            raise ValueError(
                f"{url} has changed since it was materialized: {len(wrong)} files have other row "
                f"groups than its _common_metadata says, the first of them {wrong[0]!r} "
                f"({known.get(wrong[0], 'none')} expected, {there.get(wrong[0], 'none')} there). "
                "Materialize it again."
            )
    if not trust:
        _warn_of_pickle(url)
    fields: dict[str, Any] = dict(metadata.get_schema(dataset).fields)
    return fields


@functools.cache  # Once, whatever the filters for warnings are.
def _warn_of_pickle(url: str) -> None:
    warnings.warn(
        f"the Unischema of {url} is a pickle: reading it runs whatever code its writer put there. "
        "Read only what you trust; trust=True silences this.",
        UnischemaWarning,
        stacklevel=5,
    )


def _groups(dataset: Any, footers: Sequence[Any]) -> Iterator[_Group]:
    for piece, footer in zip(dataset.pieces, footers, strict=True):
        folders = {
            partition.name: partition.dictionary[key].as_py()
            for partition, (_, key) in zip(
                dataset.partitions or (), piece.partition_keys, strict=True
            )
        }
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            yield _Group(piece.path, number, group.num_rows, group.total_byte_size, folders)


def _schema(
    url: str, dataset: Any, footer: Any, fields: Mapping[str, Any], columns: Sequence[str] | None
) -> pa.Schema:
    stored = footer.schema.to_arrow_schema()
    for partition in dataset.partitions or ():
        stored = stored.append(pa.field(partition.name, partition.dictionary.type))
    names = columns or list(fields) or stored.names
    for name in names:
        if name not in stored.names:
            raise ConfigError(
                f"{url} has no column {name!r}.{suggest(name, stored.names)} Columns are "
                f"{', '.join(stored.names)}."
            )
    return pa.schema(
        stored.field(n)
        if n not in fields
        else pa.field(n, decoded_type(fields[n], stored.field(n).type))
        for n in names
    )
