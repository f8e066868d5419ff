"""Runs in the training process. Read Parquet files as batches, with pyarrow."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl.data.agreed_pieces import Call, Pieces, agree
from sparkdl.data.ahead import Ahead
from sparkdl.data.batching import Batches, make_dataset, takes_batches
from sparkdl.data.lanes import Pass
from sparkdl.data.readers.base import ArrowSource, mixed, read_ahead
from sparkdl.data.readers.parquet_footers import TIMESTAMP_UNIT, list_row_groups
from sparkdl.data.readers.parquet_pieces import ParquetPieces, RowGroup, filter_rows
from sparkdl.data.readers.paths import Paths, check_names, describe
from sparkdl.data.readers.row_group_fetches import Fetched, RowGroupFetches
from sparkdl.data.shard import Range

BATCH_BYTES = 8 << 20
MAX_BATCH_ROWS = 1 << 16
# Row groups of remote files that are asked for before they are decoded: more than cores, since the
# threads mostly wait for a store.
GROUPS_AHEAD = 8
# The head of a row group is at most this part of its rows.
MIN_HEADS = 8


@takes_batches
def parquet(
    path: Paths,
    *,
    filter: Any = None,  # noqa: A002 - the name in pyarrow and pandas.
    ragged: Sequence[str] = (),
    pad: Mapping[str, Any] | None = None,
    decode: Mapping[str, str] | None = None,
    fill: Mapping[str, Any] | None = None,
    **batches: Any,
) -> Any:
    """Return this rank's share of Parquet files as a `tf.data.Dataset`, with equal steps per rank.

    In a gang, the first rank lists the files and reads their footers for all ranks. Only the
    columns that `feature_cols` and `label_cols` name are read. Ranks may share a row group; the
    rows of a row group before a rank's share are decoded and left out, so write at least as many
    row groups as there are ranks.

    `shuffle=True` reads up to 128 row groups of all ranks in turn, each in random order. A row
    group is decoded once, from its start; its rows are kept in memory, up to 256 MB for all, and on
    Spark's local disk beyond that, until they were read.

    Args:
        path: a file, a folder, a pattern, or a list of these; local paths, or URLs that fsspec
            supports. Subfolders such as `year=2020` make a column `year` of the type that Spark
            infers from all of them, in place of a column of this name in the files; files that are
            named one by one have no such columns. `path=df.inputFiles()` reads the files of a
            table; the folder of a Delta, Hudi or Iceberg table is refused, as it has removed rows
            too.
        filter: condition for the rows to read: an expression of `pyarrow.compute`, or a list of
            conditions such as `[("year", ">=", 2020)]`. Files that the condition excludes by the
            names of their folders are not opened. Row groups that the condition excludes by their
            statistics are not read; in the others the first rank reads the columns of the
            condition once more beforehand, to count rows. If NaN passes the condition, as with
            `!=`, all row groups are read, since statistics leave out NaN.
        ragged: names of the columns whose arrays differ in length from row to row; they become
            `tf.RaggedTensor`s.
        pad: values that fill shorter arrays up to the longest of their batch, by column name:
            `{"tokens": 0}`. See `bucket_by`.
        decode: dtypes of the binary columns that hold numbers, by name: `{"image": "uint8"}`.
        fill: values that replace nulls, by column name; without a value a null is an error.
        **batches: see `Batches`.

    Returns:
        A dataset of features, or of `(features, labels)`, with the types of `sparkdl.data.schema`.

    Raises:
        FileNotFoundError: if there is no file.
        ConfigError: if a column does not exist, an argument is invalid, the folder is that of a
            table, or the ranks of a gang call different readers.
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
    options = {"ragged": ragged, "decode": decode, "fill": fill, "pad": pad}
    call = Call("data.parquet", {"path": path, "filter": filter, **parsed.division})
    pieces = agree(call, lambda: list_row_groups(path, filter))
    return make_dataset(ParquetSource(path, filter, options, pieces), parsed)


class ParquetSource(ArrowSource):
    """The rows of Parquet files that pass a filter; a piece is a row group.

    Args:
        path: see `parquet`.
        condition: the argument `filter` of `parquet`.
        options: the arguments `ragged`, `decode`, `fill` and `pad` of `parquet`.
        pieces: the row groups; by default this process lists them.
    """

    is_fresh = True

    def __init__(
        self,
        path: Paths,
        condition: Any,
        options: Mapping[str, Any],
        pieces: Pieces | None = None,
    ) -> None:
        pieces = list_row_groups(path, condition) if pieces is None else pieces
        self._pieces = ParquetPieces(path, condition, pieces)
        self.name = describe(path)
        self.schema = self._pieces.schema
        self.options = options
        self.sizes = [group.rows for group in self._pieces.groups]
        check_names(options, self.schema)
        self._fetches = RowGroupFetches(self._pieces)

    def read(self, ranges: Sequence[Range], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Implement `ArrowSource.read`; a batch is decoded while the previous one is used."""
        return read_ahead(self._read_alone(ranges, names))

    def read_pass(self, current: Pass, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Implement `ArrowSource.read_pass`; all lanes together ask for row groups ahead."""
        if not current.is_shuffled:
            yield from self.read(current.ranges, names)
            return
        current = self.from_first_window(current, names)
        with closing(self._ahead(current.ranges_to_read(), names)) as ahead:
            batches = mixed(current, lambda ranges: self._read(ranges, names, ahead))
            with closing(batches):  # type: ignore[type-var]
                yield from batches

    def _read_alone(
        self, ranges: Sequence[Range], names: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        with closing(self._ahead(ranges, names)) as ahead:
            yield from self._read(ranges, names, ahead)

    def _ahead(self, ranges: Sequence[Range], names: Sequence[str]) -> Ahead[int, Fetched]:
        """Return the row groups of some ranges, in about this order."""
        self._pieces.check_types(names)
        stops: dict[int, int] = {}
        for part in ranges:
            stops[part.piece] = max(part.stop, stops.get(part.piece, 0))
        files = Counter(self._pieces.groups[piece].file for piece in stops)
        unread = {file: [number, 0] for file, number in files.items()}

        def fetch(piece: int) -> Fetched:
            rows = self._pieces.groups[piece].rows
            is_whole = stops.get(piece, rows) * MIN_HEADS > rows
            return self._fetches.fetch(piece, names, unread, is_whole)

        remote = (piece for piece in stops if self._fetches.is_remote(piece))
        return Ahead(fetch, remote, GROUPS_AHEAD, self._fetches.release)

    def _read(
        self, ranges: Sequence[Range], names: Sequence[str], ahead: Ahead[int, Fetched]
    ) -> Iterator[pa.RecordBatch]:
        for part in ranges:
            yield from self._read_range(part, names, ahead.take(part.piece))

    def _read_range(
        self, part: Range, names: Sequence[str], fetched: Fetched
    ) -> Iterator[pa.RecordBatch]:
        group, num_read = self._pieces.groups[part.piece], 0
        for batch in self._decode(group, names, fetched, part.stop):
            start, stop = max(part.start - num_read, 0), min(part.stop - num_read, batch.num_rows)
            if start < stop:
                yield batch.slice(start, stop - start)
            num_read += batch.num_rows
            if num_read >= part.stop:
                return
        url = self._pieces.files[group.file].url
        if self._pieces.filter is not None:
            raise ValueError(
                f"{url}: {num_read} rows of row group {group.number} pass filter=, and "
                f"{group.rows} did when they were counted. A condition must give the same result "
                "each time."
            )
        raise ValueError(
            f"{url}: row group {group.number} has {num_read} rows; expected {group.rows} "
            "according to its footer. The file is damaged."
        )

    def _decode(
        self, group: RowGroup, names: Sequence[str], fetched: Fetched, max_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group that pass the filter, some MB at a time."""
        keys, condition = self._pieces.files[group.file].keys, self._pieces.filter
        columns_to_read = self._pieces.columns_to_read(names)
        stored_names = [name for name in columns_to_read if name not in keys]
        schema = pa.schema([self.schema.field(name) for name in columns_to_read])
        with self._open(group, fetched, max_rows) as (file, rows):
            # With a filter, the number of rows to decode is not known in advance.
            rows = rows if condition is not None else min(rows, max_rows)
            for batch in file.iter_batches(rows, row_groups=[group.number], columns=stored_names):
                yield filter_rows(batch, schema, keys, condition).select(list(names))

    @contextmanager
    def _open(
        self, group: RowGroup, fetched: Fetched, max_rows: int
    ) -> Iterator[tuple[pq.ParquetFile, int]]:
        """Yield a row group's open file, and the number of rows to decode at once."""
        file = self._pieces.files[group.file]
        try:
            rows = min(max(BATCH_BYTES // max(fetched.row_bytes, 1), 1), MAX_BATCH_ROWS)
            # With a power of two, like most batch sizes, `rebatch` cuts batches without a copy.
            rows = 1 << (rows.bit_length() - 1)
            is_head = max_rows * MIN_HEADS <= group.rows
            with self._fetches.open_group(file, fetched, is_head) as (source, options):
                yield (
                    pq.ParquetFile(
                        source,
                        metadata=fetched.footer,
                        coerce_int96_timestamp_unit=TIMESTAMP_UNIT,
                        **options,
                    ),
                    rows,
                )
        except (pa.ArrowException, OSError, IndexError) as exc:
            file.files.check(file.number)
            raise ValueError(f"{file.url}, row group {group.number}: {exc}") from exc
