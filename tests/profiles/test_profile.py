"""The profile of a DataFrame, compared with NumPy."""

import math
import sys
from typing import Any

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from sparkdl import profiles
from sparkdl.errors import ConfigError
from sparkdl.profiles.histograms import Edges

NUM_ROWS = 3000
SCHEMA = T.StructType(
    [
        T.StructField("id", T.LongType()),
        T.StructField("a.b", T.DoubleType()),
        T.StructField("same", T.FloatType()),
        T.StructField("none", T.DoubleType()),
        T.StructField("pixels", T.ArrayType(T.FloatType())),
        T.StructField("vector", VectorUDT()),
        T.StructField("word", T.StringType()),
        T.StructField("flag", T.BooleanType()),
        T.StructField("time", T.TimestampType()),
    ]
)


@pytest.fixture(scope="module")
def values() -> "np.ndarray[Any, Any]":
    return np.random.default_rng(0).lognormal(size=NUM_ROWS)


@pytest.fixture(scope="module")
def features(spark: SparkSession, values: "np.ndarray[Any, Any]") -> dict[str, Any]:
    """The profile of columns of all kinds, each with some nulls."""
    special = {0: None, 1: math.nan, 2: math.inf, 3: -math.inf}
    rows = [
        (
            i,
            special.get(i, float(values[i])),
            1.5,
            None,
            None if i == 7 else [float(i), None, 0.0],
            None if i == 7 else Vectors.sparse(3, {0: 1.0}),
            None if i == 7 else ("long" * 100 if i < 5 else f"w{i % 150 if i < 300 else 0}"),
            i % 3 == 0,
            None,
        )
        for i in range(NUM_ROWS)
    ]
    df = spark.createDataFrame(rows, SCHEMA).repartition(3)
    profile = profiles.profile(df)
    assert profile["format"] == 3
    by_name: dict[str, Any] = profile["features"]
    return by_name


@pytest.mark.slow
def test_numbers_have_moments_and_histograms(
    features: dict[str, Any], values: "np.ndarray[Any, Any]"
) -> None:
    feature, finite = features["a.b"], values[4:]
    assert (feature["kind"], feature["type"]) == ("number", "double")
    assert (feature["n"], feature["nulls"], feature["nans"]) == (NUM_ROWS, 1, 1)
    assert feature["num_values"] == NUM_ROWS - 1
    assert feature["mean"] == pytest.approx(finite.mean())
    assert feature["std"] == pytest.approx(finite.std())
    assert (feature["min"], feature["max"]) == (finite.min(), finite.max())
    edges, counts = feature["quantiles"]["edges"], feature["quantiles"]["counts"]
    assert (edges[0], edges[-1], len(edges)) == (-math.inf, math.inf, 11)
    # The two values that are not finite are in the first and the last bin.
    assert sum(counts) == NUM_ROWS - 2
    assert all(abs(count - NUM_ROWS / 10) <= 2 for count in counts)
    bins = feature["bins"]
    expected, _ = np.histogram(finite, 1000, (bins["low"], bins["high"]))
    assert bins["counts"] == [1, *expected.tolist(), 1]


@pytest.mark.slow
def test_constants_arrays_and_columns_without_values(features: dict[str, Any]) -> None:
    same = features["same"]
    assert (same["std"], same["min"], same["max"]) == (0.0, 1.5, 1.5)
    assert same["quantiles"] == {"edges": [-math.inf, 1.5, math.inf], "counts": [NUM_ROWS, 0]}
    assert sum(same["bins"]["counts"]) == NUM_ROWS
    none = features["none"]
    assert (none["num_values"], none["nulls"], none["mean"]) == (0, NUM_ROWS, None)
    assert none["quantiles"] == {"edges": [-math.inf, math.inf], "counts": [0]}
    first, second = features["pixels[0]"], features["pixels[1]"]
    assert (first["kind"], first["type"], first["column"]) == ("number", "float", "pixels")
    assert (first["n"], first["nulls"], first["num_values"]) == (NUM_ROWS, 1, NUM_ROWS - 1)
    assert (first["element"], first["size"], first["max"]) == (0, 3, NUM_ROWS - 1)
    assert (second["n"], second["nulls"], second["num_values"]) == (NUM_ROWS, NUM_ROWS, 0)
    assert [features[f"vector[{i}]"]["mean"] for i in range(3)] == [1.0, 0.0, 0.0]
    assert "pixels" not in features and "vector" not in features
    assert {k: v for k, v in features["time"].items() if k != "type"} == {
        "kind": "other",
        "n": NUM_ROWS,
        "nulls": NUM_ROWS,
    }


@pytest.mark.slow
def test_categories_are_the_most_frequent_values(features: dict[str, Any]) -> None:
    word = features["word"]
    assert len(word["categories"]) == 100
    assert next(iter(word["categories"].items())) == ("w0", NUM_ROWS - 300 + 1)
    # 150 words and the long text, which is no category.
    assert word["num_distinct"] == 151
    assert sum(word["categories"].values()) + word["other"] == NUM_ROWS - 1
    flag = features["flag"]
    assert flag["categories"] == {"false": 2000, "true": 1000}
    assert flag["other"] == 0


@pytest.mark.slow
def test_the_largest_and_the_smallest_numbers_have_a_profile(spark: SparkSession) -> None:
    largest = sys.float_info.max
    values = np.arange(100.0) + 1
    columns = {
        "tiny": values * 1e-120,
        "huge": np.where(values % 2 == 0, largest, -largest),
        "sentinel": np.where(values == 7, largest, values),
        "same": np.full(100, largest),
        "subnormal": np.where(values % 2 == 0, 5e-324, 0.0),
    }
    rows = [tuple(map(float, row)) for row in zip(*columns.values(), strict=True)]
    df = spark.createDataFrame(rows, ", ".join(f"{name} double" for name in columns))
    found = profiles.profile(df.repartition(3))["features"]
    for name, feature in found.items():
        for part in ("quantiles", "bins", "wide_bins"):
            assert sum(feature[part]["counts"]) == 100, (name, part)
        assert math.isfinite(feature["mean"]) and math.isfinite(feature["std"])
    assert found["tiny"]["std"] == pytest.approx(values.std() * 1e-120)
    assert (
        len(found["tiny"]["wide_bins"]["counts"]) - 2
        == len(np.histogram_bin_edges(values, "doane")) - 1
    )
    assert (found["huge"]["mean"], found["huge"]["std"]) == (0.0, largest)
    assert found["sentinel"]["std"] == pytest.approx(largest * math.sqrt(0.01 * 0.99))


def test_bins_count_every_value_also_huge_ones() -> None:
    edges = Edges(quantiles=(0.0,), low=-1e308, high=1e308)
    found = edges.count(np.array([-1e308, 0.0, 1e308, np.inf, -np.inf]))
    assert found.quantiles.tolist() == [3, 2]
    assert {int(i): int(found.bins[i]) for i in found.bins.nonzero()[0]} == {
        0: 1,
        1: 1,
        501: 1,
        1000: 1,
        1001: 1,
    }


def test_columns_with_one_name_are_refused() -> None:
    class Frame:
        columns = ["a", "A"]
        mapInArrow = None

    with pytest.raises(ConfigError, match="several columns with the name 'a'"):
        profiles.check(Frame())
