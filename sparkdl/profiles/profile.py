"""Runs on the driver. The profile of a DataFrame's features: counts, moments, histograms.

Data that a model meets later is compared with the profile of its training data. The edges of the
histograms are those of the training data, so that counts can be compared and added up.

| kind | columns | content |
|---|---|---|
| `number` | numbers | mean, std, min, max, and three histograms |
| `array` | arrays of numbers and ML vectors | the same, of all elements together |
| `category` | strings and booleans | the most frequent values, and the number of others |
| `other` | all other types | only `n` and `nulls` |

Arrays and ML vectors of one length are features of the kind `number`, one for each element: a model
takes an element by its place. See `elements` for the columns that are of the kind `array`.

`n` is the number of rows, and `num_values` the number of values that are not null. Values that are
not finite count in the histograms only, and NaN only in `nans`.

Spark reads the DataFrame once. Its tasks summarise their rows in limited memory; the counts are
exact unless a column has more values than a summary can tell apart (`MAX_RANGES`, `MAX_TEXTS`).
"""

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl.errors import ConfigError, named_type
from sparkdl.profiles import elements as array_elements
from sparkdl.profiles.distribution import MAX_RANGES
from sparkdl.profiles.elements import MAX_ELEMENTS, WHOLE, Choice, Elements
from sparkdl.profiles.histograms import NUM_BINS, Edges
from sparkdl.profiles.moments import Shape
from sparkdl.profiles.summary import (
    SUMMARY_SCHEMA,
    Summarizer,
    Summary,
    add_columns,
    add_summaries,
)
from sparkdl.spark.capabilities import apply_in_arrow, to_arrow
from sparkdl.spark.python import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMAT = 3


def check(data: Any) -> None:
    """Validate the argument `profile` of `export`: a DataFrame, a profile, or None.

    Raises:
        ConfigError: if it is anything else, or the DataFrame has columns with the same name.
    """
    if data is None or (isinstance(data, Mapping) and "features" in data):
        return
    if not hasattr(data, "mapInArrow"):
        raise ConfigError(
            f"profile is {named_type(data)}; expected the Spark DataFrame with which the "
            "model was trained, or the profile of an earlier version."
        )
    names = [name.lower() for name in data.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"profile has several columns with the name {twice[0]!r}: rename them.")


def profile(
    data: Any,
    columns: Sequence[str] | None = None,
    *,
    num_bins: int = NUM_BINS,
    max_ranges: int = MAX_RANGES,
    elements: Elements = MAX_ELEMENTS,
) -> dict[str, Any]:
    """Return the profile of the columns of a DataFrame: counts, moments, histograms, categories.

    Each element of arrays of one length, and of ML vectors, is a feature such as `x[3]`, or
    `x[age]` where Spark ML knows the names of the elements. Elements of arrays of different lengths
    are compared as one distribution, and the driver warns.

    Spark reads the DataFrame once. Counts are exact for a column with at most `max_ranges`
    different numbers. With more, a value next to the edge of a bin of equal width may count in the
    neighbouring bin.

    Args:
        data: the DataFrame. A profile is returned as it is.
        columns: names of columns; by default all.
        num_bins: the number of fine bins of numbers, for the metrics `ks` and `wasserstein`.
        max_ranges: how many values or ranges of values of a column are counted apart. A Spark task
            needs 16 bytes for each.
        elements: the number of elements of longer arrays that are features: that many elements are
            taken, spread evenly, the column as a whole is a feature, and the driver warns. Or the
            numbers of the elements, for one column: `{"pixels": [0, 391, 783]}`. With 0, none is.

    Returns:
        `{"format": 3, "features": {name: {...}}}`, see docs/models.md, as JSON can hold it.

    Raises:
        ConfigError: if the DataFrame has no column with one of the names, or several with one, or
            `elements` is invalid.

    Example:
        >>> from sparkdl import monitoring
        >>> from pyspark.sql import SparkSession
        >>> spark = SparkSession.builder.getOrCreate()
        >>> found = monitoring.profile(spark.range(5).selectExpr("id * 2 as size"))
        >>> size = found["features"]["size"]
        >>> size["n"], size["mean"], size["max"]
        (5, 4.0, 8.0)
    """
    check(data)
    if isinstance(data, Mapping):
        return dict(data)
    frame = data if columns is None else data.select(*known_columns(data, columns))
    kinds = [kind_of(field.dataType) for field in frame.schema]
    choices = [
        array_elements.choice_of(elements, field.name) if kind == "array" else None
        for field, kind in zip(frame.schema, kinds, strict=True)
    ]
    found = _summaries(frame, kinds, choices, max_ranges)
    features: dict[str, Any] = {}
    for field, kind, choice, (size, summaries) in zip(
        frame.schema, kinds, choices, found, strict=True
    ):
        _check_choice(field.name, choice, size)
        names = array_elements.names_of(field.name, size or 0, field.metadata)
        for element, summary in summaries.items():
            name = field.name if element == WHOLE else names[element]
            if name in features:
                raise ConfigError(
                    f"{name!r} is the name of a column and of an element of an array: rename one."
                )
            features[name] = _feature(field, kind, summary, num_bins, size, element)
    array_elements.warn(features)
    return {"format": FORMAT, "features": features}


def _check_choice(column: str, choice: Choice | None, size: int | None) -> None:
    if size and isinstance(choice, tuple) and (unknown := [n for n in choice if n >= size]):
        raise ConfigError(
            f"elements has {unknown[0]} for the column {column!r}, whose arrays have {size} "
            f"elements, from 0 to {size - 1}."
        )


def _feature(
    field: Any, kind: str, summary: Summary, num_bins: int, size: int | None, element: int
) -> dict[str, Any]:
    """Return the fields of a column, or of an element of its arrays."""
    data_type = field.dataType
    place: dict[str, Any] = {"size": size} if kind == "array" else {}
    if element != WHOLE:
        kind, data_type = "number", getattr(data_type, "elementType", T.DoubleType())
        place = {"column": field.name, "element": element, "size": size}
    return {
        "kind": kind,
        "type": data_type.simpleString(),
        **place,
        "n": summary.n,
        "nulls": summary.nulls,
        **_content(kind, summary, num_bins),
    }


def known_columns(data: "DataFrame", columns: Sequence[str]) -> list[Any]:
    """Return the columns of a DataFrame with these names, which may contain dots.

    Raises:
        ConfigError: if there is none with one of the names.
    """
    if unknown := [name for name in columns if name not in data.columns]:
        raise ConfigError(
            f"the DataFrame has no column {unknown[0]!r}; its columns are {data.columns}."
        )
    return [F.col("`" + name.replace("`", "``") + "`") for name in columns]


def _content(kind: str, summary: Summary, num_bins: int) -> dict[str, Any]:
    if kind == "category":
        return summary.categories.fields()
    if kind == "other":
        return {}
    values, counts = summary.values.values(), summary.values.counts
    shape = Shape.of(summary.moments, values, counts)
    edges = Edges.of(summary.moments, shape, summary.values, num_bins)
    return {**summary.moments.fields(shape), **edges.count(values, counts).fields()}


def _summaries(
    frame: "DataFrame", kinds: Sequence[str], choices: Sequence[Choice | None], max_ranges: int
) -> list[tuple[int | None, dict[int, Summary]]]:
    """Return the summaries of the columns, see `add_columns`."""
    if not kinds:
        return []
    schema = T.StructType(_from_arrow_schema())
    parts = map_in_arrow(as_arrow(frame, kinds), Summarizer(tuple(choices), max_ranges), schema)
    add = functools.partial(add_summaries, max_ranges=max_ranges)
    rows = to_arrow(apply_in_arrow(parts, "key", add, schema)).to_pylist()
    return add_columns(rows, choices, max_ranges)


def _from_arrow_schema() -> list[T.StructField]:
    from pyspark.sql.pandas.types import from_arrow_schema

    return list(from_arrow_schema(SUMMARY_SCHEMA).fields)


def as_arrow(frame: "DataFrame", kinds: Sequence[str]) -> "DataFrame":
    """Return the columns with the types that Spark tasks summarise, by numbered names.

    Args:
        frame: a DataFrame; columns before the features stay as they are.
        kinds: the kinds of the features.
    """
    from pyspark.ml.functions import vector_to_array

    # Numbered columns, because a name may contain a dot.
    numbered = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
    num_others = len(frame.columns) - len(kinds)
    columns = [F.col(name) for name in numbered.columns[:num_others]]
    for field, kind in zip(numbered.schema[num_others:], kinds, strict=True):
        column = F.col(field.name)
        if kind == "number":
            column = column.cast("double")
        elif kind == "array":
            if field.dataType.typeName() == "vectorudt":  # The function refuses nulls.
                column = F.when(column.isNotNull(), vector_to_array(column, "float64"))
            column = column.cast("array<double>")
        elif kind == "category":
            column = column.cast("string")
        else:
            column = F.when(column.isNotNull(), True)
        columns.append(column.alias(field.name))
    return numbered.select(*columns)


def kind_of(data_type: Any) -> str:
    """Return the kind of a feature with a Spark type."""
    name = data_type.typeName()
    if isinstance(data_type, T.NumericType):
        return "number"
    if name in ("string", "char", "varchar", "boolean"):
        return "category"
    is_array = name == "array" and isinstance(data_type.elementType, T.NumericType)
    return "array" if is_array or name == "vectorudt" else "other"
