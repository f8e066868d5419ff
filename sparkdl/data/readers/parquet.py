"""Runs in the training process. Read Parquet files as batches, with pyarrow."""

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
from sparkdl.data.readers.paths import Paths, check_names, describe
from sparkdl.data.shard import Range

__all__ = ["ParquetSource", "parquet"]

CACHED_FOOTERS = 32
BATCH_BYTES = 8 << 20
MAX_BATCH_ROWS = 1 << 16
STREAM_BYTES = 1 << 20
MAX_PREFETCH_BYTES = 256 << 20

# Bytes of a value in memory by physical type; values of other types take at least 8 bytes.
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}


@takes_batches
def parquet(
    path: Paths,
    *,
    filter: Any = None,  # noqa: A002 - the name in pyarrow and pandas.
    ragged: Sequence[str] = (),
    decode: Mapping[str, str] | None = None,
    fill: Mapping[str, Any] | None = None,
    **batches: Any,
) -> Any:
    """Return this rank's share of Parquet files as a `tf.data.Dataset`, with equal steps per rank.

    Only the columns that `feature_cols` and `label_cols` name are read. Ranks may share a row
    group; the rows of a row group before a rank's share are decoded and left out, so that files
    with one large row group cost every rank more than files with several.

    Args:
        path: a file, a folder, a pattern, or a list of these; local paths, or URLs that fsspec
            supports. Subfolders such as `year=2020` make a column `year`.
        filter: condition for the rows to read: an expression of `pyarrow.compute`, or a list of
            conditions such as `[("year", ">=", 2020)]`. Row groups that the condition excludes by
            their statistics are not read; in the others the columns of the condition are read once
            more beforehand, to count rows.
        ragged: names of the columns whose arrays differ in length from row to row; they become
            `tf.RaggedTensor`s.
        decode: dtypes of the binary columns that hold numbers, by name: `{"image": "uint8"}`.
        fill: values that replace nulls, by column name; without a value a null is an error.
        **batches: see `Batches`.

    Returns:
        A dataset of features, or of `(features, labels)`, with the types of `sparkdl.data.schema`.

    Raises:
        FileNotFoundError: if there is no file.
        ConfigError: if a column does not exist, or an argument is invalid.
        ValueError: if a file is not a Parquet file, or a column has another type than in the first
            file. During iteration: if there is a null or a row of another shape, or a file has
            changed.

    Example:
        >>> table = pa.table({"x": [[0.0, 1.0], [2.0, 3.0]], "y": [0, 1], "year": [2019, 2020]})
        >>> pq.write_table(table, "some.parquet")
        >>> dataset = parquet("some.parquet", batch_size_per_worker=64, feature_cols="x",
        ...     label_cols="y", filter=[("year", ">=", 2020)])
        >>> for x, y in dataset:
        ...     print(x.numpy(), y.numpy())
        [[2. 3.]] [1]
    """
    parsed = Batches.parse(batches)
    source = ParquetSource(path, filter, {"ragged": ragged, "decode": decode, "fill": fill})
    return make_dataset(source, parsed)


class ParquetSource(ArrowSource):
    """The rows of Parquet files that pass a filter; a piece is a row group.

    Args:
        path: see `parquet`.
        condition: the argument `filter` of `parquet`.
        options: the arguments `ragged`, `decode` and `fill` of `parquet`.
    """

    def __init__(self, path: Paths, condition: Any, options: Mapping[str, Any]) -> None:
        self._footers = Footers(path, condition)
        self.name = describe(path)
        self.schema = self._footers.schema
        self.options = options
        self.sizes = [group.rows for group in self._footers.groups]
        check_names(options, self.schema)
        self._footer = lru_cache(CACHED_FOOTERS)(self._read_footer)

    def read(self, ranges: Sequence[Range], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Implement `ArrowSource.read`; a batch is decoded while the previous one is used."""
        self._footers.check_types(names)
        decoded = (batch for part in ranges for batch in self._read_range(part, names))
        with closing(decoded) as batches, ThreadPoolExecutor(1, "sparkdl-parquet") as reader:
            pending = reader.submit(next, batches, None)
            while (batch := pending.result()) is not None:
                pending = reader.submit(next, batches, None)
                yield batch

    def _read_range(self, part: Range, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        group, num_read = self._footers.groups[part.piece], 0
        for batch in self._decode(group, names, part.stop):
            start, stop = max(part.start - num_read, 0), min(part.stop - num_read, batch.num_rows)
            if start < stop:
                yield batch.slice(start, stop - start)
            num_read += batch.num_rows
            if num_read >= part.stop:
                return
        raise ValueError(
            f"{self._footers.files[group.file].url}: row group {group.number} has {num_read} rows; "
            f"expected {group.rows} according to its footer. The file is damaged."
        )

    def _decode(
        self, group: RowGroup, names: Sequence[str], max_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group that pass the filter, some MB at a time."""
        keys, condition = self._footers.files[group.file].keys, self._footers.filter
        needed = dict.fromkeys([*names, *self._footers.filtered])
        stored = [name for name in needed if name not in keys]
        schema = pa.schema([self.schema.field(name) for name in needed])
        with self._opened(group, stored) as (file, rows):
            # With a filter, the number of rows to decode is not known in advance.
            rows = rows if condition is not None else min(rows, max_rows)
            for batch in file.iter_batches(rows, row_groups=[group.number], columns=stored):
                batch = _add_folder_columns(batch, schema, keys)
                if condition is not None:
                    batch = batch.filter(condition)
                yield batch.select(list(names))

    @contextmanager
    def _opened(
        self, group: RowGroup, names: Sequence[str]
    ) -> Iterator[tuple[pq.ParquetFile, int]]:
        """Yield a row group's open file, and the number of rows to decode at once."""
        file = self._footers.files[group.file]
        if file.files.mark(file.path) != file.mark:
            raise ValueError(f"{file.url} has changed since its footer was read. Start again.")
        try:
            footer = self._footer(group.file)
            row_bytes, stored_bytes = _estimate_bytes(footer.row_group(group.number), set(names))
            rows = min(max(BATCH_BYTES // max(row_bytes, 1), 1), MAX_BATCH_ROWS)
            # With a power of two, like most batch sizes, `rebatch` cuts batches without a copy.
            rows = 1 << (rows.bit_length() - 1)
            # Remote stores are slow per request: prefetch the row group in a few large requests.
            # Local files and very large row groups are read as a stream.
            is_prefetched = not file.files.is_local and stored_bytes <= MAX_PREFETCH_BYTES
            with file.files.arrow.open_input_file(file.path) as source:
                yield (
                    pq.ParquetFile(
                        source,
                        metadata=footer,
                        pre_buffer=is_prefetched,
                        buffer_size=STREAM_BYTES,
                    ),
                    rows,
                )
        except (pa.ArrowException, OSError) as exc:
            raise ValueError(f"{file.url}, row group {group.number}: {exc}") from exc

    def _read_footer(self, number: int) -> pq.FileMetaData:
        file = self._footers.files[number]
        return pq.read_metadata(file.path, filesystem=file.files.arrow)


def _add_folder_columns(
    batch: pa.RecordBatch, schema: pa.Schema, keys: Mapping[str, Any]
) -> pa.RecordBatch:
    """Return a batch with the columns and types of `schema`, which all files have in common.

    Args:
        batch: the columns stored in a file.
        schema: the columns to return.
        keys: values of the columns that the file's folders define.
    """
    arrays = []
    for field in schema:
        if field.name in keys:
            arrays.append(pa.repeat(keys[field.name], batch.num_rows))
        else:
            array = batch.column(field.name)
            arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _estimate_bytes(group: pq.RowGroupMetaData, names: set[str]) -> tuple[int, int]:
    """Return the approximate bytes of a row in memory, and the bytes of the row group on disk."""
    memory = stored = 0
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema.split(".", 1)[0] in names:
            # Encoded values may be much smaller than the values in memory.
            width = _WIDTHS.get(column.physical_type, 8)
            memory += max(column.total_uncompressed_size, column.num_values * width)
            stored += column.total_compressed_size
    return memory // max(group.num_rows, 1), stored
