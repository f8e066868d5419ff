"""Runs in the training process. Parquet files as batches, read by pyarrow."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl.data.batching import Batches, make_dataset, takes_batches
from sparkdl.data.readers.base import ArrowSource
from sparkdl.data.readers.parquet_footers import Footers, RowGroup
from sparkdl.data.readers.paths import Paths, check_names, shown
from sparkdl.data.shard import Range

__all__ = ["ParquetSource", "parquet"]

KEPT_FOOTERS = 32
BATCH_BYTES = 8 << 20
MOST_ROWS = 1 << 16
STREAM_BYTES = 1 << 20
MOST_AT_ONCE_BYTES = 256 << 20
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}  # All others take 8 bytes at least.


@takes_batches
def parquet(
    path: Paths,
    *,
    filter: Any = None,  # noqa: A002 - what pyarrow and pandas call it.
    ragged: Sequence[str] = (),
    decode: Mapping[str, str] | None = None,
    fill: Mapping[str, Any] | None = None,
    **batches: Any,
) -> Any:
    """This rank's share of Parquet files as a `tf.data.Dataset`, with equal steps on every rank.

    Only the columns that `feature_cols` and `label_cols` name are read. Ranks share row groups;
    what is above a rank's stretch in a row group is decoded and left out, so that files of one
    large row group cost every rank more than files of several.

    Args:
        path: a file, a folder, a pattern or a list of such; local, or URLs that fsspec understands.
            Folders below it such as `year=2020` make a column `year`.
        filter: which rows are wanted: an expression of `pyarrow.compute`, or a list of conditions
            such as `[("year", ">=", 2020)]`. Row groups whose statistics exclude them are not read,
            and in others these columns are read once more beforehand, to count rows.
        ragged: the columns whose arrays differ in length from row to row: `tf.RaggedTensor`s.
        decode: binary columns that hold numbers, with their dtype: `{"image": "uint8"}`.
        fill: what stands for a null, by column; without it a null is an error.
        **batches: see `Batches`.

    Returns:
        Features, or `(features, labels)`, with the types of `sparkdl.data.schema`.

    Raises:
        FileNotFoundError: there is no file.
        ConfigError: a column is not there, or an argument is wrong.
        ValueError: a file is no Parquet, or has a column of another type than the first. While
            it is read: a null, a row of another shape, or a file that has changed since.

    Example:
        >>> table = pa.table({"x": [[0.0, 1.0], [2.0, 3.0]], "y": [0, 1], "year": [2019, 2020]})
        >>> pq.write_table(table, "some.parquet")
        >>> dataset = parquet("some.parquet", batch_size_per_worker=64, feature_cols="x",
        ...     label_cols="y", filter=[("year", ">=", 2020)])
        sparkdl: some.parquet: 1 rows; batches of 64...
        >>> for x, y in dataset:
        ...     print(x.numpy(), y.numpy())
        [[2. 3.]] [1]
    """
    parsed = Batches.parse(batches)
    source = ParquetSource(path, filter, {"ragged": ragged, "decode": decode, "fill": fill})
    return make_dataset(source, parsed)


class ParquetSource(ArrowSource):
    """The wanted rows of some Parquet files; a piece is a row group.

    Args:
        path: see `parquet`.
        condition: its `filter`.
        options: its arguments `ragged`, `decode` and `fill`.
    """

    def __init__(self, path: Paths, condition: Any, options: Mapping[str, Any]) -> None:
        self._footers = Footers(path, condition)
        self.name, self.schema, self.options = shown(path), self._footers.schema, options
        self.sizes = [group.rows for group in self._footers.groups]
        check_names(options, self.schema)
        self._footer = lru_cache(KEPT_FOOTERS)(self._read_footer)

    def read(self, ranges: Sequence[Range], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `ArrowSource.read`. A batch is decoded while the one before it is in use."""
        self._footers.check_types(names)
        decoded = (batch for wanted in ranges for batch in self._rows(wanted, names))
        with closing(decoded) as batches, ThreadPoolExecutor(1, "sparkdl-parquet") as reader:
            coming = reader.submit(next, batches, None)
            while (batch := coming.result()) is not None:
                coming = reader.submit(next, batches, None)
                yield batch

    def _rows(self, wanted: Range, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        group, seen = self._footers.groups[wanted.piece], 0
        for batch in self._decoded(group, names, wanted.stop):
            start, stop = max(wanted.start - seen, 0), min(wanted.stop - seen, batch.num_rows)
            if start < stop:
                yield batch.slice(start, stop - start)
            seen += batch.num_rows
            if seen >= wanted.stop:
                return
        raise ValueError(
            f"{self._footers.files[group.file].url}: row group {group.number} gave {seen} rows; "
            f"expected {group.rows}, as its footer says. The file is damaged."
        )

    def _decoded(
        self, group: RowGroup, names: Sequence[str], most: int
    ) -> Iterator[pa.RecordBatch]:
        """The wanted rows of a row group with these columns, some MB at a time."""
        keys, condition = self._footers.files[group.file].keys, self._footers.filter
        needed = dict.fromkeys([*names, *self._footers.filtered])
        stored = [name for name in needed if name not in keys]
        schema = pa.schema([self.schema.field(name) for name in needed])
        with self._opened(group, stored) as (file, rows):
            # Of a filtered row group it is not known how far to read.
            rows = rows if condition is not None else min(rows, most)
            for batch in file.iter_batches(rows, row_groups=[group.number], columns=stored):
                batch = _arranged(batch, schema, keys)
                if condition is not None:
                    batch = batch.filter(condition)
                yield batch.select(list(names))

    @contextmanager
    def _opened(
        self, group: RowGroup, names: Sequence[str]
    ) -> Iterator[tuple[pq.ParquetFile, int]]:
        """A row group's file, and how many rows of it to decode at once."""
        file = self._footers.files[group.file]
        if file.files.mark(file.path) != file.mark:
            raise ValueError(f"{file.url} has changed since its footer was read. Start again.")
        try:
            footer = self._footer(group.file)
            row_bytes, stored_bytes = _measured(footer.row_group(group.number), set(names))
            rows = min(max(BATCH_BYTES // max(row_bytes, 1), 1), MOST_ROWS)
            # `rebatch` cuts without a copy at powers of two, the usual sizes of batches.
            rows = 1 << (rows.bit_length() - 1)
            # Where requests take long few large ones; or else, and of very much, a stream.
            at_once = not file.files.is_local and stored_bytes <= MOST_AT_ONCE_BYTES
            with file.files.arrow.open_input_file(file.path) as source:
                yield (
                    pq.ParquetFile(
                        source, metadata=footer, pre_buffer=at_once, buffer_size=STREAM_BYTES
                    ),
                    rows,
                )
        except (pa.ArrowException, OSError) as exc:
            raise ValueError(f"{file.url}, row group {group.number}: {exc}") from exc

    def _read_footer(self, number: int) -> pq.FileMetaData:
        file = self._footers.files[number]
        return pq.read_metadata(file.path, filesystem=file.files.arrow)


def _arranged(batch: pa.RecordBatch, schema: pa.Schema, keys: Mapping[str, Any]) -> pa.RecordBatch:
    """With the columns of folders, in one order, and without what differs from file to file."""
    arrays = []
    for field in schema:
        if field.name in keys:
            arrays.append(pa.repeat(keys[field.name], batch.num_rows))
        else:
            array = batch.column(field.name)
            arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _measured(group: pq.RowGroupMetaData, names: set[str]) -> tuple[int, int]:
    """Bytes of a row in memory, about, and of the row group in its file."""
    memory = stored = 0
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema.split(".", 1)[0] in names:
            # Encodings may make values much smaller than they are in memory.
            width = _WIDTHS.get(column.physical_type, 8)
            memory += max(column.total_uncompressed_size, column.num_values * width)
            stored += column.total_compressed_size
    return memory // max(group.num_rows, 1), stored
