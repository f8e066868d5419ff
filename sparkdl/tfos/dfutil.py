"""Runs on the driver and in Spark tasks. Convert between DataFrames and TFRecord files.

Each row is stored as a `tf.train.Example`, with one feature for each column, see
`sparkdl.data.tfexample.columns`. The module needs neither TensorFlow nor a Hadoop jar.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, islice
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl.data import read_tfrecord, write_tfrecord
from sparkdl.data.readers.paths import find, urls_of
from sparkdl.data.tfexample.columns import Column, Kind, columns_of
from sparkdl.data.tfexample.decode import Examples, decode
from sparkdl.data.tfexample.encode import encode
from sparkdl.data.tfexample.framing import chunks, compression_of
from sparkdl.data.tfexample.schema_inference import inspect
from sparkdl.data.tfexample.to_arrow import values_of
from sparkdl.errors import ConfigError
from sparkdl.tfos import paths
from sparkdl.tfos.absent_names import absent_names
from sparkdl.tfos.classic_spark import check_context, check_session

__all__ = [
    "fromTFExample",
    "infer_schema",
    "isLoadedDF",
    "loadTFRecords",
    "loadedDF",
    "saveAsTFRecords",
    "toTFExample",
]

__getattr__ = absent_names(__name__, __all__)

# The DataFrames that `loadTFRecords` has returned, with their `input_dir`.
loadedDF: "WeakKeyDictionary[DataFrame, str]" = WeakKeyDictionary()

# A comma outside braces: Hadoop's `{a,b}` stands for alternatives in one path.
_COMMA = re.compile(r",(?![^{]*\})")

# Number of rows that are converted to records, or back, at once.
CHUNK_ROWS = 1000

_SCALARS = {
    **{kind.simpleString(): kind for kind in (T.BooleanType(), T.ByteType(), T.ShortType())},
    **{kind.simpleString(): kind for kind in (T.IntegerType(), T.LongType(), T.FloatType())},
    **{kind.simpleString(): kind for kind in (T.DoubleType(), T.StringType(), T.BinaryType())},
    "long": T.LongType(),
}


def isLoadedDF(df: DataFrame) -> bool:
    """Return True if `loadTFRecords` has returned this DataFrame.

    The result is False for DataFrames that are derived from a returned DataFrame.
    """
    return df in loadedDF


def saveAsTFRecords(df: DataFrame, output_dir: str) -> None:
    """Write a DataFrame as TFRecord files `part-r-00000` and so on, one for each partition.

    Args:
        df: a DataFrame with columns of booleans, numbers, strings or bytes, or of arrays of these
            types. A null becomes a missing feature. Doubles are stored in single precision.
        output_dir: a folder that does not exist or is empty. A path without a scheme is on the
            default filesystem of Spark.

    Raises:
        ConfigError: if the folder is not empty, or a column has another type. No Spark job was
            started.

    Example:
        >>> spark = SparkSession.builder.getOrCreate()
        >>> df = spark.createDataFrame([(1, [0.5, 2.0], "one")], "id int, x array<float>, s string")
        >>> saveAsTFRecords(df, "numbers")
        >>> loadTFRecords(spark.sparkContext, "numbers").collect()
        [Row(id=1, s='one', x=[0.5, 2.0])]
    """
    check_session(df, "dfutil.saveAsTFRecords")
    folder = _absolute(df.sparkSession.sparkContext, output_dir)
    write_tfrecord(df, folder, hadoop_names=True)


def loadTFRecords(sc: Any, input_dir: str, binary_features: Sequence[str] = ()) -> DataFrame:
    """Return the records of TFRecord files as a DataFrame, with one column for each feature.

    Columns are sorted by name. Integers become bigint, floats double, and bytes become strings
    (UTF-8) or binary. A numeric column is an array if one of the first 1000 records does not have
    exactly one value. A string column is an array if the first record has several values. A binary
    column is never an array: the first value of a record is used.

    Args:
        sc: the SparkContext.
        input_dir: a folder, file or pattern, or several separated by commas; `{a,b}` in a path
            stands for alternatives. A path without a scheme is on the default filesystem of Spark.
            Compressed files are recognized.
        binary_features: the features that are bytes, not text; unknown names are ignored.

    Returns:
        The DataFrame, which is read when it is used. A missing feature is null.

    Raises:
        FileNotFoundError: if there is no such file.
        ConfigError: if there is no record, or a binary feature contains numbers.
        ValueError: if a file is corrupt or does not contain Examples.

    Example:
        See `saveAsTFRecords`.
    """
    check_context(sc, "dfutil.loadTFRecords")
    locations = [_absolute(sc, path) for path in _COMMA.split(input_dir)]
    urls = urls_of(find(locations))
    schema, scalars = _infer(urls, binary_features)
    df = read_tfrecord(SparkSession.builder.getOrCreate(), urls, schema)
    df = df.select(*(_column(name, name in scalars) for name in schema.names))
    loadedDF[df] = input_dir
    return df


def _absolute(sc: Any, path: str) -> str:
    return paths.absolute(path, paths.default_filesystem(sc), os.getcwd())


def _column(name: str, is_scalar: bool) -> Any:
    quoted = "`" + name.replace("`", "``") + "`"
    return F.get(quoted, F.lit(0)).alias(name) if is_scalar else F.col(quoted)


def _infer(urls: Sequence[str], binary_features: Sequence[str]) -> tuple[Any, set[str]]:
    """Return the schema for reading the files, and the columns of which the first value is used.

    In the schema all columns of bytes are arrays.
    """
    inferred = inspect(urls, "auto")
    first_record = _first_record(urls)
    schema = T.StructType()
    scalars = set()
    numeric_types = {Kind.INT64: T.LongType(), Kind.FLOAT: T.DoubleType()}
    for name, kind in sorted(inferred.kinds.items()):
        if kind is Kind.BYTES:
            is_binary = name in binary_features
            schema.add(name, T.ArrayType(T.BinaryType() if is_binary else T.StringType()))
            if is_binary or len(first_record.get(name, ())) <= 1:
                scalars.add(name)
        elif name in binary_features:
            raise ConfigError(
                f"binary_features contains {name!r}, which has {kind.name} values; expected "
                "bytes. Remove the name from binary_features."
            )
        else:
            number = numeric_types[kind]
            schema.add(name, T.ArrayType(number) if inferred.is_array(name) else number)
    return schema, scalars


def _first_record(urls: Iterable[str]) -> dict[str, list[Any]]:
    """Return the values of the first record by feature; empty if there is no record."""
    for url in urls:
        for _, data, spans in chunks(url, compression_of(url)):
            examples = decode(data, spans[:1], None)
            return {name: values_of(examples, name)[0].to_pylist() for name in examples.features}
    return {}


# ---- rows and records


def toTFExample(
    dtypes: Sequence[tuple[str, str]],
) -> Callable[[Iterable[Any]], list[tuple[bytearray, None]]]:
    """Return a function for `rdd.mapPartitions` that converts rows to `tf.train.Example` records.

    Args:
        dtypes: `df.dtypes` of the DataFrame of the rows.

    Returns:
        A function that returns `(record, None)` for each row, with the serialized Example.

    Raises:
        ConfigError: if an Example cannot store a type.

    Example:
        >>> toTFExample([("id", "bigint")])([Row(id=7)])
        [(bytearray(b'\\n\\r\\n\\x0b\\n\\x02id\\x12\\x05\\x1a\\x03\\n\\x01\\x07'), None)]
    """
    schema = T.StructType([T.StructField(name, _type(name, dtype)) for name, dtype in dtypes])
    return partial(_to_records, columns=columns_of(schema))


def _type(name: str, dtype: str) -> Any:
    inner = dtype[len("array<") : -1] if dtype.startswith("array<") else dtype
    if inner not in _SCALARS:
        raise ConfigError(
            f"column {name!r}: unsupported dtype {dtype!r}; expected one of "
            f"{', '.join(_SCALARS)}, or an array<> of one. Cast or drop the column."
        )
    return _SCALARS[inner] if inner == dtype else T.ArrayType(_SCALARS[inner])


def _to_records(rows: Iterable[Any], columns: Sequence[Column]) -> list[tuple[bytearray, None]]:
    names = [column.name for column in columns]
    records: list[tuple[bytearray, None]] = []
    for chunk in _row_chunks(rows):
        arrays = [pa.array(_values(chunk, column), column.arrow_type) for column in columns]
        batch = pa.RecordBatch.from_arrays(arrays, names=names)
        records += [(bytearray(record), None) for record in encode(batch, columns)]
    return records


def _values(rows: list[Any], column: Column) -> list[Any]:
    values = [row[column.name] for row in rows]
    if pa.types.is_string(column.arrow_type):  # TensorFlowOnSpark writes any value as text.
        return [value if value is None else str(value) for value in values]
    return values


def _row_chunks(rows: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(rows)
    return iter(lambda: list(islice(iterator, CHUNK_ROWS)), [])


def infer_schema(example: Any, binary_features: Sequence[str] = ()) -> Any:
    """Return the schema of a DataFrame for records like an Example.

    Args:
        example: a `tf.train.Example`.
        binary_features: the features that are bytes, not text.

    Returns:
        A `StructType` sorted by name. A column is bigint, double or string, or an array of this
        type if the Example has more than one value. The columns in `binary_features` are binary.

    Example:
        >>> import tensorflow as tf
        >>> x = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 2.0]))
        >>> infer_schema(tf.train.Example(features=tf.train.Features(feature={"x": x})))
        StructType([StructField('x', ArrayType(DoubleType(), True), True)])
    """
    schema = T.StructType()
    for name, feature in sorted(example.features.feature.items()):
        schema.add(name, T.BinaryType() if name in binary_features else _type_of(feature))
    return schema


def _type_of(feature: Any) -> Any:
    kind: Any
    if values := feature.int64_list.value:
        kind = T.LongType()
    elif values := feature.float_list.value:
        kind = T.DoubleType()
    else:
        values = feature.bytes_list.value
        kind = T.StringType()
    return T.ArrayType(kind) if len(values) > 1 else kind


def fromTFExample(
    iter: Iterable[Any],  # noqa: A002
    binary_features: Sequence[str] = (),
) -> list[Any]:
    """Return the rows of serialized `tf.train.Example` records, for `rdd.mapPartitions`.

    Args:
        iter: pairs, or other sequences, whose first entry is a record.
        binary_features: the features that are bytes, not text.

    Returns:
        A `Row` for each record, with the features of the record sorted by name. A numeric feature
        is a number, a list if it has several values, or None if it is empty. Of a feature with
        bytes, the first value is used.

    Example:
        >>> fromTFExample(toTFExample([("id", "bigint")])([Row(id=7)]))
        [Row(id=7)]
    """
    rows: list[Any] = []
    for chunk in _row_chunks(iter):
        records = [bytes(pair[0]) for pair in chunk]
        ends = list(accumulate(map(len, records)))
        examples = decode(b"".join(records), list(zip([0, *ends], ends, strict=False)), None)
        fields: list[dict[str, Any]] = [{} for _ in records]
        for name in sorted(examples.features):
            for row, values in zip(fields, _lists(examples, name), strict=True):
                if values is not None:
                    row[name] = _value(values, name in binary_features)
        rows += [Row(**row) for row in fields]
    return rows


def _lists(examples: Examples, name: str) -> Iterator[list[Any] | None]:
    """Yield the values of a feature in each record; None if the record lacks the feature."""
    values, counts = values_of(examples, name)
    remaining = iter(values.to_pylist())
    for count in counts.tolist():
        yield None if count < 0 else list(islice(remaining, count))


def _value(values: list[Any], is_binary: bool) -> Any:
    if values and isinstance(values[0], bytes):
        return bytearray(values[0]) if is_binary else values[0].decode()
    return values if len(values) > 1 else next(iter(values), None)
