"""Runs on the driver. What a person gives as `data=`, made ready for the tasks of a job.

Types are checked here, before Spark starts anything. Rows are dealt out by a shuffle, one here and
one there: a rank gets as many as every other, but for a few that the ranks settle among themselves.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from sparkdl.data import schema as table
from sparkdl.data.dataframe.protocol import Feed
from sparkdl.data.dataframe.rdd import RowPacker, schema_of_row
from sparkdl.errors import ConfigError

__all__ = ["Data", "session_of"]

_NAME = re.compile(r"[A-Za-z0-9_-]+")

# The rows of an RDD come with the place, among the readers, of the one that they go to.
_PACKED_SCHEMA = "place int, message binary"


@dataclass(frozen=True)
class Data:
    """Datasets, ready to be dealt out.

    Attributes:
        frames: the DataFrame of each, by name, with columns that Arrow takes.
        schemas: in what columns the rows arrive.
        packed: which of them are RDDs, as Arrow messages in a column.
    """

    frames: Mapping[str, DataFrame]
    schemas: Mapping[str, pa.Schema]
    packed: frozenset[str]

    @classmethod
    def of(cls, given: Any, spark: SparkSession, num_readers: int) -> "Data":
        """From what a verb was given: a DataFrame, an RDD, or a dict of such by name.

        Raises:
            ConfigError: it is something else, or a column has a type that no tensor has.
        """
        named = dict(given) if isinstance(given, Mapping) else {"train": given}
        if not named:
            raise ConfigError("data={} has no DataFrame in it; leave it out or give one.")
        frames: dict[str, DataFrame] = {}
        schemas: dict[str, pa.Schema] = {}
        packed = set()
        for name, one in named.items():
            _check_name(name)
            if _is(one, "DataFrame"):
                frames[name], schemas[name] = _checked(name, one)
            elif _is(one, "RDD"):
                schemas[name] = schema_of_row(name, _first(name, one))
                frames[name] = _packed(one, schemas[name], spark, num_readers)
                packed.add(name)
            else:
                raise ConfigError(
                    f"data has a {type(one).__name__} for {name!r}; expected a Spark DataFrame, or "
                    "an RDD of rows or tuples. For pandas: spark.createDataFrame(frame)."
                )
        return cls(frames, schemas, frozenset(packed))

    def feed(self, readers: Sequence[int]) -> Feed:
        """What the tasks need to know."""
        schemas = {name: s.serialize().to_pybytes() for name, s in self.schemas.items()}
        return Feed(schemas, self.packed, tuple(readers))

    def rows(self, num_tasks: int, readers: Sequence[int], is_gang: bool) -> DataFrame:
        """The rows of one job.

        Args:
            num_tasks: its tasks.
            readers: those that get rows, equally many.
            is_gang: its tasks start together.
        """
        joined = self._joined()
        if not is_gang:
            return joined.coalesce(num_tasks)
        # A barrier stage cannot read the partitions of others: the rows are shuffled to it.
        ranks = F.array(*[F.lit(rank) for rank in readers])
        return joined.repartitionById(num_tasks, ranks[self._place(len(readers))])

    def _joined(self) -> DataFrame:
        """One DataFrame: the only one, or each in a column of structs, null for other rows."""
        if len(self.frames) == 1:
            return next(iter(self.frames.values()))
        kinds = {name: frame.schema for name, frame in self.frames.items()}

        def spread(mine: str) -> DataFrame:
            return self.frames[mine].select(
                *[
                    (F.struct("*") if name == mine else F.lit(None).cast(kind)).alias(name)
                    for name, kind in kinds.items()
                ]
            )

        return reduce(DataFrame.unionAll, [spread(name) for name in self.frames])

    def _place(self, num_readers: int) -> Any:
        """Which of the readers gets a row: the next in turn, in each partition from another on."""
        # See monotonically_increasing_id: the lower 33 bits count the rows of a partition.
        row = F.monotonically_increasing_id().bitwiseAND((1 << 33) - 1)
        turn = F.pmod(row + F.spark_partition_id(), F.lit(num_readers)).cast("int")
        only = len(self.frames) == 1
        dealt = [F.col("place" if only else f"`{name}`.place") for name in sorted(self.packed)]
        return F.coalesce(*dealt, turn)


def session_of(given: Any) -> "SparkSession | None":
    """The Spark session of the first DataFrame in it, None where there is none."""
    frames = given.values() if isinstance(given, Mapping) else [given]
    return next((one.sparkSession for one in frames if _is(one, "DataFrame")), None)


def _is(thing: object, name: str) -> bool:
    """Whether it is Spark's class of this name, in Spark classic or Spark Connect."""
    return any(
        base.__name__ == name and base.__module__.startswith("pyspark.")
        for base in type(thing).__mro__
    )


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"data has a DataFrame named {name!r}; expected letters, digits, '_' and '-'."
        )


def _checked(name: str, frame: DataFrame) -> tuple[DataFrame, pa.Schema]:
    """The DataFrame with columns that Arrow takes, and their schema."""
    if frame.isStreaming:
        raise ConfigError(f"data {name!r} is a streaming DataFrame; expected one with an end.")
    repeated = sorted({c for c in frame.columns if frame.columns.count(c) > 1})
    if repeated or not frame.columns:
        what = f"two columns {repeated[0]!r}" if repeated else "no column"
        raise ConfigError(f"data {name!r} has {what}; expected columns of different names.")
    fields, wrong = [], []
    for field in frame.schema.fields:
        try:
            fields.append(pa.field(field.name, table.arrow_type(field.dataType)))
            table.column(fields[-1])
        except table.UnsupportedType as exc:
            wrong.append(f"{field.name!r} is {field.dataType.simpleString()}. {exc}")
    if wrong:
        raise ConfigError(
            f"data {name!r} has columns that cannot become tensors; cast them, or leave them out "
            "with df.drop:\n- " + "\n- ".join(wrong)
        )
    # By number: mapInArrow does not find a column with a dot in its name.
    numbered = frame.toDF(*[f"c{number}" for number in range(len(fields))])
    plain = [_plain(numbered, field) for field in numbered.schema]
    return numbered.select(plain), pa.schema(fields)


def _plain(frame: DataFrame, field: StructField) -> Any:
    """A column as Arrow takes it: ML vectors, dense and sparse, as arrays."""
    from pyspark.ml.functions import vector_to_array

    column = frame[field.name]
    if field.dataType.typeName() != "vectorudt":
        return column
    return F.when(column.isNotNull(), vector_to_array(column, "float32")).alias(field.name)


def _first(name: str, rdd: Any) -> Any:
    """The first row, which tells the types of an RDD."""
    for row in rdd.take(1):
        return row
    raise ConfigError(
        f"the RDD for data {name!r} is empty, so that nothing tells its columns. Give a DataFrame, "
        "which has a schema without rows too."
    )


def _packed(rdd: Any, schema: pa.Schema, spark: SparkSession, num_readers: int) -> DataFrame:
    packer = RowPacker(schema.serialize().to_pybytes(), num_readers)
    messages = rdd.mapPartitionsWithIndex(packer)
    return spark.createDataFrame(messages, _PACKED_SCHEMA, verifySchema=False)
