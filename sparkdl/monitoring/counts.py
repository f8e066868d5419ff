"""Runs on the driver. Count the rows of a DataFrame, by group, in the bins of a reference."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl import profiles
from sparkdl.errors import ConfigError
from sparkdl.models.registry import find
from sparkdl.monitoring.metrics import METRICS, Counts, reference_counts
from sparkdl.profiles import BinCounter, FeatureBins
from sparkdl.spark.capabilities import to_arrow
from sparkdl.spark.python import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The features of a reference by name: their fields in its profile.
Features = Mapping[str, Mapping[str, Any]]


def profile_of(reference: Any) -> Any:
    """Return the profile of a reference; a DataFrame as it is.

    Raises:
        ConfigError: if there is none.
        ModelNotFoundError: if the reference is a name, and there is no such version.
    """
    if isinstance(reference, str):
        reference = find(reference, None)
    profile = getattr(reference, "profile", reference)
    if profile is None:
        raise ConfigError(
            f"{reference!r} has no profile. Export the model with profile=, the DataFrame that it "
            "was trained with; or pass that DataFrame or its profile as the reference."
        )
    profiles.check(profile)
    return profile


def features_of(reference: Any, df: "DataFrame", columns: Sequence[str] | None) -> Features:
    """Return the features of a reference that a DataFrame is compared with.

    Args:
        reference: a profile, a version of a model that has one, or a DataFrame.
        df: the DataFrame.
        columns: the names of the features; by default all of the reference.

    Raises:
        ConfigError: if there is no profile, or a column is missing or of another kind.
    """
    profiled = profiles.profile(profile_of(reference), columns)["features"]
    names = list(columns or (name for name in profiled if profiled[name]["kind"] != "other"))
    kinds = {field.name: profiles.kind_of(field.dataType) for field in df.schema}
    for name in names:
        if name not in profiled:
            raise ConfigError(f"the reference has no feature {name!r}; it has {list(profiled)}.")
        if name not in kinds:
            raise ConfigError(
                f"the DataFrame has no column {name!r}; its columns are {list(kinds)}. Pass "
                "columns= to compare some features only."
            )
        if kinds[name] != profiled[name]["kind"]:
            raise ConfigError(
                f"the column {name!r} has values of the kind {kinds[name]!r}; in the reference "
                f"it is {profiled[name]['kind']!r}. Cast the column first."
            )
    return {name: profiled[name] for name in names}


def bin_counts(
    df: "DataFrame", features: Features, group: Any, metrics: Sequence[str]
) -> "DataFrame":
    """Return the counts of the partitions of a DataFrame; they are still to be added up.

    Args:
        df: the DataFrame, which may be a stream.
        features: see `features_of`.
        group: the column by whose values the rows are counted apart.
        metrics: the metrics that the counts are for.

    Returns:
        A DataFrame with the columns `group`, `feature` (the number of the feature), `part`, `bin`
        and `num`.
    """
    columns = profiles.known_columns(df, list(features))
    kinds = [feature["kind"] for feature in features.values()]
    rows = profiles.as_arrow(df.select(group, *columns), kinds)
    group_type = rows.schema[0].dataType
    counter = counter_of(features, metrics)
    fields = [("group", group_type), ("feature", T.IntegerType()), ("part", T.StringType())]
    fields += [("bin", T.IntegerType()), ("num", T.LongType())]
    schema = T.StructType([T.StructField(name, data_type) for name, data_type in fields])
    return map_in_arrow(rows, counter, schema)


def counter_of(features: Features, metrics: Sequence[str]) -> BinCounter:
    """Return the function that counts the features in the bins that metrics need."""
    histograms = {part for name in metrics if (part := METRICS[name].part)}
    parts = {"n", "nulls", "categories", *histograms}
    if any(METRICS[name].in_stds for name in metrics):
        parts.add("beyond")
    return BinCounter(
        tuple(FeatureBins.from_fields(feature) for feature in features.values()),
        tuple(sorted(parts)),
    )


def counts_by_group(
    df: "DataFrame", features: Features, group: Any, metrics: Sequence[str]
) -> dict[Any, dict[str, Counts]]:
    """Return the counts of each feature in each group of rows. Spark reads the DataFrame once.

    Args:
        df, features, group, metrics: see `bin_counts`.
    """
    keys = ["group", "feature", "part", "bin"]
    sums = bin_counts(df, features, group, metrics).groupBy(*keys).agg(F.sum("num").alias("num"))
    return as_counts(to_arrow(sums).to_pylist(), features)


def as_counts(
    rows: Sequence[Mapping[str, Any]], features: Features
) -> dict[Any, dict[str, Counts]]:
    """Return the counts that rows of group, feature, part, bin and number stand for."""
    names = list(features)
    sizes = [
        {part: len(bins) for part, bins in reference_counts(f).items()} for f in features.values()
    ]
    result: dict[Any, dict[str, dict[str, Any]]] = {}
    for row in rows:
        number = row["feature"]
        part = row["part"]
        counts = result.setdefault(row["group"], {name: {} for name in names})[names[number]]
        if part not in counts:
            counts[part] = np.zeros(sizes[number][part], np.int64)
        counts[part][row["bin"]] += row["num"]
    for by_feature in result.values():
        for number, name in enumerate(names):
            for part, size in sizes[number].items():
                by_feature[name].setdefault(part, np.zeros(size, np.int64))
    return dict(sorted(result.items(), key=lambda item: (item[0] is not None, item[0])))
