"""Runs on the driver. Rows of Spark's that are fed to the nodes: of an RDD, or of a DataFrame."""

import functools
from collections.abc import Mapping
from typing import Any

from pyspark import RDD
from pyspark.serializers import BatchedSerializer, CPickleSerializer, NoOpSerializer
from pyspark.sql.types import ArrayType, StructField, UserDefinedType

from sparkdl.tfos.feed.task import TERMINATED_SCHEMA, ArrowFeedTask, FeedTask, PickledFeedTask

__all__ = ["feed"]


def feed(sc: Any, rows: Any, num_epochs: int, told: Mapping[str, Any]) -> bool:
    """Feed rows to the nodes; return when these have used them.

    Args:
        sc: the SparkContext.
        rows: an RDD or a DataFrame.
        num_epochs: how often.
        told: what the tasks are told, see `FeedTask`.

    Returns:
        Whether a node wants no more.
    """
    if hasattr(rows, "mapInArrow") and any(map(_is_own, rows.schema)):
        rows = rows.rdd  # Arrow knows nothing of their classes, such as Spark ML's vectors.
    if hasattr(rows, "mapInArrow"):
        repeated = functools.reduce(type(rows).unionAll, [rows] * num_epochs)
        task = ArrowFeedTask(FeedTask(**told, is_inference=False))
        return any(row[0] for row in repeated.mapInArrow(task, TERMINATED_SCHEMA).collect())
    repeated = sc.union([rows] * num_epochs)
    pickled = _as_pickled(repeated)
    kind = FeedTask if pickled is None else PickledFeedTask
    repeated = repeated if pickled is None else pickled
    return any(repeated.mapPartitionsWithIndex(kind(**told, is_inference=False)).collect())


def _is_own(field: StructField) -> bool:
    """Whether a column's type is one that a person, or Spark ML, has defined."""
    kind = field.dataType
    while isinstance(kind, ArrayType):
        kind = kind.elementType
    return isinstance(kind, UserDefinedType)


def _as_pickled(rdd: Any) -> Any:
    """The same RDD with Spark's pickled lists of rows as its elements; None where it has none.

    A public way to these there is not: RDD's own constructor takes them.
    """
    made = rdd._jrdd_deserializer
    if isinstance(made, BatchedSerializer) and isinstance(made.serializer, CPickleSerializer):
        return RDD(rdd._jrdd, rdd.context, NoOpSerializer())
    return None
