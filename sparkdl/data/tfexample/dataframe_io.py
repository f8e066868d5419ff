"""Runs on the driver, and in Spark tasks for the functions that they run.

TFRecord files and DataFrames.

The tasks do without TensorFlow and without a Hadoop jar.
"""

import gzip
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparkdl import storage
from sparkdl.data.readers.paths import Paths, find, urls_of
from sparkdl.data.tfexample.columns import Column, columns_of, struct_of
from sparkdl.data.tfexample.decode import NotAnExample, decode
from sparkdl.data.tfexample.encode import encode
from sparkdl.data.tfexample.framing import CHUNK_BYTES, chunks, compression_of, frame
from sparkdl.data.tfexample.schema_inference import check_compression, inspect, not_an_example
from sparkdl.data.tfexample.to_arrow import to_batch
from sparkdl.errors import ConfigError

__all__ = ["read_tfrecord", "write_tfrecord"]

MOST_TASKS = 1000
_WRITTEN = pa.schema([("name", pa.string()), ("rows", pa.int64())])


def write_tfrecord(
    df: Any,
    path: str | os.PathLike[str],
    *,
    compression: str | None = None,
    num_files: int | None = None,
    mode: str = "error",
    hadoop_names: bool = False,
) -> int:
    """Write a DataFrame as TFRecord files of `tf.train.Example`.

    Each partition becomes one file; one without rows becomes none. The files appear when all are
    written, `_SUCCESS` after them. Tasks that Spark runs twice leave no rows behind.

    Args:
        df: the DataFrame. Booleans and whole numbers become int64 lists, float and double float
            lists (of single precision), string and binary bytes lists; arrays of these lists of
            many values; a null is a feature that its record has not.
        path: a folder that the driver and all executors see, or an fsspec URL.
        compression: None or `gzip`.
        num_files: how many files; by default as many as the DataFrame has partitions.
        mode: what if there is something at `path`: `error`, or `overwrite`, which removes it.
        hadoop_names: call the files `part-r-00000` and so on, as Hadoop does, for programs that
            look for these; by default a name is never given twice.

    Returns:
        How many rows were written.

    Raises:
        ConfigError: an argument is wrong, a column's type is not supported, or there is something
            at `path`; before any job.

    Example:
        >>> from pyspark.sql import SparkSession
        >>> spark = SparkSession.builder.getOrCreate()
        >>> df = spark.createDataFrame([(1, [0.5, 2.0]), (2, None)], "id long, x array<float>")
        >>> write_tfrecord(df, "numbers", compression="gzip", num_files=1)
        2
        >>> read_tfrecord(spark, "numbers").schema.simpleString()
        'struct<id:bigint,x:array<float>>'
    """
    columns = columns_of(df.schema)
    check_compression(compression, also=(None,))
    if compression == "zlib":
        raise ConfigError("compression is 'zlib', which can only be read; expected None or 'gzip'.")
    if num_files is not None and (isinstance(num_files, bool) or num_files < 1):
        raise ConfigError(f"num_files is {num_files!r}; expected a whole number of at least 1.")
    folder = storage.absolute(path)
    _check_free(folder, mode)
    aside = storage.join(folder, f"_temporary-{uuid.uuid4().hex}")
    df = df if num_files is None else df.repartition(num_files)
    df = df.toDF(*map(str, range(len(columns))))  # mapInArrow fails on a name with a dot.
    task = partial(_write, columns=columns, folder=aside, compression=compression)
    try:
        written = df.mapInArrow(task, "name string, rows long").collect()
        names = {row.name: _hadoop_name(row.name) if hadoop_names else row.name for row in written}
        _publish(names, aside, folder)
    finally:
        storage.remove(aside)
    return sum(row.rows for row in written)


def _check_free(folder: str, mode: str) -> None:
    if mode not in ("error", "overwrite"):
        raise ConfigError(f"mode is {mode!r}; expected 'error' or 'overwrite'.")
    filesystem, at = storage.filesystem(folder)
    if filesystem.isfile(at):
        raise ConfigError(f"{folder!r} is a file; expected a folder, there already or not.")
    if mode == "error" and storage.names(folder):
        raise ConfigError(
            f"{folder!r} is there already, and not empty. Choose another path, or "
            "mode='overwrite' to remove what is there."
        )


def _hadoop_name(name: str) -> str:
    return f"part-r-{name.split('-')[1]}"


def _publish(names: Mapping[str, str], aside: str, folder: str) -> None:
    """Move the files that count to their place, under new names, instead of what was there."""
    if missing := set(names).difference(storage.names(aside)):
        raise FileNotFoundError(
            f"the driver does not find {sorted(missing)[0]!r}, which a task wrote, in {aside!r}. "
            "Write to a folder that the driver and all executors see, such as one on NFS or S3."
        )
    for name in storage.names(folder):
        if name != os.path.basename(aside):
            storage.remove(storage.join(folder, name))
    with ThreadPoolExecutor(8) as pool:
        moves = [(f"{aside}/{name}", f"{folder}/{new}") for name, new in names.items()]
        list(pool.map(lambda move: storage.rename(*move), moves))
    storage.write(storage.join(folder, "_SUCCESS"), b"")


def _write(
    batches: Iterator[pa.RecordBatch],
    columns: Sequence[Column],
    folder: str,
    compression: str | None,
) -> Iterator[pa.RecordBatch]:
    """T. Write a partition to a file that no other attempt writes to; tell its name."""
    from pyspark import TaskContext

    context = TaskContext.get()
    part = context.partitionId() if context else 0
    ending = ".tfrecord.gz" if compression else ".tfrecord"
    name = f"part-{part:05d}-{uuid.uuid4().hex}{ending}"
    rows = 0
    with tempfile.TemporaryDirectory() as scratch:
        here = storage.local_path(folder) if storage.is_local(folder) else Path(scratch)
        here.mkdir(parents=True, exist_ok=True)
        with _opened(here / name, compression) as file:
            for batch in batches:
                batch = batch.rename_columns([column.name for column in columns])
                for piece in _pieces(batch):
                    file.write(frame(encode(piece, columns)))
                rows += batch.num_rows
        if rows and not storage.is_local(folder):
            storage.put(here, name, folder)
    if rows:
        yield pa.RecordBatch.from_pydict({"name": [name], "rows": [rows]}, _WRITTEN)


def _opened(path: Path, compression: str | None) -> Any:
    # Level 6 is zlib's own choice; gzip's is 9: much slower, hardly smaller.
    return gzip.open(path, "wb", compresslevel=6) if compression else path.open("wb")


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in slices of about the size of a chunk: encoding holds several copies."""
    rows = max(1, batch.num_rows * CHUNK_BYTES // max(batch.nbytes, 1))
    for at in range(0, batch.num_rows, rows):
        yield batch.slice(at, rows)


def read_tfrecord(
    spark: Any,
    path: Paths,
    schema: Any = None,
    *,
    strings: Sequence[str] = (),
    compression: str | None = "auto",
) -> Any:
    """TFRecord files of `tf.train.Example` as a DataFrame, read when it is used.

    Args:
        spark: the SparkSession.
        path: a file, a folder, a pattern, or a list of them; local or fsspec URLs.
        schema: a `StructType` or a DDL string such as "label long, pixels array<float>"; features
            that it does not name are not read, and those that a record has not are null. By
            default inferred from the first 1000 records (of at most 32 MiB): bigint, float or
            binary where those that have the feature all have one value, else arrays of these.
        strings: features of an inferred schema that are text (UTF-8), not binary.
        compression: `gzip`, `zlib`, None, or `auto`: each file by its first bytes.

    Returns:
        The DataFrame. A task reads one file or several.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: an argument is wrong, a type of `schema` is not supported, or there is no
            record to infer it from.
        ValueError: a file is damaged, or holds no Examples; names it, and where. Here where that
            is among the first records, else in the job that uses the DataFrame.

    Example:
        See `write_tfrecord`.
    """
    check_compression(compression)
    urls = urls_of(find(path))
    if schema is None:
        schema = _inferred(urls, compression, strings)
    elif strings:
        raise ConfigError("strings= is for an inferred schema; say 'string' in schema= instead.")
    schema = _nullable(spark, schema)
    task = partial(_read, urls=urls, columns=columns_of(schema), compression=compression)
    tasks = min(len(urls), MOST_TASKS)
    return spark.range(0, len(urls), 1, tasks).mapInArrow(task, schema)


def _inferred(urls: Sequence[str], compression: str | None, strings: Sequence[str]) -> Any:
    found = inspect(urls, compression)
    for name in strings:
        if name not in found.kinds:
            raise ConfigError(f"strings= names {name!r}; the features are {sorted(found.kinds)}.")
    # Writers disagree on the order of a map's entries, so that the names decide.
    return struct_of(((n, k, found.is_array(n)) for n, k in sorted(found.kinds.items())), strings)


def _nullable(spark: Any, schema: Any) -> Any:
    """The schema as a `StructType`. Any record may lack any feature."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructField, StructType

    try:
        parsed = spark.createDataFrame([], schema).schema
    except PySparkException as error:
        raise ConfigError(
            f"schema is {schema!r}; expected a StructType or DDL such as 'label long, pixels "
            f"array<float>': {error}"
        ) from error
    return StructType([StructField(f.name, f.dataType) for f in parsed])


def _read(
    numbers: Iterator[pa.RecordBatch],
    urls: Sequence[str],
    columns: Sequence[Column],
    compression: str | None,
) -> Iterator[pa.RecordBatch]:
    """T. The rows of the files of these numbers."""
    names = [column.name for column in columns]
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            url = urls[number]
            for offset, data, spans in chunks(url, compression_of(url, compression)):
                try:
                    yield to_batch(decode(data, spans, names), columns)
                except NotAnExample as error:
                    raise not_an_example(url, offset, error) from error
