"""Runs in the training process.

TFRecord files of `tf.train.Example`, read by TensorFlow in its graph.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import IO, Any

import numpy as np

from sparkdl import context, storage
from sparkdl.data.batching import Batches, make_dataset, takes_batches
from sparkdl.data.readers.base import Pass, Source
from sparkdl.data.readers.paths import Paths, find, shown, urls_of
from sparkdl.data.tfexample.columns import Kind
from sparkdl.data.tfexample.framing import CHUNK_BYTES, compression_of, measure
from sparkdl.data.tfexample.schema_inference import Inspected, check_compression, inspect
from sparkdl.errors import ConfigError

__all__ = ["TFRecordSource", "tfrecord"]

# How many records are parsed at once and shuffled among each other, unless they are large.
BLOCK_ROWS, BLOCK_BYTES = 1024, 16 << 20
WINDOW_ROWS, WINDOW_BYTES = 1 << 16, 256 << 20

# From how many files records are taken in turn before they are shuffled.
SHUFFLED_FILES = 4

_DTYPES = {Kind.INT64: "int64", Kind.FLOAT: "float32", Kind.BYTES: "string"}
_OPTIONS = {None: "", "gzip": "GZIP", "zlib": "ZLIB"}


@takes_batches
def tfrecord(
    paths: Paths,
    *,
    schema: Mapping[str, Any] | None = None,
    compression: str | None = "auto",
    **batches: Any,
) -> Any:
    """This rank's share of TFRecord files of `tf.train.Example`, as a `tf.data.Dataset`.

    At the start every rank counts the records of all files: it hops over the data in plain local
    files, and reads through all others. Files that are not local are copied, those of this rank's
    share, when they are first needed; the copies are gone when the process is.

    Args:
        paths: a file, a folder, a pattern, or a list of them; local or fsspec URLs.
        schema: what each column is: any of TensorFlow's, such as `tf.io.FixedLenFeature([784],
            tf.float32)`; a dtype for one value: `"int64"`, `"float32"` or `"string"`; or dtype and
            shape, `("float32", [28, 28])`, where `[None]` is any length. Other features are not
            read. By default all features of the first 1000 records (of at most 32 MiB): where all
            of these have one value a scalar, where all have n values a shape of [n], else ragged.
        compression: `gzip`, `zlib`, None, or `auto`: each file by its first bytes.
        **batches: see `sparkdl.data.batching.Batches`.

    Returns:
        Elements are `(features, labels)`, or features alone; a column is a tensor of
        (rows, *shape), or a `tf.RaggedTensor` of (rows, None).

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: an argument is wrong, a column is not there, or there is no record to infer
            a schema from.
        ValueError: a file is damaged or cut off, or its records are no Examples. Damage to the
            data of a record shows when it is read: `tf.errors.DataLossError` names its byte.

    Example:
        >>> import tensorflow as tf
        >>> two = tf.train.Feature(float_list=tf.train.FloatList(value=[0.5, 2.0]))
        >>> record = tf.train.Example(features=tf.train.Features(feature={"x": two}))
        >>> with tf.io.TFRecordWriter("two.tfrecord") as file:
        ...     file.write(record.SerializeToString())
        >>> batches = tfrecord("*.tfrecord", schema={"x": ("float32", [2])}, global_batch_size=4)
        sparkdl: *.tfrecord: 1 rows; batches of 4; 1 steps...
        >>> list(batches.as_numpy_iterator())
        [array([[0.5, 2. ]], dtype=float32)]
    """
    parsed = Batches.parse(batches)
    return make_dataset(TFRecordSource(paths, schema, compression), parsed)


class TFRecordSource(Source):
    """TFRecord files, each a piece.

    Args:
        paths, schema, compression: see `tfrecord`.
    """

    def __init__(
        self,
        paths: Paths,
        schema: Mapping[str, Any] | None = None,
        compression: str | None = "auto",
    ) -> None:
        check_compression(compression)
        self.features = None if schema is None else _given(schema)
        files = urls_of(find(paths))
        self.name = shown(paths)
        with ThreadPoolExecutor(8) as pool:  # Each waits for its store, not for the others.
            self._compressions = list(pool.map(lambda url: compression_of(url, compression), files))
            measured = list(pool.map(measure, files, self._compressions))
        self.sizes = [rows for rows, _ in measured]
        num_bytes = sum(size for _, size in measured)
        self._record_bytes = max(num_bytes // max(sum(self.sizes), 1), 1)
        self._copies = LocalCopies(files)
        if self.features is None:
            found = inspect(files, compression)
            self.features = _inferred(found)
            self._tell(found)
        self.columns = list(self.features)

    def _tell(self, found: Inspected) -> None:
        if context.current().is_chief:
            told = ", ".join(f"{n}: {_named(found, n)}" for n in self.features or ())
            print(
                f"sparkdl: {self.name}: the first {found.records} of {sum(self.sizes)} records "
                f"have {told}. Give schema= if others differ"
            )

    def _rows(self, most: int, most_bytes: int) -> int:
        return min(max(most_bytes // self._record_bytes, 1), most)

    def blocks(self, next_pass: Callable[[], Pass], names: Sequence[str]) -> Any:
        """See `Source.blocks`."""
        import tensorflow as tf

        window = self._rows(WINDOW_ROWS, WINDOW_BYTES)
        options = tf.constant([_OPTIONS[kind] for kind in self._compressions])
        features = {name: (self.features or {})[name] for name in names}
        parallel = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}

        def passes() -> Iterator[Any]:
            this = next_pass()
            ranges = np.array([(r.piece, r.start, r.stop) for r in this.ranges], np.int64)
            # From one file after the other, and a window of one record: that is in order.
            mixed = (1, 1, 0) if this.seed is None else (SHUFFLED_FILES, window, this.seed)
            yield ranges.reshape(-1, 3), np.array(mixed, np.int64)

        def records(part: Any) -> Any:
            path = tf.numpy_function(self._copies.path, [part[0]], tf.string)
            path.set_shape([])
            whole = tf.data.TFRecordDataset(path, tf.gather(options, part[0]))
            return whole.skip(part[1]).take(part[2] - part[1])

        def one_pass(ranges: Any, mixed: Any) -> Any:
            parts = tf.data.Dataset.from_tensor_slices(ranges)
            mixture = parts.interleave(records, cycle_length=mixed[0], block_length=16, **parallel)
            return mixture.shuffle(mixed[1], seed=mixed[2])

        signature = (tf.TensorSpec([None, 3], tf.int64), tf.TensorSpec([3], tf.int64))
        return (
            tf.data.Dataset.from_generator(passes, output_signature=signature)
            .flat_map(one_pass)
            .batch(self._rows(BLOCK_ROWS, BLOCK_BYTES))
            .map(lambda batch: tf.io.parse_example(batch, features), **parallel)
        )


class LocalCopies:
    """Files as local ones, since TensorFlow reads no others. Copies vanish with this process.

    Args:
        urls: the files.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._copies: dict[int, IO[bytes]] = {}
        self._locks = [Lock() for _ in urls]

    def path(self, number: Any) -> bytes:
        """Where the file of this number is, which is copied when that is asked for first."""
        url = self._urls[number]
        if storage.is_local(url):
            return os.fsencode(storage.local_path(url))
        with self._locks[number]:
            if number not in self._copies:
                self._copies[int(number)] = _copy(url)
            # A file without a name: nothing has to remove it, however this process ends.
            return f"/proc/{os.getpid()}/fd/{self._copies[int(number)].fileno()}".encode()


def _copy(url: str) -> IO[bytes]:
    copy: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open while it is needed
    at = 0
    while block := storage.read(url, at, CHUNK_BYTES):
        at += copy.write(block)
    copy.flush()
    return copy


def _inferred(found: Inspected) -> dict[str, Any]:
    import tensorflow as tf

    def feature(name: str) -> Any:
        dtype, length = tf.as_dtype(_DTYPES[found.kinds[name]]), found.length(name)
        if length is None:
            return _ragged(dtype)
        return tf.io.FixedLenFeature([] if length == 1 else [length], dtype)

    return {name: feature(name) for name in sorted(found.kinds)}


def _named(found: Inspected, name: str) -> str:
    dtype, length = _DTYPES[found.kinds[name]], found.length(name)
    return dtype if length == 1 else f"{dtype} [{length or 'ragged'}]"


def _ragged(dtype: Any) -> Any:
    import tensorflow as tf

    # 64 bits are the default of tf.RaggedTensor, and of our other readers.
    return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)


def _given(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The features of a schema that a person gave.

    Raises:
        ConfigError: an entry is none.
    """
    if not isinstance(schema, Mapping) or not schema:
        raise ConfigError(f"schema is {schema!r}; expected a dict from names to features.")
    return {name: _feature(name, entry) for name, entry in schema.items()}


def _feature(name: str, entry: Any) -> Any:
    import tensorflow as tf

    if isinstance(entry, tf.io.VarLenFeature):
        return _ragged(entry.dtype)  # Sparse tensors cannot be batched anew.
    if hasattr(entry, "_fields"):  # TensorFlow's features are named tuples.
        return entry
    try:
        given, shape = entry if type(entry) in (tuple, list) else (entry, ())
        dtype = tf.string if given == "bytes" else tf.as_dtype(given)
        shape = [shape] if isinstance(shape, int) else list(shape)
    except (TypeError, ValueError) as error:
        raise ConfigError(_expected(name, entry)) from error
    fixed = all(isinstance(size, int) and size >= 0 for size in shape)
    if dtype.name not in _DTYPES.values() or not (fixed or shape == [None]):
        raise ConfigError(_expected(name, entry))
    return _ragged(dtype) if shape == [None] else tf.io.FixedLenFeature(shape, dtype)


def _expected(name: str, entry: Any) -> str:
    return (
        f"schema[{name!r}] is {entry!r}; expected a dtype, ('float32', [28, 28]), or a feature of "
        "tf.io. A record holds int64, float32 and string (or bytes): cast to others afterwards, "
        "with Dataset.map. [None] is an array of any length."
    )
