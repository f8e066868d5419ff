"""Runs on the driver. Count the rows of a DataFrame, by group, in the bins of a reference."""

from collections.abc import Container, Mapping, Sequence
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
    profile = profile_of(reference)
    if not isinstance(profile, Mapping):  # A DataFrame. The elements of a column are not known yet.
        is_column = set(profile.columns).__contains__
        asked = [n if is_column(n) else n.partition("[")[0] for n in columns or ()]
        profile = profiles.profile(profile, list(dict.fromkeys(asked)) or None)
    features = chosen_features(profile["features"], columns or None)
    kinds = {field.name: profiles.kind_of(field.dataType) for field in df.schema}
    for name, feature in features.items():
        column = source_of(name, feature, kinds)
        if column not in kinds:
            raise ConfigError(
                f"the DataFrame has no column {column!r}; its columns are {list(kinds)}. Pass "
                "columns= to compare some features only."
            )
        kind = feature["kind"] if column == name else "array"
        if kinds[column] != kind:
            raise ConfigError(
                f"the column {column!r} has values of the kind {kinds[column]!r}; in the reference "
                f"it is {kind!r}. Cast the column first."
            )
    return features


def chosen_features(profiled: Features, columns: Sequence[str] | None) -> Features:
    """Return the features of a profile with some names; the name of a column has its elements.

    Raises:
        ConfigError: if there is none with one of the names.
    """
    if columns is None:
        return {name: f for name, f in profiled.items() if f["kind"] != "other"}
    found: dict[str, Mapping[str, Any]] = {}
    for asked in columns:
        some = {n: f for n, f in profiled.items() if profiles.is_chosen(n, f, [asked])}
        if not some:
            raise ConfigError(f"the reference has no feature {asked!r}; it has {list(profiled)}.")
        found |= some
    return found


def source_of(name: str, feature: Mapping[str, Any], columns: Container[str]) -> str:
    """Return the column that has a feature: one of its own or, of an element, that of the arrays.

    Args:
        name: the name of the feature.
        feature: its fields in the profile.
        columns: the names of the columns that there are.
    """
    return name if name in columns else profiles.column_of(name, feature)


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
    sources = {name: source_of(name, f, df.columns) for name, f in features.items()}
    kinds = {
        source: features[source]["kind"] if source in features else "array"
        for source in sources.values()
    }
    columns = profiles.known_columns(df, list(kinds))
    rows = profiles.as_arrow(df.select(group, *columns), list(kinds.values()))
    group_type = rows.schema[0].dataType
    counter = counter_of(features, metrics, list(kinds))
    fields = [("group", group_type), ("feature", T.IntegerType()), ("part", T.StringType())]
    fields += [("bin", T.IntegerType()), ("num", T.LongType())]
    schema = T.StructType([T.StructField(name, data_type) for name, data_type in fields])
    return map_in_arrow(rows, counter, schema)


def counter_of(
    features: Features, metrics: Sequence[str], columns: Sequence[str] | None = None
) -> BinCounter:
    """Return the function that counts the features in the bins that metrics need.

    Args:
        features: the features by name.
        metrics: the names of the metrics.
        columns: the columns that have the features, in their order; by default each feature is one.
    """
    histograms = {part for name in metrics if (part := METRICS[name].part)}
    parts = {"n", "nulls", "categories", *histograms}
    if any(METRICS[name].in_stds for name in metrics):
        parts.add("beyond")
    names = list(features) if columns is None else list(columns)
    return BinCounter(
        tuple(FeatureBins.from_fields(f, name in names) for name, f in features.items()),
        tuple(sorted(parts)),
        tuple(names.index(source_of(name, f, names)) for name, f in features.items()),
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
