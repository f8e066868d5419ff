"""Runs in the training process. Read TFRecord files of `tf.train.Example`, with TensorFlow."""

import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl import context
from sparkdl.data.agreed_pieces import Call, Pieces, agree
from sparkdl.data.arrow_arrays import to_array
from sparkdl.data.batching import Batches, make_dataset, takes_batches
from sparkdl.data.blocks import Blocks, EitherBlocks
from sparkdl.data.column_selection import ColumnSelection
from sparkdl.data.lanes import Pass
from sparkdl.data.readers.base import TensorSource, mixed
from sparkdl.data.readers.folder_columns import folder_columns, folder_values, within_folders
from sparkdl.data.readers.local_copies import LocalCopies
from sparkdl.data.readers.paths import Files, Paths, describe, find_again, urls_of
from sparkdl.data.readers.record_features import (
    RecordFeature,
    default_values,
    dense,
    inferred_features,
    parse_schema,
    tensor_feature,
)
from sparkdl.data.readers.record_index import FileParts, index_records
from sparkdl.data.readers.record_rows import RecordRows, check_changes
from sparkdl.data.schema import columns as schema_columns
from sparkdl.data.shard import Range
from sparkdl.data.tfexample.columns import Column, Kind
from sparkdl.data.tfexample.encode import encode
from sparkdl.data.tfexample.feature_lists import refuse_lists
from sparkdl.data.tfexample.framing import chunks
from sparkdl.data.tfexample.schema_inference import Inspected
from sparkdl.errors import ConfigError
from sparkdl.files import storage

# Limits of a block of records that is parsed at once.
BLOCK_ROWS = 1024
BLOCK_BYTES = 16 << 20
# The buffer of TensorFlow for a file, as in TFRecordDataset.
BUFFER_BYTES = 256 << 10
# Files that are copied before their records are needed.
FILES_AHEAD = 4

# The feature in which TensorFlow sees the number of a record's file.
FILE_NUMBER = "sparkdl:file"

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

    A feature list of a `tf.train.SequenceExample` is a column of arrays of any length, like an
    array in its context; it must have one value in each step.

    At the start the first rank counts the records of all files, for all ranks, and notes where some
    of them begin: in uncompressed local files it skips the data, and other files it reads. It keeps
    the result in the run directory for the other trials of the run and for later attempts. A folder
    that `data.write_tfrecord` has written has this index already, and is not read to count them.
    What this rank reads of remote files is copied to Spark's local disk when it is first needed;
    the copies of all ranks of a host take at most half of its free space, the oldest are removed
    before that, and all when the process ends. Several ranks may share an uncompressed file; a rank
    reads a compressed file of its share from the start, so write at least as many of these as there
    are ranks.

    A file that is written again after it was counted is an error when it is read.

    `shuffle=True` reads up to 128 files of all ranks in turn, each in random order. Their records
    are kept in memory, up to 256 MB, and on Spark's local disk beyond that, until they were read.

    Args:
        paths: a file, a folder, a pattern, or a list of these; local paths, or URLs that fsspec
            supports.
        schema: the type of each column by name: a feature of TensorFlow, such as
            `tf.io.FixedLenFeature([784], tf.float32)`; a dtype for a single value: `"int64"`,
            `"float32"` or `"string"`; or dtype and shape, such as `("float32", [28, 28])`, where
            `[None]` is any length. A `tf.io.SparseFeature` becomes a dense tensor. Other features
            are not read. By default all features of the first 1000 records (at most 32 MiB): a
            scalar if all records have one value, a shape of [n] if all have n values, otherwise
            ragged. Folders such as `year=2024` define columns in any case, as in Spark.
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
    pieces = agree(call, lambda: index_records(paths, schema, compression))
    return make_dataset(TFRecordSource(paths, schema, compression, pieces), parsed)


class TFRecordSource(TensorSource):
    """The records of TFRecord files; a piece is a file.

    Args:
        paths, schema, compression: see `tfrecord`.
        pieces: the result of `index_records` on the first rank; by default this process counts.

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
        pieces = index_records(paths, schema, compression) if pieces is None else pieces
        self.name = describe(paths)
        self.sizes = pieces["rows"]
        self._has_lists: bool = pieces["has_lists"]
        self._compressions = pieces["compressions"]
        self._record_bytes: int = max(pieces["num_bytes"] // max(sum(self.sizes), 1), 1)
        matches = find_again(paths, pieces["files"])
        sizes = [size for files in matches for size in files.sizes]
        self._parts = FileParts(sizes, pieces["mark_rows"], pieces["mark_offsets"])
        places = [(files, number) for files in matches for number in range(len(files.paths))]
        self._urls = urls_of(matches)
        self._check = functools.partial(_check_unchanged, places)
        self._copies = LocalCopies(self._urls, sizes, self._check)
        self._keys = folder_values(within_folders(matches), _scalar_types(self.features or {}))
        self._of_folders = list(dict.fromkeys(name for of_file in self._keys for name in of_file))
        if self.features is None:
            inspected = _unpack(pieces["inspected"])
            self.features = inferred_features(inspected)
            self._log_features(inspected)
        self.options = {"fill": default_values(self.features)}
        self.columns = list(dict.fromkeys([*self.features, *self._of_folders]))

    def _log_features(self, inspected: Inspected) -> None:
        if self.features and context.current().is_chief:
            text = ", ".join(f"{name}: {each.describe()}" for name, each in self.features.items())
            _logger.warning(
                "%s: the first %d of %d records have %s. Pass schema= if other records differ",
                self.name,
                inspected.records,
                sum(self.sizes),
                text,
            )

    def _num_rows(self, max_rows: int, max_bytes: int) -> int:
        """Return the number of rows within both limits, at least 1."""
        return min(max(max_bytes // self._record_bytes, 1), max_rows)

    def blocks(self, next_pass: Callable[[], Pass], selection: ColumnSelection) -> Blocks:
        """Implement `Source.blocks`; TensorFlow is not needed to read arrays."""
        features = self._stored_features(selection.names)
        tensors = super().blocks(next_pass, selection)
        others = [name for name, each in features.items() if not isinstance(each, RecordFeature)]
        if others and self._has_lists:
            raise ConfigError(
                f"schema[{others[0]!r}] is a feature of TensorFlow that the feature lists of a "
                "SequenceExample have no place for. Pass dtype and shape: ('int64', [None])."
            )
        if others:
            return tensors
        rows = RecordRows(
            self.name,
            self._urls,
            self.sizes,
            self._compressions,
            self._parts,
            features,
            self._check,
            folder_columns(self._urls, self._keys, selection.names),
        )
        if self._has_lists:  # TensorFlow's parser of Examples leaves them out.
            return rows.blocks(next_pass, selection)
        return EitherBlocks(lambda: rows.blocks(next_pass, selection), tensors)

    def _stored_features(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the features of those columns that folders do not define."""
        return {name: (self.features or {})[name] for name in names if name not in self._of_folders}

    def columns_of(self, next_pass: Callable[[], Pass], names: Sequence[str]) -> Any:
        """Implement `TensorSource.columns_of`; only a pass in order is read by TensorFlow."""
        import tensorflow as tf

        stored = self._stored_features(names)
        features = {name: tensor_feature(each) for name, each in stored.items()}
        keys = self._key_arrays(names)
        if keys:
            features[FILE_NUMBER] = tf.io.FixedLenFeature([], tf.int64)
        block_rows = self._num_rows(BLOCK_ROWS, BLOCK_BYTES)

        def passes() -> Iterator[Any]:
            current = next_pass()
            if current.is_shuffled:
                no_ranges = np.empty([0, 3], np.int64)
                yield from (
                    (no_ranges, block) for block in self._mixed(current, block_rows, bool(keys))
                )
                return
            ranges = np.array([(r.piece, r.start, r.stop) for r in current.ranges], np.int64)
            yield ranges.reshape(-1, 3), np.array([], object)

        def blocks(ranges: Any, block: Any) -> Any:
            """Return the records in order, or the block of mixed records; one of them is empty."""
            mixed_block = block[None][: tf.minimum(tf.size(block), 1)]
            return (
                self._in_order(ranges, bool(keys))
                .batch(block_rows)
                .concatenate(tf.data.Dataset.from_tensor_slices(mixed_block))
            )

        signature = (tf.TensorSpec([None, 3], tf.int64), tf.TensorSpec([None], tf.string))
        parallel = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}
        return (
            tf.data.Dataset.from_generator(passes, output_signature=signature)
            .flat_map(blocks)
            .map(functools.partial(_parsed, features, keys), **parallel)
        )

    def _key_arrays(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the values of columns that folders define, for each file."""
        arrays = folder_columns(self._urls, self._keys, names)
        kinds = pa.schema([(name, values.type) for name, values in arrays.items()])
        columns = schema_columns(kinds, [name for name in names if name in arrays])
        return {column.name: to_array(arrays[column.name], column) for column in columns}

    def _numbers_of_files(self) -> list[bytes]:
        """Return an Example with its number for each file.

        In protobuf, joined messages are one message with the fields of both.
        """
        numbers = pa.RecordBatch.from_pydict({FILE_NUMBER: range(len(self._urls))})
        return encode(numbers, [Column(FILE_NUMBER, Kind.INT64, pa.int64())])

    def _in_order(self, ranges: Any, is_numbered: bool) -> Any:
        """Return the records of ranges.

        Args:
            ranges: a tensor of (ranges, 3): piece, start, stop.
            is_numbered: give each record the number of its file.
        """
        import tensorflow as tf

        numbers = tf.constant(self._numbers_of_files() if is_numbered else [], tf.string)
        compressions = tf.constant([_TF_COMPRESSIONS[kind] for kind in self._compressions])

        def place(part: Any) -> Any:
            kinds = (tf.string, tf.int64, tf.int64)
            path, begin, skipped = tf.numpy_function(self._place, [part], kinds)
            return part, path, begin, skipped

        def records(part: Any, path: Any, begin: Any, num_skipped: Any) -> Any:
            # TFRecordDataset has no argument for the place of the first record.
            file = tf.raw_ops.TFRecordDatasetV2(
                filenames=tf.reshape(path, [1]),
                compression_type=tf.gather(compressions, part[0]),
                buffer_size=np.int64(BUFFER_BYTES),
                byte_offsets=tf.reshape(begin, [1]),
            )
            records_of_file = tf.data.experimental.from_variant(file, tf.TensorSpec([], tf.string))
            read = records_of_file.skip(num_skipped).take(part[2] - part[1])
            if is_numbered:
                number = tf.gather(numbers, part[0])
                read = read.map(lambda record: tf.strings.join([record, number]))
            # TensorFlow opens a file some time after it was checked.
            end = tf.data.Dataset.from_tensors(b"").filter(
                lambda _: tf.ensure_shape(tf.numpy_function(self._end, [part[0]], tf.bool), [])
            )
            return read.concatenate(end)

        return (
            tf.data.Dataset.from_tensor_slices(ranges)
            .map(place, num_parallel_calls=FILES_AHEAD, deterministic=True)
            .interleave(
                records,
                cycle_length=1,
                block_length=16,
                num_parallel_calls=tf.data.AUTOTUNE,
                deterministic=True,
            )
        )

    def _place(self, part: "np.ndarray[Any, Any]") -> tuple[bytes, np.int64, np.int64]:
        """Return the local path of a file, where to begin in it, and the records to skip there."""
        piece, start, stop = part.tolist()
        found = self._parts.around(piece, start, stop)
        path = self._copies.path(piece, found.begin, found.end)
        return path, np.int64(found.begin), np.int64(start - found.first)

    def _end(self, piece: Any) -> bool:
        """Check a local file that was read; remote ones are read from a copy."""
        if storage.is_local(self._urls[int(piece)]):
            self._check(int(piece))
        return False

    def _mixed(self, current: Pass, block_rows: int, is_numbered: bool) -> Iterator[Any]:
        """Yield the records of a shuffled pass in blocks of a number of rows."""
        numbers = self._numbers_of_files() if is_numbered else [b""] * len(self._urls)

        def read(ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
            return self._read(ranges, numbers)

        for batch in mixed(current, read):
            for begin in range(0, batch.num_rows, block_rows):
                block = batch.column(0).slice(begin, block_rows)
                yield block.to_numpy(zero_copy_only=False)

    def _read(self, ranges: Sequence[Range], numbers: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        """Yield the records of ranges as a column of bytes, each with the number of its file."""
        for part in ranges:
            part_of_file = self._parts.around(part.piece, part.start, part.stop)
            path = os.fsdecode(self._copies.path(part.piece, part_of_file.begin, part_of_file.end))
            compression, num_read = self._compressions[part.piece], part_of_file.first
            is_local = storage.is_local(self._urls[part.piece])
            # The copy may be removed meanwhile, and another one may get its number.
            with open(path, "rb") as open_file:
                if not is_local:
                    path = f"/proc/{os.getpid()}/fd/{open_file.fileno()}"
                read = chunks(path, compression, begin=part_of_file.begin, end=part_of_file.end)
                if is_local:
                    read = check_changes(read, self._check, part.piece, is_local)
                for _, data, spans in read:
                    record_spans = spans[
                        max(part.start - num_read, 0) : max(part.stop - num_read, 0)
                    ]
                    num_read += len(spans)
                    if record_spans:
                        number = numbers[part.piece]
                        values = [data[start:stop] + number for start, stop in record_spans]
                        yield pa.record_batch({"record": pa.array(values, pa.binary())})
                    if num_read >= part.stop:
                        break


def _parsed(features: Mapping[str, Any], keys: Mapping[str, Any], block: Any) -> dict[str, Any]:
    """Return the columns of a block of records; `keys` has those that folders define, by file."""
    import tensorflow as tf

    tensors = dense(tf.io.parse_example(refuse_lists(block), features))
    number = tensors.pop(FILE_NUMBER, None)
    return {**tensors, **{name: tf.gather(values, number) for name, values in keys.items()}}


# Not a method: the copies of a source end with it, without a wait for the garbage collector.
def _check_unchanged(places: Sequence[tuple[Files, int]], piece: int) -> None:
    files, number = places[piece]
    files.check(number)


def _scalar_types(features: Mapping[str, Any]) -> dict[str, pa.DataType]:
    """Return the types of the features that have one value."""
    return {
        name: pa.string() if feature.kind is Kind.BYTES else feature.arrow_type
        for name, feature in features.items()
        if isinstance(feature, RecordFeature) and feature.shape == ()
    }


def _unpack(inspected: Mapping[str, Any]) -> Inspected:
    return Inspected(
        inspected["records"],
        {name: Kind(kind) for name, kind in inspected["kinds"].items()},
        {name: frozenset(lengths) for name, lengths in inspected["lengths"].items()},
        frozenset(inspected["lists"]),
    )
