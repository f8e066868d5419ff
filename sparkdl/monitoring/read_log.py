"""Runs on the driver. The requests in a log of a model server as a DataFrame: `read_log`."""

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from sparkdl.cluster.spark import SparkCluster
from sparkdl.monitoring.log_stream import check_source, lines_of
from sparkdl.monitoring.logs import Event
from sparkdl.monitoring.logs.counting import LogRows, events_of, example
from sparkdl.monitoring.logs.places import Names
from sparkdl.monitoring.logs.table import ID_COLUMNS, ORDER_COLUMNS, LogOrder, LogTable
from sparkdl.monitoring.reference import reference_of
from sparkdl.monitoring.since import milliseconds
from sparkdl.spark.capabilities import to_arrow
from sparkdl.spark.python import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TYPES = {
    "number": T.DoubleType(),
    "category": T.StringType(),
    "array": T.ArrayType(T.DoubleType()),
}
_ID_TYPES = (T.StringType(), T.IntegerType(), T.TimestampType(), T.LongType())
_ORDER_TYPES = (T.StringType(), T.LongType(), T.BooleanType())
# Lines that tell whether a log has one event for a request, or two.
NUM_SEEN = 10

_logger = logging.getLogger("sparkdl.monitoring")


def read_log(
    source: str,
    model: Any,
    *,
    columns: Sequence[str] | None = None,
    inputs: Names | None = None,
    outputs: Names | None = None,
    since: datetime | str | float | None = None,
    options: dict[str, str] | None = None,
    root: str | None = None,
    spark: "SparkSession | None" = None,
) -> "DataFrame":
    """Return the requests in the log of a model server as a DataFrame, one row for each row.

    Requests that were refused, those of other models, and lines that cannot be read are left out.
    Where a log has an event for the request and one for the answer, they are joined by their id: a
    request that was refused, and then sent again with the same id, counts once it was served.
    Events are counted by the rule of `watch`.

    Args:
        source: the log, see `watch`.
        model: the model, see `watch`; its profile says which features there are.
        columns, options, root, spark: see `watch`.
        since: the time from which on requests are returned, see `watch`; by default all are.
        inputs, outputs: see `watch`; they may name further columns than the profile has, such as
            `outputs={"output_0": "score"}`.

    Returns:
        A DataFrame with the columns `id` (of the request), `row` (its number in the request),
        `time`, `version`, and one for each feature: data for `drift`. If a feature has one of these
        four names, the column of the request is `request_id`, `request_row` and so on.

    Raises:
        ConfigError: if an argument is invalid; no Spark job has started.

    Example:
        >>> import pathlib
        >>> from sparkdl import monitoring
        >>> from pyspark.sql import SparkSession
        >>> line = '{"id": "a", "time": 0, "model": "m", "inputs": {"id": [7, 8]}, "outputs": {}}'
        >>> _ = pathlib.Path("log.jsonl").write_text(line)
        >>> spark = SparkSession.builder.getOrCreate()
        >>> profile = monitoring.profile(spark.range(10).selectExpr("id AS size"))
        >>> rows = monitoring.read_log(".", profile, inputs={"id": "size"})
        >>> [(row.id, row.row, row.size) for row in rows.collect()]
        [('a', 0, 7.0), ('a', 1, 8.0)]
    """
    source = check_source(source)
    _, _, places, version = reference_of(model, columns, inputs, outputs, root, has_others=True)
    since_ms = 0 if since is None else milliseconds(since)
    rows = LogRows(places, version.name if version else None, since_ms)
    fields = [T.StructField(place.feature, _TYPES[place.kind]) for place in places]
    lines = lines_of(SparkCluster(spark).spark, source, options)
    if _has_two_events(lines, source):
        lines = _by_request(lines, rows)
    # Numbered columns, because a name may contain a dot.
    numbered = [T.StructField(f"c{i}", field.dataType) for i, field in enumerate(fields)]
    ids = [T.StructField(*field) for field in zip(ID_COLUMNS, _ID_TYPES, strict=True)]
    table = map_in_arrow(lines, LogTable(rows), T.StructType([*ids, *numbered]))
    names = [field.name for field in fields]
    return table.toDF(*_id_names(names), *names)


def _id_names(features: Sequence[str]) -> list[str]:
    """Return the names of the columns of the request. Spark does not tell `id` from `ID`."""
    names = {name.lower() for name in features}
    return [f"request_{name}" if name in names else name for name in ID_COLUMNS]


def _by_request(lines: "DataFrame", rows: LogRows) -> "DataFrame":
    """Return lines with the events of a request in one partition, in the order of their times."""
    order = [T.StructField(*field) for field in zip(ORDER_COLUMNS, _ORDER_TYPES, strict=True)]
    schema = T.StructType([*order, *lines.schema.fields])
    keyed_lines = map_in_arrow(lines, LogOrder(rows), schema).repartition(ORDER_COLUMNS[0])
    return keyed_lines.sortWithinPartitions(*ORDER_COLUMNS).drop(*ORDER_COLUMNS)


def _has_two_events(lines: "DataFrame", source: str) -> bool:
    """Return True if a log has an event for the answer; warn if its first lines are no events."""
    first_lines = to_arrow(lines.limit(NUM_SEEN))
    pairs = [
        (event, line) for batch in first_lines.to_batches() for event, line in events_of(batch)
    ]
    events = [event for event, _ in pairs if isinstance(event, Event)]
    if pairs and not events:
        reason, line = pairs[0]
        _logger.warning(
            "the first %d lines of the log %s cannot be read, such as %s",
            len(pairs),
            source,
            example(line, str(reason)),
        )
    return any(event.inputs is None or event.outputs is None for event in events)
