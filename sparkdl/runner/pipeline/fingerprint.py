"""Runs on the driver. The fingerprint of `data=`: its schema, number of rows and hash.

The schema costs nothing. The number of rows and the hash cost a pass over the rows in Spark, so
they are computed only on request.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

    from sparkdl.data.dataframe.inputs import DataFrameInputs


def fingerprints(data: "DataFrameInputs", counts: bool) -> dict[str, dict[str, Any]]:
    """Return the fingerprint of each dataset by name.

    Args:
        data: the datasets of a run.
        counts: also count the rows and hash them. The hash does not depend on the order of the
            rows. RDDs are not hashed: Spark cannot hash what only Python can read.
    """
    prints = {}
    for name, frame in data.frames.items():
        columns = ", ".join(f"{field.name}: {field.type}" for field in data.schemas[name])
        is_hashed = counts and name not in data.packed_names
        prints[name] = {"schema": columns, **(_count_and_hash(frame) if is_hashed else {})}
    return prints


def _count_and_hash(frame: "DataFrame") -> dict[str, Any]:
    from pyspark.sql import functions as F

    # Spark skips nulls and does not hash the ends of arrays: values could move to other columns.
    marked = [mark for field in frame.schema for mark in _with_marks(field)]
    # A sum of 64-bit numbers can exceed 64 bits, and the order of its terms does not matter.
    hashed = F.xxhash64(*marked).cast("decimal(20,0)")
    row = frame.select(hashed.alias("hash")).agg(F.count("*"), F.sum("hash")).collect()[0]
    return {"rows": row[0], "hash": f"{int(row[1] or 0) % (1 << 64):016x}"}


def _with_marks(field: "StructField") -> "list[Column]":
    """Return a column together with what tells its place in a row."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType

    column = F.col("`{}`".format(field.name.replace("`", "``")))
    sizes = [F.size(column)] if isinstance(field.dataType, ArrayType) else []
    return [column.isNull(), *sizes, column]
