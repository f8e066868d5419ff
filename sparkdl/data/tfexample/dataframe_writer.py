"""Runs on the driver, and in Spark tasks. Write DataFrames as TFRecord files.

The tasks need neither TensorFlow nor a Hadoop jar.
"""

import gzip
import logging
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from sparkdl.data.tfexample.columns import Column, columns_of
from sparkdl.data.tfexample.counts import SUCCESS, FileCount, pack_counts
from sparkdl.data.tfexample.encode import encode
from sparkdl.data.tfexample.framing import CHUNK_BYTES, ends, frame
from sparkdl.data.tfexample.marks import MAX_MARKS, Marks
from sparkdl.data.tfexample.schema_inference import check_compression
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.host.local_disk import local_disk
from sparkdl.options import check_count
from sparkdl.spark.python import map_in_arrow

_logger = logging.getLogger("sparkdl.data")

# Names in the temporary folder: old files of the same names as new ones, and a file that shows
# readers that the folder is changing.
_REPLACED = "replaced"
_PUBLISHING = "publishing"
# The driver gets the marks of all files: fewer of each file if their number is not known.
USUAL_FILES = 256
_WRITTEN_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("rows", pa.int64()),
        ("size", pa.int64()),
        ("num_bytes", pa.int64()),
        ("mark_rows", pa.list_(pa.int64())),
        ("mark_offsets", pa.list_(pa.int64())),
        ("has_values", pa.list_(pa.bool_())),
    ]
)


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

    Each partition with rows becomes one file. The files appear in `path` when all of them have
    been written, and `_SUCCESS` appears last; until then the readers refuse the folder. If the
    write fails, the old content of the folder is unchanged. A task that Spark runs twice writes its
    rows once.

    There is no `append`, no `partitionBy` and no `tf.train.SequenceExample`: write further rows to
    a folder of their own, and read a list of folders.

    Args:
        df: the DataFrame. Booleans and integers become int64 lists, float and double become float
            lists (of float32), string and binary become bytes lists; arrays become lists of many
            values; a null becomes an absent feature. The log names columns of double, whose values
            are rounded, and of nulls alone.
        path: a folder that the driver and all executors can access, or an fsspec URL.
        compression: None or `gzip`.
        num_files: number of files; by default the number of partitions of the DataFrame.
        mode: behavior if `path` exists and is not empty: `error`, or `overwrite`, which removes its
            content.
        hadoop_names: name the files `part-r-00000` and so on, like Hadoop, for programs that
            expect these names; by default every name is unique.

    Returns:
        The number of rows that were written.

    Raises:
        ConfigError: if an argument is invalid, a column's type is not supported, or `path` exists
            and is not empty; no job has been started.
        PythonException: of Spark, from a task: if float32 has no finite number for a double, or an
            array has a null in it.

    Example:
        >>> from pyspark.sql import SparkSession
        >>> from sparkdl.data import read_tfrecord
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
    if num_files is not None:
        check_count("num_files", num_files)
    folder = storage.absolute(path)
    _check_target(folder, mode)
    if doubles := [f"{c.name!r}" for c in columns if types.is_float64(c.type)]:
        _logger.info("%s: doubles are rounded to float32: %s", folder, ", ".join(doubles))
    temporary = storage.join(folder, f"_temporary-{uuid.uuid4().hex}")
    df = df if num_files is None else df.repartition(num_files)
    df = df.toDF(*map(str, range(len(columns))))  # mapInArrow fails on a name with a dot.
    task = partial(
        _write,
        columns=columns,
        folder=temporary,
        compression=compression,
        max_marks=MAX_MARKS // (num_files or USUAL_FILES),
    )
    try:
        fields = (
            "name string, rows long, size long, num_bytes long, mark_rows array<long>, "
            "mark_offsets array<long>, has_values array<boolean>"
        )
        files = map_in_arrow(df, task, fields).collect()
        names = {row.name: _hadoop_name(row.name) if hadoop_names else row.name for row in files}
        _check_written(names, temporary)
    except BaseException:
        storage.remove(temporary)
        raise
    counts = {}
    _warn_of_nulls([c.name for c in columns], [row.has_values for row in files], folder)
    for row in files:
        file = row.asDict()
        del file["has_values"]
        name = names[file.pop("name")]
        counts[name] = FileCount(**file, compression=compression)
    _publish(names, temporary, folder, pack_counts(counts))
    return sum(row.rows for row in files)


def _warn_of_nulls(names: Sequence[str], has_values: Sequence[Sequence[bool]], folder: str) -> None:
    """Name the columns that no file has a value of.

    Args:
        names: names of the columns.
        has_values: for each file, for each column, True if it has a value that is not null.
    """
    found = [any(of_column) for of_column in zip(*has_values, strict=True)]
    if nulls := [name for name, has_any in zip(names, found, strict=False) if not has_any]:
        _logger.warning(
            "%s: column %s has only nulls, and a TFRecord has no place for it: it is not there "
            "when the files are read, unless schema= names it",
            folder,
            ", ".join(map(repr, nulls)),
        )


def _check_target(folder: str, mode: str) -> None:
    if mode not in ("error", "overwrite"):
        raise ConfigError(f"mode is {mode!r}; expected 'error' or 'overwrite'.")
    filesystem, folder_path = storage.filesystem(folder)
    if filesystem.isfile(folder_path):
        raise ConfigError(f"{folder!r} is a file; expected a folder, existing or not.")
    if mode == "error" and storage.list_names(folder):
        raise ConfigError(
            f"{folder!r} exists already and is not empty. Choose another path, or "
            "mode='overwrite' to remove its content."
        )


def _hadoop_name(name: str) -> str:
    return f"part-r-{name.split('-')[1]}"


def _check_written(names: Mapping[str, str], temporary: str) -> None:
    if missing := set(names).difference(storage.list_names(temporary)):
        raise FileNotFoundError(
            f"the driver does not find {sorted(missing)[0]!r}, which a task wrote, in "
            f"{temporary!r}. Write to a folder that the driver and all executors can access, such "
            "as one on NFS or S3."
        )


def _publish(names: Mapping[str, str], temporary: str, folder: str, counts: bytes = b"") -> None:
    """Replace the content of the target folder with the written files.

    If a file cannot be moved, the old content is restored. From the first change until the last,
    the folder has a file in a temporary folder and no `_SUCCESS`, and readers refuse such a folder:
    no reader takes a part of the files, even if this process is killed here.

    Args:
        names: the final name of each file, by its name in the temporary folder. Files of other
            task attempts are not moved.
        temporary: the folder that the tasks have written to.
        folder: the target folder, which contains the temporary folder.
        counts: the content of `_SUCCESS`.
    """
    final = set(names.values())
    old = set(storage.list_names(folder)) - {os.path.basename(temporary), SUCCESS}
    was_complete = storage.exists(storage.join(folder, SUCCESS))
    replaced = {name: storage.join(temporary, _REPLACED, name) for name in old & final}
    try:
        storage.write(storage.join(temporary, _PUBLISHING), b"")
        storage.remove(storage.join(folder, SUCCESS))
        _move({storage.join(folder, name): copy for name, copy in replaced.items()})
        moves = names.items()
        _move({storage.join(temporary, n): storage.join(folder, target) for n, target in moves})
    except BaseException:
        for name in final:
            if name not in old or storage.exists(replaced[name]):
                storage.remove(storage.join(folder, name))
        _move({copy: storage.join(folder, name) for name, copy in replaced.items()})
        if was_complete:
            storage.write(storage.join(folder, SUCCESS), b"")
        storage.remove(temporary)
        raise
    for name in old - final:
        storage.remove(storage.join(folder, name))
    if old_names := sorted((old - final).intersection(storage.list_names(folder))):
        raise OSError(
            f"{folder!r} has the new files, but {old_names[0]!r} of the old content cannot be "
            "removed. Readers refuse the folder. Remove its content and write again."
        )
    storage.write(storage.join(folder, SUCCESS), counts)
    storage.remove(temporary)


def _move(targets: Mapping[str, str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda move: storage.rename(*move), targets.items()))


def _write(
    batches: Iterator[pa.RecordBatch],
    columns: Sequence[Column],
    folder: str,
    compression: str | None,
    max_marks: int = MAX_MARKS,
) -> Iterator[pa.RecordBatch]:
    """Write a partition to a file of its own in a task; yield what is to be known of the file.

    Every attempt at a task writes another file.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    partition = context.partitionId() if context else 0
    suffix = ".tfrecord.gz" if compression else ".tfrecord"
    name = f"part-{partition:05d}-{uuid.uuid4().hex}{suffix}"
    marks = Marks(max_marks=max(max_marks, 1))
    has_values = np.zeros(len(columns), bool)
    with tempfile.TemporaryDirectory(dir=local_disk()) as scratch:
        local_folder = storage.local_path(folder) if storage.is_local(folder) else Path(scratch)
        local_folder.mkdir(parents=True, exist_ok=True)
        with _open(local_folder / name, compression) as file:
            for batch in batches:
                has_values |= [array.null_count < len(array) for array in batch.columns]
                batch = batch.rename_columns([column.name for column in columns])
                for piece in _split(batch):
                    records = encode(piece, columns)
                    marks.add(ends(records, marks.end))
                    file.write(frame(records))
        size = (local_folder / name).stat().st_size
        if marks.rows_seen and not storage.is_local(folder):
            storage.put(local_folder, name, folder)
    if marks.rows_seen:
        file_row = {
            "name": name,
            "rows": marks.rows_seen,
            "size": size,
            "num_bytes": marks.end,
            "mark_rows": [0] if compression else marks.rows,
            "mark_offsets": [0] if compression else marks.offsets,
            "has_values": has_values.tolist(),
        }
        yield pa.RecordBatch.from_pylist([file_row], _WRITTEN_SCHEMA)


def _open(path: Path, compression: str | None) -> Any:
    # Level 6 is zlib's default. Level 9, Python's default for gzip, is much slower and hardly
    # smaller.
    return gzip.open(path, "wb", compresslevel=6) if compression else path.open("wb")


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch into slices of about 8 MiB, because encoding holds several copies."""
    rows = max(1, batch.num_rows * CHUNK_BYTES // max(batch.nbytes, 1))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
