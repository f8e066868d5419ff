"""Runs on the driver, and in Spark tasks. Read TFRecord files as a DataFrame.

The tasks need neither TensorFlow nor a Hadoop jar.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from sparkdl.data.readers.folder_columns import (
    folder_columns,
    folder_texts,
    folder_values,
    with_folder_columns,
    within_folders,
)
from sparkdl.data.readers.paths import Files, Paths, find, urls_of
from sparkdl.data.schema import arrow_type
from sparkdl.data.tfexample.columns import Column, columns_of, struct_of
from sparkdl.data.tfexample.decode import NotAnExample, decode
from sparkdl.data.tfexample.framing import chunks, compression_of
from sparkdl.data.tfexample.schema_inference import check_compression, inspect, not_an_example
from sparkdl.data.tfexample.to_arrow import to_batch
from sparkdl.errors import ConfigError
from sparkdl.spark.python import map_in_arrow
from sparkdl.spark.versions import check_session

MAX_TASKS = 1000


def read_tfrecord(
    spark: Any,
    path: Paths,
    schema: Any = None,
    *,
    strings: Sequence[str] = (),
    compression: str | None = "auto",
) -> Any:
    """Return a DataFrame of TFRecord files of `tf.train.Example`, which Spark reads lazily.

    Args:
        spark: the SparkSession.
        path: a file, a folder, a pattern, or a list of these; local paths, or URLs that fsspec
            supports.
        schema: a `StructType` or a DDL string such as "label long, pixels array<float>". Features
            that are not in the schema are not read; features that are absent in a record are null.
            By default the schema is inferred from the first 1000 records (at most 32 MiB): bigint,
            float or binary if all records with the feature have one value, otherwise arrays.
            Folders such as `year=2024` define columns in any case, as in Spark.
        strings: names of features of an inferred schema that are text (UTF-8), not binary.
        compression: `gzip`, `zlib`, None, or `auto`, which detects the compression of each file
            from its first bytes.

    Returns:
        The DataFrame. A task reads one or more files.

    Raises:
        FileNotFoundError: if there is no file.
        ConfigError: if an argument is invalid, a type of `schema` is not supported, there is no
            record to infer a schema from, or a version is not supported.
        ValueError: if a file is damaged, or its records are not Examples; the message names the
            file and the position. Damage after the first records raises in the job that uses the
            DataFrame.

    Example:
        See `write_tfrecord`.
    """
    check_session(spark)
    check_compression(compression)
    matches = find(path)
    urls = urls_of(matches)
    if schema is not None and strings:
        raise ConfigError("strings= is for an inferred schema; use 'string' in schema= instead.")
    fields = None if schema is None else _parse_schema(spark, schema)
    keys = _folder_columns(matches, fields or [])
    schema = fields or _parse_schema(spark, _infer_schema(urls, compression, strings))
    schema = _with_folder_columns(schema, keys)
    features = type(schema)([field for field in schema if field.name not in keys])
    columns = columns_of(features) if len(features) else []
    task = partial(
        _read, urls=urls, columns=columns, names=schema.names, keys=keys, compression=compression
    )
    num_tasks = min(len(urls), MAX_TASKS)
    return map_in_arrow(spark.range(0, len(urls), 1, num_tasks), task, schema)


def _folder_columns(matches: Sequence[Files], fields: Iterable[Any]) -> dict[str, pa.Array]:
    """Return the values of the columns that folders define, one for each file.

    Args:
        matches: the files.
        fields: the fields of the user's schema.
    """
    paths = within_folders(matches)
    names = {name for path in paths for name in folder_texts(path)}
    kinds = {f.name: arrow_type(f.dataType) for f in fields if f.name in names}
    return folder_columns(urls_of(matches), folder_values(paths, kinds))


def _with_folder_columns(schema: Any, keys: Mapping[str, pa.Array]) -> Any:
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    kinds = {f.name: f.dataType for f in schema}
    kinds |= {name: from_arrow_type(values.type) for name, values in keys.items()}
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def _infer_schema(urls: Sequence[str], compression: str | None, strings: Sequence[str]) -> Any:
    inspected = inspect(urls, compression)
    kinds = inspected.kinds
    for name in strings:
        if name not in kinds:
            raise ConfigError(f"strings= names {name!r}; the features are {sorted(kinds)}.")
    # Sorted by name, because writers differ in the order of a map's entries.
    features = ((name, kinds[name], inspected.is_array(name)) for name in sorted(kinds))
    return struct_of(features, strings)


def _parse_schema(spark: Any, schema: Any) -> Any:
    """Return the user's schema as a `StructType` of nullable columns.

    All columns are nullable, because any feature may be absent in a record.
    """
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
    names: Sequence[str],
    keys: Mapping[str, pa.Array],
    compression: str | None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files in a task; the batches hold the files' numbers in `urls`."""
    features = [column.name for column in columns]
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            url = urls[number]
            values = {name: of_files[number] for name, of_files in keys.items()}
            for offset, data, spans in chunks(url, compression_of(url, compression)):
                try:
                    read = to_batch(decode(data, spans, features), columns)
                except NotAnExample as error:
                    raise not_an_example(url, offset, error) from error
                yield with_folder_columns(read, len(spans), names, values)
