"""Runs on the driver, and in Spark tasks. Write a DataFrame as a dataset of petastorm.

Spark tasks encode the values and write Parquet files. The driver adds a file `_common_metadata`
with the Unischema, a pickle, and the number of row groups of each file; petastorm reads both.
"""

import functools
import importlib
import io
import json
import os
import pickle
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl.data.readers.petastorm import compat
from sparkdl.data.readers.petastorm.schema import is_encoded
from sparkdl.data.schema import arrow_type
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.options import check_count
from sparkdl.spark.python import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The dtypes of scalar fields in a Unischema, by the `typeName()` of Spark's `DataType`.
_SCALARS: dict[str, Any] = {
    "byte": np.int8,
    "short": np.int16,
    "integer": np.int32,
    "long": np.int64,
    "float": np.float32,
    "double": np.float64,
    "boolean": np.bool_,
    "string": np.str_,
    "binary": np.bytes_,
    "date": np.datetime64,
    "timestamp": np.datetime64,
    "timestamp_ntz": np.datetime64,
    "decimal": Decimal,
}
_ADVICE = {
    "vectorudt": "Convert it to an array: pyspark.ml.functions.vector_to_array(column, 'float32').",
    "struct": "Select its fields as separate columns: df.select('s.*').",
    "map": "Select the values that are needed as columns: df.select(df.m['key']).",
}


def materialize(
    df: "DataFrame",
    url: str,
    unischema: Any = None,
    *,
    row_group_size_mb: int = 32,
    rows_per_file: int | None = None,
) -> Any:
    """Write a DataFrame as a dataset with a Unischema, for `data.petastorm` and petastorm itself.

    Args:
        df: the rows. A column for an array field holds (nested) arrays of numbers, or the numbers
            as bytes or as one flat array, in C order.
        url: a folder that does not exist yet: a path or URL that driver and executors share.
        unischema: a `petastorm.unischema.Unischema` with the columns of `df`. By default derived
            from `df`: arrays of numbers are encoded with `NdarrayCodec`, in the shape of the first
            array.
        row_group_size_mb: maximum size of a row group in MiB, before compression.
        rows_per_file: maximum number of rows of a file; by default each partition is one file.

    Returns:
        The Unischema.

    Raises:
        ImportError: if petastorm is not installed.
        ConfigError: if an argument is invalid, or a column has no codec; nothing is written.

    Example:
        >>> from sparkdl import data
        >>> schema = data.petastorm.materialize(df, "s3a://bucket/cats")  # doctest: +SKIP
    """
    compat.load()
    check_count("row_group_size_mb", row_group_size_mb)
    if rows_per_file is not None:
        check_count("rows_per_file", rows_per_file)
    url = storage.absolute(url)
    if storage.exists(url):
        raise ConfigError(f"{url} exists already; remove it first, or choose another url.")
    schema = unischema or _derive_unischema(df)
    encoded = _encode_columns(df, schema)
    writer = encoded.write.option("parquet.block.size", row_group_size_mb << 20)
    # Check the size of a page after 3 rows (default 100), because a row may be an image.
    writer = writer.option("parquet.page.size.row.check.min", 3)
    writer = writer.option("maxRecordsPerFile", rows_per_file or 0)
    try:
        writer.parquet(f"file://{url}" if storage.is_local(url) else url)
    except BaseException:
        if not storage.list_names(url):  # Spark leaves an empty folder.
            storage.remove(url)
        raise
    try:
        _write_metadata(url, schema)
    except BaseException:
        storage.remove(url)  # Without the metadata it would be read as plain Parquet.
        raise
    return schema


def _write_metadata(url: str, schema: Any) -> None:
    """Write the file `_common_metadata`.

    petastorm's `materialize_dataset` writes the same file, but it needs a SparkContext, which is
    missing in Spark Connect, and changes Hadoop's configuration for the whole session. It also
    writes to the store through pyarrow, which asks for positions that files on HDFS do not tell.
    """
    metadata: Any = importlib.import_module("petastorm.etl.dataset_metadata")
    filesystem, path = storage.filesystem(url)
    dataset = compat.ParquetDataset(path, filesystem)
    names = [os.path.relpath(piece.path, path) for piece in dataset.pieces]
    footers = dataset.footers()
    counts = {name: f.num_row_groups for name, f in zip(names, footers, strict=True)}
    stored_schema = footers[0].schema.to_arrow_schema()
    new_metadata = {
        metadata.UNISCHEMA_KEY: pickle.dumps(schema),
        metadata.ROW_GROUPS_PER_FILE_KEY: json.dumps(counts),
    }
    buffer = io.BytesIO()
    pq.write_metadata(
        stored_schema.with_metadata({**(stored_schema.metadata or {}), **new_metadata}), buffer
    )
    storage.write(storage.join(url, "_common_metadata"), buffer.getvalue())


def _derive_unischema(df: "DataFrame") -> Any:
    """Return a Unischema for the columns of a DataFrame.

    Raises:
        ConfigError: if a column has no codec.
    """
    unischema: Any = importlib.import_module("petastorm.unischema")
    codecs: Any = importlib.import_module("petastorm.codecs")
    fields = []
    for column in df.schema.fields:
        kind = column.dataType
        shape: tuple[int, ...] = ()
        name = kind.typeName()
        if name == "array":
            dtype, shape = _array_dtype(column), _first_shape(df, column.name)
            codec = codecs.NdarrayCodec()
        elif name in _SCALARS:
            dtype = _SCALARS[name]
            # ScalarCodec refuses bytes.
            codec = None if name == "binary" else codecs.ScalarCodec(kind)
        else:
            raise ConfigError(
                f"column {column.name!r} is {kind.simpleString()}, which has no codec. "
                f"{_ADVICE.get(name, 'Cast it, or leave it out.')}"
            )
        fields.append(unischema.UnischemaField(column.name, dtype, shape, codec, column.nullable))
    return unischema.Unischema("derived", fields)


def _array_dtype(column: Any) -> Any:
    kind = column.dataType
    while kind.typeName() == "array":
        kind = kind.elementType
    dtype = _SCALARS.get(kind.typeName())
    if dtype is None or np.dtype(dtype).kind not in "biuf":
        raise ConfigError(
            f"column {column.name!r} is {column.dataType.simpleString()}; only arrays of numbers "
            "have a codec. Split it into columns, or leave it out."
        )
    return dtype


def _first_shape(df: "DataFrame", name: str) -> tuple[int, ...]:
    values = df[_quoted(name)]
    first = df.select(values).where(values.isNotNull()).first()
    if first is None:
        raise ConfigError(
            f"column {name!r} has no array to take the shape from. Pass a Unischema with the shape."
        )
    return np.shape(first[0])


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _encode_columns(df: "DataFrame", schema: Any) -> "DataFrame":
    """Return the DataFrame to write, with columns of the codecs' types.

    Raises:
        ConfigError: if the Unischema and the DataFrame have different columns.
    """
    from pyspark.sql.types import StructField, StructType

    fields = list(schema.fields.values())
    names = [field.name for field in fields]
    if sorted(names) != sorted(df.columns):
        raise ConfigError(
            f"the Unischema has the fields {', '.join(names)}; the DataFrame has the columns "
            f"{', '.join(df.columns)}. Select the same columns."
        )
    columns, stored_fields = [], []
    for number, field in enumerate(fields):
        column = df[_quoted(field.name)]
        kind = field.codec.spark_dtype() if field.codec else df.schema[field.name].dataType
        # The columns are renamed to numbers: mapInArrow fails on a name with a dot.
        columns.append((column if is_encoded(field) else column.cast(kind)).alias(str(number)))
        stored_fields.append(StructField(field.name, kind, field.nullable))
    # Pickled separately: a task must call compat.load before it unpickles objects of petastorm.
    encode = functools.partial(_encode_batches, pickled=pickle.dumps(schema))
    return map_in_arrow(df.select(columns), encode, StructType(stored_fields))


def _encode_batches(batches: Iterator[pa.RecordBatch], pickled: bytes) -> Iterator[pa.RecordBatch]:
    compat.load()
    fields = pickle.loads(pickled).fields
    for batch in batches:
        columns = []
        for field, column in zip(fields.values(), batch.columns, strict=True):
            if column.null_count and not field.nullable:
                raise ValueError(
                    f"column {field.name!r} has a null, but its field in the Unischema is not "
                    "nullable."
                )
            if is_encoded(field):
                kind = arrow_type(field.codec.spark_dtype())
                column = pa.array([_encode_value(field, value) for value in column], kind)
            columns.append(column)
        yield pa.RecordBatch.from_arrays(columns, names=list(fields))


def _encode_value(field: Any, value: pa.Scalar) -> Any:
    if not value.is_valid:
        return None
    try:
        encoded = field.codec.encode(
            field, _to_array(value, field) if field.shape else value.as_py()
        )
    except (ValueError, pa.ArrowInvalid) as exc:
        raise ValueError(
            f"column {field.name!r} does not fit its field in the Unischema, of shape "
            f"{field.shape} and {np.dtype(field.numpy_dtype)}: {exc} If lengths differ between "
            "rows, pass a Unischema that has None for them."
        ) from exc
    return bytes(encoded) if isinstance(encoded, bytearray) else encoded


def _to_array(value: pa.Scalar, field: Any) -> "np.ndarray[Any, Any]":
    """Return the array in one row of a column of binary values, or of (nested) lists."""
    if pa.types.is_binary(value.type):
        array = np.frombuffer(value.as_py(), field.numpy_dtype)
    else:
        values, shape = value.values, [len(value.values)]
        while pa.types.is_list(values.type):
            lengths = set(values.value_lengths().to_pylist()) or {0}
            if len(lengths) > 1:
                raise ValueError(f"an array has rows of the lengths {sorted(lengths, key=str)}.")
            shape.append(lengths.pop() or 0)
            values = values.flatten()
        if values.null_count:
            raise ValueError(f"an array has {values.null_count} nulls in it.")
        values = values.cast(pa.from_numpy_dtype(field.numpy_dtype))
        array = values.to_numpy(zero_copy_only=False).reshape(shape)
    if array.ndim == 1 and len(field.shape) > 1:
        return array.reshape([-1 if size is None else size for size in field.shape])
    return array
