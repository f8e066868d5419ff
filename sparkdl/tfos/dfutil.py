"""Runs on the driver, and in Spark tasks for what Spark maps over rows.

DataFrames and TFRecord files.

A record is a `tf.train.Example`; its columns are features, see `sparkdl.data.tfexample.columns`. It
takes neither TensorFlow nor a Hadoop jar.
"""

import os
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

__all__ = [
    "fromTFExample",
    "infer_schema",
    "isLoadedDF",
    "loadTFRecords",
    "loadedDF",
    "saveAsTFRecords",
    "toTFExample",
]

# Which DataFrames `loadTFRecords` has made, and from where.
loadedDF: "WeakKeyDictionary[DataFrame, str]" = WeakKeyDictionary()

# Rows that are turned into records, or back, at once.
ROWS = 1000

_SCALARS = {
    **{kind.simpleString(): kind for kind in (T.BooleanType(), T.ByteType(), T.ShortType())},
    **{kind.simpleString(): kind for kind in (T.IntegerType(), T.LongType(), T.FloatType())},
    **{kind.simpleString(): kind for kind in (T.DoubleType(), T.StringType(), T.BinaryType())},
    "long": T.LongType(),
}


def isLoadedDF(df: DataFrame) -> bool:
    """Whether `loadTFRecords` has made this very DataFrame, not one from which it was derived."""
    return df in loadedDF


def saveAsTFRecords(df: DataFrame, output_dir: str) -> None:
    """Write a DataFrame as TFRecord files `part-r-00000` and so on, one a partition.

    Args:
        df: columns of booleans, numbers, strings or bytes, or of arrays of these. A null is a
            feature that its record has not. Doubles are kept in single precision.
        output_dir: a folder that is not there yet; without a scheme on Spark's default filesystem.

    Raises:
        ConfigError: there is something in the folder, or a column has another type. No job was
            started.

    Example:
        >>> spark = SparkSession.builder.getOrCreate()
        >>> df = spark.createDataFrame([(1, [0.5, 2.0], "one")], "id int, x array<float>, s string")
        >>> saveAsTFRecords(df, "numbers")
        >>> loadTFRecords(spark.sparkContext, "numbers").collect()
        [Row(id=1, s='one', x=[0.5, 2.0])]
    """
    folder = _place(df.sparkSession.sparkContext, output_dir)
    write_tfrecord(df, folder, hadoop_names=True)


def loadTFRecords(sc: Any, input_dir: str, binary_features: Sequence[str] = ()) -> DataFrame:
    """TFRecord files as a DataFrame, with a column for each feature, by name.

    Whole numbers become bigint, others double, and bytes strings (UTF-8) or binary. A feature is
    an array where some record does not have exactly one value of it, among the first 1000; a
    string is one where the first record has several, and a binary feature never: of several
    values the first one counts.

    Args:
        sc: the SparkContext.
        input_dir: a folder, file or pattern, or several with commas between them; without a
            scheme on Spark's default filesystem. Compressed files are recognised.
        binary_features: the features that are bytes, not text; names that are none do no harm.

    Returns:
        The DataFrame, read when it is used. A feature that a record has not is null.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: there is no record, or a binary feature holds numbers.
        ValueError: a file is damaged, or holds no Examples.

    Example:
        See `saveAsTFRecords`.
    """
    places = [_place(sc, part) for part in input_dir.split(",")]
    urls = urls_of(find(places))
    schema, scalars = _inferred(urls, binary_features)
    df = read_tfrecord(SparkSession.builder.getOrCreate(), urls, schema)
    df = df.select(*(_column(name, name in scalars) for name in schema.names))
    loadedDF[df] = input_dir
    return df


def _place(sc: Any, path: str) -> str:
    return paths.absolute(path, paths.default_filesystem(sc), os.getcwd())


def _column(name: str, is_first: bool) -> Any:
    quoted = "`" + name.replace("`", "``") + "`"
    return F.get(quoted, F.lit(0)).alias(name) if is_first else F.col(quoted)


def _inferred(urls: Sequence[str], binary_features: Sequence[str]) -> tuple[Any, set[str]]:
    """The schema to read, where all bytes are arrays, and of which of these the first is wanted."""
    found, first = inspect(urls, "auto"), _first(urls)
    schema, scalars = T.StructType(), set()
    numbers = {Kind.INT64: T.LongType(), Kind.FLOAT: T.DoubleType()}
    for name, kind in sorted(found.kinds.items()):
        if kind is Kind.BYTES:
            is_binary = name in binary_features
            schema.add(name, T.ArrayType(T.BinaryType() if is_binary else T.StringType()))
            if is_binary or len(first.get(name, ())) <= 1:
                scalars.add(name)
        elif name in binary_features:
            raise ConfigError(
                f"binary_features names {name!r}, which holds {kind.name}; expected bytes."
            )
        else:
            is_array = found.is_array(name)
            schema.add(name, T.ArrayType(numbers[kind]) if is_array else numbers[kind])
    return schema, scalars


def _first(urls: Iterable[str]) -> dict[str, list[Any]]:
    """The values of the first record."""
    for url in urls:
        for _, data, spans in chunks(url, compression_of(url)):
            examples = decode(data, spans[:1], None)
            return {name: values_of(examples, name)[0].to_pylist() for name in examples.features}
    return {}


# ---- rows and records


def toTFExample(
    dtypes: Sequence[tuple[str, str]],
) -> Callable[[Iterable[Any]], list[tuple[bytearray, None]]]:
    """A function for `rdd.mapPartitions` that turns rows into serialized `tf.train.Example`s.

    Args:
        dtypes: `df.dtypes` of the DataFrame that the rows are of.

    Returns:
        The function, which gives `(record, None)` for each row.

    Raises:
        ConfigError: a type has no place in an Example.

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
            f"{', '.join(_SCALARS)}, or an array<> of one. Cast it, or leave it out."
        )
    return _SCALARS[inner] if inner == dtype else T.ArrayType(_SCALARS[inner])


def _to_records(rows: Iterable[Any], columns: Sequence[Column]) -> list[tuple[bytearray, None]]:
    names = [column.name for column in columns]
    records: list[tuple[bytearray, None]] = []
    for some in _some(rows):
        arrays = [pa.array(_values(some, c), c.arrow_type) for c in columns]
        batch = pa.RecordBatch.from_arrays(arrays, names=names)
        records += [(bytearray(record), None) for record in encode(batch, columns)]
    return records


def _values(rows: list[Any], column: Column) -> list[Any]:
    values = [row[column.name] for row in rows]
    if pa.types.is_string(column.arrow_type):  # Whatever it is, as TensorFlowOnSpark writes it.
        return [value if value is None else str(value) for value in values]
    return values


def _some(values: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(values)
    return iter(lambda: list(islice(iterator, ROWS)), [])


def infer_schema(example: Any, binary_features: Sequence[str] = ()) -> Any:
    """The schema of a DataFrame for records like this one.

    Args:
        example: a `tf.train.Example`.
        binary_features: the features that are bytes, not text.

    Returns:
        A `StructType`: by name, bigint, double or string, an array of it where the example has
        more than one value; binary for the features that are named.

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
        values, kind = feature.bytes_list.value, T.StringType()
    return T.ArrayType(kind) if len(values) > 1 else kind


def fromTFExample(
    iter: Iterable[Any],  # noqa: A002
    binary_features: Sequence[str] = (),
) -> list[Any]:
    """Serialized `tf.train.Example`s as rows, for `rdd.mapPartitions`.

    Args:
        iter: pairs, or other sequences, whose first entry is a record.
        binary_features: the features that are bytes, not text.

    Returns:
        A `Row` for each record, with the features that it has, by name: a number, a list where
        there are several, None where there is none; the first of its strings or bytes.

    Example:
        >>> fromTFExample(toTFExample([("id", "bigint")])([Row(id=7)]))
        [Row(id=7)]
    """
    rows: list[Any] = []
    for some in _some(iter):
        records = [bytes(pair[0]) for pair in some]
        ends = list(accumulate(map(len, records)))
        examples = decode(b"".join(records), list(zip([0, *ends], ends, strict=False)), None)
        found: list[dict[str, Any]] = [{} for _ in records]
        for name in sorted(examples.features):
            for row, values in zip(found, _lists(examples, name), strict=True):
                if values is not None:
                    row[name] = _value(values, name in binary_features)
        rows += [Row(**row) for row in found]
    return rows


def _lists(examples: Examples, name: str) -> Iterator[list[Any] | None]:
    """The values that each record has of a feature; None where it has it not."""
    values, counts = values_of(examples, name)
    every = iter(values.to_pylist())
    for count in counts.tolist():
        yield None if count < 0 else list(islice(every, count))


def _value(values: list[Any], is_binary: bool) -> Any:
    if values and isinstance(values[0], bytes):
        return bytearray(values[0]) if is_binary else values[0].decode()
    return values if len(values) > 1 else next(iter(values), None)
