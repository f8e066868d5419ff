"""Runs on the driver. Prepare the `data=` of a run for the tasks of its jobs.

Types are checked here, before Spark starts a job. Rows are dealt to the ranks in turn by a shuffle:
every rank gets the same number of rows, up to a few that the ranks balance among themselves.
"""

import functools
import logging
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl.data.dataframe.protocol import Feed
from sparkdl.data.dataframe.rdd import RowPacker, schema_of_row
from sparkdl.data.dataframe.vectors import vectors_to_arrays
from sparkdl.data.schema import UnsupportedType, arrow_type, column
from sparkdl.errors import ConfigError, named_type
from sparkdl.spark.capabilities import repartition_by_id, unknown_types

_logger = logging.getLogger("sparkdl.data")

_NAME = re.compile(r"[A-Za-z0-9_-]+")

# The rows of an RDD come with the position of their reader in the list of readers.
_PACKED_SCHEMA = "place int, message binary"


@dataclass(frozen=True)
class DataFrameInputs:
    """The datasets of a run, ready to be dealt to ranks.

    Attributes:
        frames: the DataFrame of each dataset, by name, with columns that Arrow supports.
        schemas: the Arrow schema in which the rows of each dataset arrive, by name.
        packed_names: names of the datasets that are RDDs, whose rows are Arrow messages in a
            binary column.
        persisted: names of the datasets that the user has persisted.
    """

    frames: Mapping[str, DataFrame]
    schemas: Mapping[str, pa.Schema]
    packed_names: frozenset[str]
    persisted: frozenset[str] = frozenset()

    @classmethod
    def of(cls, data: Any, spark: SparkSession, num_readers: int) -> "DataFrameInputs":
        """Create from the `data=` of a run.

        Args:
            data: a DataFrame, an RDD, or a dict of DataFrames and RDDs by name.
            spark: the session that converts RDDs to DataFrames.
            num_readers: number of ranks that get rows.

        Raises:
            ConfigError: if `data` has another type, or a column cannot become a tensor.
        """
        datasets = dict(data) if isinstance(data, Mapping) else {"train": data}
        if not datasets:
            raise ConfigError("data={} contains no DataFrame; leave it out or add one.")
        frames: dict[str, DataFrame] = {}
        schemas: dict[str, pa.Schema] = {}
        packed_names, persisted = set(), set()
        for name, rows in datasets.items():
            _check_name(name)
            if _is_spark_class(rows, "DataFrame"):
                frames[name], schemas[name] = _supported_columns(name, rows)
                if rows.storageLevel != StorageLevel.NONE:
                    persisted.add(name)
            elif _is_spark_class(rows, "RDD"):
                schemas[name] = schema_of_row(name, _first_row(name, rows))
                frames[name] = _pack(rows, schemas[name], spark, num_readers)
                packed_names.add(name)
            else:
                raise ConfigError(
                    f"data has {named_type(rows)} for {name!r}; expected a Spark DataFrame, "
                    "or an RDD of rows or tuples. For pandas: spark.createDataFrame(frame)."
                )
        return cls(frames, schemas, frozenset(packed_names), frozenset(persisted))

    def feed(self, readers: Sequence[int], is_shared: bool = False) -> Feed:
        """Return the description of the datasets that the tasks need.

        Args:
            readers: the ranks that get rows.
            is_shared: True if several tasks get all rows, so that those of an executor share a
                copy.
        """
        schemas = {name: s.serialize().to_pybytes() for name, s in self.schemas.items()}
        key = uuid.uuid4().hex if is_shared else None
        return Feed(schemas, self.packed_names, tuple(readers), key)

    def rows(
        self, num_tasks: int, readers: Sequence[int], is_gang: bool, is_read_again: bool = False
    ) -> DataFrame:
        """Return the rows of all datasets as one DataFrame with a partition for each task.

        Args:
            num_tasks: number of tasks of the job.
            readers: the ranks that get rows, in equal numbers.
            is_gang: True if the tasks of the job start together.
            is_read_again: True if several jobs read the rows. Spark then computes each partition
                once, and keeps the rows on the executors' disks until `release`.
        """
        joined = self._union
        if is_read_again and not self.persisted.issuperset(self.frames):
            joined.persist(StorageLevel.DISK_ONLY)
        if not is_gang:
            return joined.coalesce(num_tasks)
        # A barrier stage does not support coalesce, where a task reads several partitions of the
        # stage before it; the rows are shuffled instead.
        ranks = F.array(*[F.lit(rank) for rank in readers])
        return repartition_by_id(joined, num_tasks, F.get(ranks, self._place(len(readers))))

    def release(self) -> None:
        """Remove the rows that `rows` has kept on the executors' disks."""
        try:
            if self._union.storageLevel == StorageLevel.DISK_ONLY:
                self._union.unpersist()
        except Exception as exc:  # noqa: BLE001 Spark may have ended, and the copy with it.
            _logger.debug("the copy of the rows was not removed: %s", exc)

    @functools.cached_property
    def _union(self) -> DataFrame:
        """Return a single dataset as it is; join several, each in a column of structs.

        A row of one dataset has null in the columns of the others.
        """
        if len(self.frames) == 1:
            return next(iter(self.frames.values()))
        structs = {name: frame.schema for name, frame in self.frames.items()}

        def spread(name_of_frame: str) -> DataFrame:
            return self.frames[name_of_frame].select(
                *[
                    (F.struct("*") if name == name_of_frame else F.lit(None).cast(struct)).alias(
                        name
                    )
                    for name, struct in structs.items()
                ]
            )

        return functools.reduce(DataFrame.unionAll, [spread(name) for name in self.frames])

    def _place(self, num_readers: int) -> Any:
        """Return a column with the position of each row's reader.

        Rows are dealt in turn; each partition starts with another reader.
        """
        # See monotonically_increasing_id: the lower 33 bits count the rows of a partition.
        row = F.monotonically_increasing_id().bitwiseAND((1 << 33) - 1)
        turn = F.pmod(row + F.spark_partition_id(), F.lit(num_readers)).cast("int")
        is_single = len(self.frames) == 1
        packed_names = [
            F.col("place" if is_single else f"`{name}`.place") for name in sorted(self.packed_names)
        ]
        return F.coalesce(*packed_names, turn)


def session_of(data: Any) -> "SparkSession | None":
    """Return the Spark session of the first DataFrame in `data`; None without a DataFrame."""
    frames = data.values() if isinstance(data, Mapping) else [data]
    return next(
        (frame.sparkSession for frame in frames if _is_spark_class(frame, "DataFrame")), None
    )


def _is_spark_class(value: object, name: str) -> bool:
    """Return True if the value is an instance of pyspark's class of this name.

    Spark classic and Spark Connect have different classes of the same name.
    """
    return any(
        base.__name__ == name and base.__module__.startswith("pyspark.")
        for base in type(value).__mro__
    )


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"data has a DataFrame named {name!r}; expected letters, digits, '_' and '-'."
        )


def _supported_columns(name: str, frame: DataFrame) -> tuple[DataFrame, pa.Schema]:
    """Return a DataFrame with columns that Arrow supports, and their schema."""
    if frame.isStreaming:
        raise ConfigError(f"data {name!r} is a streaming DataFrame; expected a batch DataFrame.")
    if unknown := unknown_types(frame):
        raise _unsupported(name, {key: f"{key!r} is {kind}." for key, kind in unknown.items()})
    repeated = sorted({c for c in frame.columns if frame.columns.count(c) > 1})
    if repeated or not frame.columns:
        problem = f"two columns {repeated[0]!r}" if repeated else "no column"
        raise ConfigError(f"data {name!r} has {problem}; expected columns of different names.")
    fields, problems = [], {}
    for field in frame.schema.fields:
        try:
            fields.append(pa.field(field.name, arrow_type(field.dataType)))
            column(fields[-1])
        except UnsupportedType as exc:
            problems[field.name] = f"{field.name!r} is {field.dataType.simpleString()}. {exc}"
    if problems:
        raise _unsupported(name, problems)
    # Columns are renamed to numbers: mapInArrow does not find a column with a dot in its name.
    numbered = frame.toDF(*[f"c{number}" for number in range(len(fields))])
    columns = [
        vectors_to_arrays(numbered[field.name], own.name).alias(field.name)
        if field.dataType.typeName() == "vectorudt"
        else numbered[field.name]
        for own, field in zip(fields, numbered.schema, strict=True)
    ]
    return numbered.select(columns), pa.schema(fields)


def _unsupported(name: str, problems: Mapping[str, str]) -> ConfigError:
    drop = ", ".join(map(repr, problems))
    return ConfigError(
        f"data {name!r} has columns that cannot become tensors. If they are not used, pass "
        f"df.drop({drop}) as data; otherwise cast them:\n- " + "\n- ".join(problems.values())
    )


def _first_row(name: str, rdd: Any) -> Any:
    """Return the first row of an RDD, from which the types are inferred."""
    for row in rdd.take(1):
        return row
    raise ConfigError(
        f"cannot infer a schema: the RDD for data {name!r} is empty. Pass a DataFrame, which has a "
        "schema even without rows."
    )


def _pack(rdd: Any, schema: pa.Schema, spark: SparkSession, num_readers: int) -> DataFrame:
    packer = RowPacker(schema.serialize().to_pybytes(), num_readers)
    messages = rdd.mapPartitionsWithIndex(packer)
    return spark.createDataFrame(messages, _PACKED_SCHEMA, verifySchema=False)
