"""Runs on the driver. The profile of a DataFrame's features: counts, moments, histograms.

Data that a model meets later is compared with the profile of its training data. The edges of the
histograms are those of the training data, so that counts can be compared and added up.

| kind | columns | content |
|---|---|---|
| `number` | numbers | mean, std, min, max, and two histograms |
| `array` | arrays of numbers and ML vectors | the same, of all elements together |
| `category` | strings and booleans | the most frequent values, and the number of others |
| `other` | all other types | only `n` and `nulls` |

`n` is the number of rows, and `num_values` the number of values that are not null. Values that are
not finite count in the histograms only, and NaN only in `nans`.

Spark reads the DataFrame once to count rows, three times for all numbers, and once for all
categories.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.window import Window

from sparkdl.errors import ConfigError
from sparkdl.models.histograms import (
    NUM_QUANTILES,
    BinCounter,
    Edges,
    Moments,
    MomentsCounter,
    Sampler,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["check", "profile"]

FORMAT = 1
NUM_CATEGORIES = 100
# Longer texts are no categories: they count as others.
MAX_CATEGORY_LENGTH = 256

# The edges between quantiles come from a sample of about this many values; counts are exact.
SAMPLE_SIZE = 10_000
_QUANTILES = [number / NUM_QUANTILES for number in range(1, NUM_QUANTILES)]
_MOMENTS = (
    "feature int, num_values bigint, nans bigint, num_finite bigint, "
    "mean double, squares double, low double, high double"
)
_COUNTS = T.StructType(
    [
        T.StructField("feature", T.IntegerType()),
        T.StructField("is_quantile", T.BooleanType()),
        T.StructField("bin", T.IntegerType()),
        T.StructField("num", T.LongType()),
    ]
)


def check(data: Any) -> None:
    """Validate the argument `profile` of `export`: a DataFrame, a profile, or None.

    Raises:
        ConfigError: if it is anything else, or the DataFrame has columns with the same name.
    """
    if data is None or (isinstance(data, Mapping) and "features" in data):
        return
    if not hasattr(data, "mapInArrow"):
        raise ConfigError(
            f"profile is a {type(data).__name__}; expected the Spark DataFrame with which the "
            "model was trained, or the profile of an earlier version."
        )
    names = [name.lower() for name in data.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"profile has several columns with the name {twice[0]!r}: rename them.")


def profile(data: Any) -> dict[str, Any]:
    """Return the profile of the columns of a DataFrame; a profile is returned as it is.

    Args:
        data: see `check`.
    """
    if isinstance(data, Mapping):
        return dict(data)
    # Numbered columns, because a name may contain a dot.
    frame = data.toDF(*(f"c{number}" for number in range(len(data.columns))))
    kinds = [_kind(field.dataType) for field in data.schema]
    by_kind = {kind: [f"c{i}" for i, k in enumerate(kinds) if k == kind] for kind in set(kinds)}
    contents: dict[str, dict[str, Any]] = _presence(frame, kinds)
    _update(contents, _numbers(_as_doubles(frame, by_kind)))
    _update(contents, _categories(frame, by_kind.get("category", []), contents))
    features = {
        field.name: {"kind": kind, "type": field.dataType.simpleString(), **contents[f"c{number}"]}
        for number, (field, kind) in enumerate(zip(data.schema, kinds, strict=True))
    }
    return {"format": FORMAT, "features": features}


def _update(contents: dict[str, dict[str, Any]], more: Mapping[str, dict[str, Any]]) -> None:
    for name, fields in more.items():
        contents[name].update(fields)


def _kind(data_type: Any) -> str:
    name = data_type.typeName()
    if isinstance(data_type, T.NumericType):
        return "number"
    if name in ("string", "char", "varchar", "boolean"):
        return "category"
    is_array = name == "array" and isinstance(data_type.elementType, T.NumericType)
    return "array" if is_array or name == "vectorudt" else "other"


def _presence(frame: "DataFrame", kinds: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the number of rows and of nulls of each column."""
    counts = [F.count(F.when(F.col(name).isNotNull(), 1)).alias(name) for name in frame.columns]
    row = frame.agg(F.count(F.lit(1)).alias("n"), *counts).first()
    if row is None:
        return {}
    return {name: {"n": row["n"], "nulls": row["n"] - row[name]} for name in frame.columns}


# ---- numbers


def _as_doubles(frame: "DataFrame", by_kind: Mapping[str, Sequence[str]]) -> "DataFrame":
    """Return the columns of numbers as doubles, followed by those of arrays."""
    from pyspark.ml.functions import vector_to_array

    columns = [F.col(name).cast("double").alias(name) for name in by_kind.get("number", [])]
    for name in by_kind.get("array", []):
        column = F.col(name)
        if frame.schema[name].dataType.typeName() == "vectorudt":
            column = F.when(column.isNotNull(), vector_to_array(column, "float64"))  # No nulls.
        columns.append(column.cast("array<double>").alias(name))
    return frame.select(*columns)


def _numbers(frame: "DataFrame") -> dict[str, dict[str, Any]]:
    """Return moments and histograms of each column of doubles or arrays of doubles."""
    if not frame.columns:
        return {}
    moments = [Moments()] * len(frame.columns)
    for row in frame.mapInArrow(MomentsCounter(len(moments)), _MOMENTS).collect():
        feature, *fields = row
        moments[feature] += Moments(*fields)
    quantiles = _quantiles(frame, moments)
    pairs = zip(moments, quantiles, strict=True)
    edges = [Edges.of(m.fields()["min"], m.fields()["max"], q) for m, q in pairs]
    counts = frame.mapInArrow(BinCounter(tuple(edges)), _COUNTS)
    sums = counts.groupBy("feature", "is_quantile", "bin").agg(F.sum("num").alias("num")).collect()
    histograms = [edge.histograms() for edge in edges]
    for part in sums:
        which = "quantiles" if part["is_quantile"] else "bins"
        histograms[part["feature"]][which]["counts"][part["bin"]] = part["num"]
    return {
        name: {**total.fields(), **histogram}
        for name, total, histogram in zip(frame.columns, moments, histograms, strict=True)
    }


def _quantiles(frame: "DataFrame", moments: Sequence[Moments]) -> list[list[float]]:
    """Return the quantiles of each column, from a sample of its values if there are many."""
    shares = tuple(min(1.0, SAMPLE_SIZE / max(1, total.num_finite)) for total in moments)
    sample = frame.mapInArrow(Sampler(shares), "feature int, value double").toPandas()
    values = sample.groupby("feature")["value"]
    by_feature = {feature: np.quantile(part, _QUANTILES).tolist() for feature, part in values}
    return [by_feature.get(feature, []) for feature in range(len(moments))]


# ---- categories


def _categories(
    frame: "DataFrame", names: Sequence[str], contents: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the most frequent values of each column with their counts, and those of others."""
    if not names:
        return {}
    pairs = [
        F.struct(F.lit(name).alias("name"), F.col(name).cast("string").alias("value"))
        for name in names
    ]
    values = frame.select(F.explode(F.array(*pairs)).alias("pair")).select("pair.*")
    counts = values.where(F.col("value").isNotNull()).groupBy("name", "value").count()
    is_category = F.length("value") <= MAX_CATEGORY_LENGTH
    order = Window.partitionBy("name").orderBy(is_category.desc(), F.desc("count"), "value")
    ranked = counts.withColumn("distinct", F.count(F.lit(1)).over(Window.partitionBy("name")))
    ranked = ranked.withColumn("rank", F.row_number().over(order))
    rows = ranked.where(F.col("rank") <= NUM_CATEGORIES).orderBy("name", "rank").collect()
    result: dict[str, dict[str, Any]] = {}
    for name in names:
        own = [row for row in rows if row["name"] == name]
        top = {r["value"]: r["count"] for r in own if len(r["value"]) <= MAX_CATEGORY_LENGTH}
        num_values = contents[name]["n"] - contents[name]["nulls"]
        result[name] = {
            "num_distinct": own[0]["distinct"] if own else 0,
            "categories": top,
            "other": num_values - sum(top.values()),
        }
    return result
