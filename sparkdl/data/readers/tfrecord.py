"""Runs in the training process. Read TFRecord files of `tf.train.Example`, with TensorFlow."""

import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl import context
from sparkdl.data.agreed_pieces import Call, Pieces, agree
from sparkdl.data.batching import Batches, make_dataset, takes_batches
from sparkdl.data.blocks import Blocks, EitherBlocks
from sparkdl.data.column_selection import ColumnSelection
from sparkdl.data.lanes import Pass
from sparkdl.data.readers.base import TensorSource, mixed
from sparkdl.data.readers.local_copies import LocalCopies
from sparkdl.data.readers.paths import Files, Paths, describe, find, find_again, urls_of
from sparkdl.data.readers.record_features import (
    RecordFeature,
    dense,
    inferred_features,
    parse_schema,
    tensor_feature,
)
from sparkdl.data.readers.record_rows import SLOW_BYTES, RecordRows
from sparkdl.data.shard import Range
from sparkdl.data.tfexample.columns import Kind
from sparkdl.data.tfexample.counts import counts_of
from sparkdl.data.tfexample.framing import CHUNK_BYTES, chunks, compression_of, measure
from sparkdl.data.tfexample.schema_inference import Inspected, check_compression, inspect

__all__ = ["TFRecordSource", "count_records", "tfrecord"]

# Limits of a block of records that is parsed at once.
BLOCK_ROWS = 1024
BLOCK_BYTES = 16 << 20

_TF_COMPRESSIONS = {None: "", "gzip": "GZIP", "zlib": "ZLIB"}

_logger = logging.getLogger("sparkdl.data")


@takes_batches
def tfrecord(
    paths: Paths,
    *,
    schema: Mapping[str, Any] | None = None,
    compression: str | None = "auto",
    **batches: Any,
) -> Any:
    """Return this rank's share of TFRecord files of `tf.train.Example` as a `tf.data.Dataset`.

    At the start the first rank counts the records of all files, for all ranks: in uncompressed
    local files it skips the data, and other files it reads. A folder that `data.write_tfrecord`
    has written tells the numbers of its records, and is not read to count them. Remote files of
    this rank's share are copied to Spark's local disk when they are first needed; the copies of
    all ranks of a host take at most half of its free space, the oldest are removed before that,
    and all when the process ends. A rank reads a file of its share from the start; write at least
    as many files as there are ranks.

    A file that is written again after it was counted is an error when it is read.

    `shuffle=True` reads up to 64 files of all ranks in turn. Where there are fewer files, they are
    read in several places at once, and their records are copied to Spark's local disk for this.

    Args:
        paths: a file, a folder, a pattern, or a list of these; local paths, or URLs that fsspec
            supports.
        schema: the type of each column by name: a feature of TensorFlow, such as
            `tf.io.FixedLenFeature([784], tf.float32)`; a dtype for a single value: `"int64"`,
            `"float32"` or `"string"`; or dtype and shape, such as `("float32", [28, 28])`, where
            `[None]` is any length. A `tf.io.SparseFeature` becomes a dense tensor. Other features
            are not read. By default all features of the first 1000 records (at most 32 MiB): a
            scalar if all records have one value, a shape of [n] if all have n values, otherwise
            ragged.
        compression: `gzip`, `zlib`, None, or `auto`, which detects the compression of each file
            from its first bytes.
        **batches: see `sparkdl.data.batching.Batches`.

    Returns:
        A dataset of features, or of `(features, labels)`; a column is a tensor of (rows, *shape),
        or a `tf.RaggedTensor` of (rows, None).

    Raises:
        FileNotFoundError: if there is no file.
        ConfigError: if an argument is invalid, a column does not exist, or there is no record to
            infer a schema from.
        ValueError: if a file is damaged or cut off, or its records are not Examples. Damage to the
            data of a record is found during iteration: a `tf.errors.DataLossError` names its byte.

    Example:
        >>> import tensorflow as tf
        >>> two = tf.train.Feature(float_list=tf.train.FloatList(value=[0.5, 2.0]))
        >>> record = tf.train.Example(features=tf.train.Features(feature={"x": two}))
        >>> with tf.io.TFRecordWriter("two.tfrecord") as file:
        ...     file.write(record.SerializeToString())
        >>> batches = tfrecord("*.tfrecord", schema={"x": ("float32", [2])}, global_batch_size=4)
        >>> list(batches.as_numpy_iterator())
        [array([[0.5, 2. ]], dtype=float32)]
    """
    parsed = Batches.parse(batches)
    arguments = {"paths": paths, "schema": schema, "compression": compression}
    call = Call("data.tfrecord", {**arguments, **parsed.division})
    pieces = agree(call, lambda: count_records(paths, schema, compression))
    return make_dataset(TFRecordSource(paths, schema, compression, pieces), parsed)


def count_records(
    paths: Paths, schema: Mapping[str, Any] | None, compression: str | None
) -> Pieces:
    """Return the files and their numbers of records, and the columns of the first, in JSON form.

    Args:
        paths, schema, compression: see `tfrecord`.

    Raises:
        ConfigError: if `compression` is invalid, or there is no record to infer a schema from.
        ValueError: if a file is damaged or cut off, or its records are not Examples.
    """
    check_compression(compression)
    matches = find(paths)
    urls = urls_of(matches)
    sizes = (size for files in matches for size in files.sizes)
    known = counts_of(dict(zip(urls, sizes, strict=True)))

    def count(url: str) -> tuple[str | None, int, int]:
        if (written := known.get(url)) and compression in ("auto", written.compression):
            return written.compression, written.rows, written.num_bytes
        own = compression_of(url, compression)
        return own, *measure(url, own)

    with ThreadPoolExecutor(8) as pool:  # The threads mostly wait for a store.
        counted = list(pool.map(count, urls))
    pieces: Pieces = {
        "files": [files.to_dict() for files in matches],
        "compressions": [own for own, _, _ in counted],
        "rows": [rows for _, rows, _ in counted],
        "num_bytes": sum(num_bytes for _, _, num_bytes in counted),
    }
    if schema is None:
        inspected = inspect(urls, compression)
        pieces["inspected"] = {
            "records": inspected.records,
            "kinds": {name: kind.value for name, kind in inspected.kinds.items()},
            "lengths": {name: sorted(lengths) for name, lengths in inspected.lengths.items()},
        }
    return pieces


class TFRecordSource(TensorSource):
    """The records of TFRecord files; a piece is a file.

    Args:
        paths, schema, compression: see `tfrecord`.
        pieces: the result of `count_records` on the first rank; by default this process counts.

    Attributes:
        features: the feature of each column, by name.
    """

    def __init__(
        self,
        paths: Paths,
        schema: Mapping[str, Any] | None = None,
        compression: str | None = "auto",
        pieces: Pieces | None = None,
    ) -> None:
        self.features = None if schema is None else parse_schema(schema)
        pieces = count_records(paths, schema, compression) if pieces is None else pieces
        self.name = describe(paths)
        self.sizes = pieces["rows"]
        self._compressions = pieces["compressions"]
        self._record_bytes: int = max(pieces["num_bytes"] // max(sum(self.sizes), 1), 1)
        matches = find_again(paths, pieces["files"])
        sizes = [size for files in matches for size in files.sizes]
        places = [(files, number) for files in matches for number in range(len(files.paths))]
        self._urls = urls_of(matches)
        self._check = functools.partial(_check_unchanged, places)
        self._copies = LocalCopies(self._urls, sizes, self._check)
        if self.features is None:
            inspected = _unpack(pieces["inspected"])
            self.features = inferred_features(inspected)
            self._log_features(inspected)
        self.columns = list(self.features)

    def _log_features(self, inspected: Inspected) -> None:
        if self.features and context.current().is_chief:
            _logger.warning(
                "%s: the first %d of %d records have %s. Pass schema= if other records differ",
                self.name,
                inspected.records,
                sum(self.sizes),
                ", ".join(
                    f"{name}: {feature.describe()}" for name, feature in self.features.items()
                ),
            )

    def _num_rows(self, max_rows: int, max_bytes: int) -> int:
        """Return the number of rows within both limits, at least 1."""
        return min(max(max_bytes // self._record_bytes, 1), max_rows)

    def blocks(self, next_pass: Callable[[], Pass], selection: ColumnSelection) -> Blocks:
        """Implement `Source.blocks`; TensorFlow is not needed to read arrays."""
        features = {name: (self.features or {})[name] for name in selection.names}
        tensors = super().blocks(next_pass, selection)
        if not all(isinstance(feature, RecordFeature) for feature in features.values()):
            return tensors
        rows = RecordRows(
            self.name, self._urls, self.sizes, self._compressions, features, self._check
        )
        return EitherBlocks(lambda: rows.blocks(next_pass, selection), tensors)

    def columns_of(self, next_pass: Callable[[], Pass], names: Sequence[str]) -> Any:
        """Implement `TensorSource.columns_of`; only a pass in order is read by TensorFlow."""
        import tensorflow as tf

        compressions = tf.constant([_TF_COMPRESSIONS[kind] for kind in self._compressions])
        features = {name: tensor_feature((self.features or {})[name]) for name in names}
        parallel = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}
        block_rows = self._num_rows(BLOCK_ROWS, BLOCK_BYTES)

        def passes() -> Iterator[Any]:
            current = next_pass()
            if current.is_shuffled:
                no_ranges = np.empty([0, 3], np.int64)
                yield from ((no_ranges, block) for block in self._mixed(current, block_rows))
                return
            ranges = np.array([(r.piece, r.start, r.stop) for r in current.ranges], np.int64)
            yield ranges.reshape(-1, 3), np.array([], object)

        def records(part: Any) -> Any:
            path = tf.numpy_function(self._copies.path, [part[0]], tf.string)
            path.set_shape([])
            file = tf.data.TFRecordDataset(path, tf.gather(compressions, part[0]))
            return file.skip(part[1]).take(part[2] - part[1])

        def blocks(ranges: Any, block: Any) -> Any:
            """Return the records in order, or the block of mixed records; one of them is empty."""
            parts = tf.data.Dataset.from_tensor_slices(ranges)
            in_order = parts.interleave(records, cycle_length=1, block_length=16, **parallel)
            mixed_block = block[None][: tf.minimum(tf.size(block), 1)]
            return in_order.batch(block_rows).concatenate(
                tf.data.Dataset.from_tensor_slices(mixed_block)
            )

        signature = (tf.TensorSpec([None, 3], tf.int64), tf.TensorSpec([None], tf.string))
        return (
            tf.data.Dataset.from_generator(passes, output_signature=signature)
            .flat_map(blocks)
            .map(lambda block: dense(tf.io.parse_example(block, features)), **parallel)
        )

    def _mixed(self, current: Pass, block_rows: int) -> Iterator[Any]:
        """Yield the records of a shuffled pass in blocks of a number of rows."""
        for batch in mixed(
            current, self._read, functools.partial(self._read, num_bytes=SLOW_BYTES)
        ):
            for begin in range(0, batch.num_rows, block_rows):
                block = batch.column(0).slice(begin, block_rows)
                yield block.to_numpy(zero_copy_only=False)

    def _read(
        self, ranges: Sequence[Range], num_bytes: int = CHUNK_BYTES
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of ranges as a column of bytes."""
        for part in ranges:
            path = os.fsdecode(self._copies.path(part.piece))
            num_read = 0
            for _, data, spans in chunks(path, self._compressions[part.piece], True, num_bytes):
                wanted = spans[max(part.start - num_read, 0) : max(part.stop - num_read, 0)]
                num_read += len(spans)
                if wanted:
                    values = [data[start:stop] for start, stop in wanted]
                    yield pa.record_batch({"record": pa.array(values, pa.binary())})
                if num_read >= part.stop:
                    break


# Not a method: the copies of a source end with it, without a wait for the garbage collector.
def _check_unchanged(places: Sequence[tuple[Files, int]], piece: int) -> None:
    files, number = places[piece]
    if files.has_changed(number):
        raise ValueError(
            f"{files.url(files.paths[number])} has changed since its records were counted. Start "
            "again."
        )


def _unpack(inspected: Mapping[str, Any]) -> Inspected:
    return Inspected(
        inspected["records"],
        {name: Kind(kind) for name, kind in inspected["kinds"].items()},
        {name: frozenset(lengths) for name, lengths in inspected["lengths"].items()},
    )
