"""Runs on the driver and in Spark tasks. The clock as a source for Spark, while a log is idle.

Windows end by the times of requests: without requests, the last window never ends. The driver then
writes a tick, an empty file whose name is the time. This source returns the newest tick as a row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from sparkdl.files import storage
from sparkdl.monitoring.logs.folder_source import CanEnd

FORMAT = "sparkdl_ticks"


class Ticks(DataSource):  # type: ignore[misc]
    """The ticks in the folder that the option `path` names."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the schema: milliseconds since 1970."""
        return "ms long"

    def streamReader(self, schema: Any) -> "TickStream":
        """Return the reader of the stream."""
        return TickStream(self.options["path"])


@dataclass
class Tick(InputPartition):  # type: ignore[misc]
    """A tick.

    Attributes:
        ms: milliseconds since 1970.
    """

    ms: int


class TickStream(DataSourceStreamReader, CanEnd):  # type: ignore[misc]
    """The reader of the stream.

    Args:
        url: the folder.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def initialOffset(self) -> dict[str, int]:
        """Return the offset of a stream that starts."""
        return {"ms": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """Do nothing: no ticks come while a stream reads what there is."""

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        """Return the offset of the newest tick."""
        last_ms = (start or self.initialOffset())["ms"]
        names = [name for name in storage.list_names(self._url) if name.isdecimal()]
        return {"ms": max([last_ms, *map(int, names)])}

    def partitions(self, start: Any, end: Any) -> list[Any]:
        """Return the newest tick between two offsets."""
        return [Tick(end["ms"])] if end["ms"] > start["ms"] else []

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the row of a tick."""
        yield pa.RecordBatch.from_pydict({"ms": pa.array([partition.ms], pa.int64())})
