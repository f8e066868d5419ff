"""Runs on the driver and in Spark tasks. A folder of JSON lines as a stream for Spark.

Spark's own source of a stream of files reads a file once, when it appears. The files of an
inference log grow for an hour, and lie on any fsspec URL: this source remembers how far each file
was read.
"""

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from sparkdl.monitoring.logs.folder import (
    HOUR,
    LINES_SCHEMA,
    file_ends,
    hour_of,
    parts,
    read_part,
    time_of_hour,
)

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as CanEnd
except ImportError:  # Spark 4.1 and older versions read all that there is in one batch.

    class CanEnd:  # type: ignore[no-redef]
        """A source that can end."""


__all__ = ["FORMAT", "CanEnd", "LogFolder", "LogFolderStream"]

FORMAT = "sparkdl_log"
# Files of hours so long before the newest one are no longer looked at.
KEPT = timedelta(days=3)

# The bytes read of each file, and the folder before which all files were read.
_Offset = dict[str, Any]


class LogFolder(DataSource):  # type: ignore[misc]
    """The lines of the files below a folder.

    The option `path` is its path or fsspec URL. A stream leaves out the folders of hours before the
    option `since`, such as `date=2026-11-23/hour=10`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the schema of the lines: their content and their place."""
        return LINES_SCHEMA

    def streamReader(self, schema: Any) -> "LogFolderStream":
        """Return the reader of the stream."""
        return LogFolderStream(self.options["path"], self.options.get("since", ""))


class LogFolderStream(DataSourceStreamReader, CanEnd):  # type: ignore[misc]
    """The reader of the stream.

    Args:
        url: the folder.
        since: folders of earlier hours are left out.
    """

    def __init__(self, url: str, since: str = "") -> None:
        self._url = url
        self._since = since
        self._ends_at_once = False
        self._last: dict[str, int] | None = None

    def initialOffset(self) -> _Offset:
        """Return the offset of a stream that starts."""
        return {"since": self._since, "files": {}}

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what there is at the next call, and nothing that comes later."""
        self._ends_at_once = True

    def latestOffset(self, start: Any = None, limit: Any = None) -> _Offset:
        """Return the offset behind the last line of each file."""
        start = start or self.initialOffset()
        since = start["since"]
        known_ends = start["files"]
        ends = self._last
        if ends is None:
            ends = file_ends(self._url, known_ends, since)
            if self._ends_at_once:
                self._last = ends
        files = {**known_ends, **{n: max(end, known_ends.get(n, 0)) for n, end in ends.items()}}
        # A server whose clock is wrong writes to the folder of an hour that has not come yet.
        now = hour_of(int(time.time() * 1000))
        newest = max(
            (name for name in known_ends if time_of_hour(name) and name < f"{now}0"), default=""
        )
        if hour := time_of_hour(newest):
            since = max(since, (hour - KEPT).strftime(HOUR))
        recent = {
            name: end
            for name, end in files.items()
            if end != known_ends.get(name) or not time_of_hour(name) or name >= since
        }
        return {"since": since, "files": recent}

    def partitions(self, start: Any, end: Any) -> list[Any]:
        """Return the parts of the files between two offsets."""
        files = parts(self._url, start["files"], end["files"])
        return [InputPartition(part) for part in files]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the lines of a part."""
        return read_part(partition.value)
