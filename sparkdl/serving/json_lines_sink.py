"""Runs anywhere. The inference log as files of JSON lines, one folder for each hour.

```
<url>/date=2026-11-23/hour=10/<writer>-<n>.jsonl
```

Spark reads date and hour as columns. A server has files of its own; where a store cannot append to
a file, each write has a file.
"""

import itertools
import uuid
from collections.abc import Sequence
from datetime import datetime, timezone

from sparkdl import storage
from sparkdl.serving.json_tensors import to_json
from sparkdl.serving.log_sink import LogSink, Record

__all__ = ["JsonLinesSink"]

LOCAL_PAUSE_S = 1.0
REMOTE_PAUSE_S = 30.0


class JsonLinesSink(LogSink):
    """Files of JSON lines.

    Args:
        url: the folder: a path or an fsspec URL.
    """

    def __init__(self, url: str) -> None:
        self._url = storage.absolute(url)
        self._writer = uuid.uuid4().hex[:12]
        self._appends = storage.is_local(self._url) or storage.appends(self._url)
        self._numbers = itertools.count(1)
        self._number = next(self._numbers)
        # The hours of a write that failed and that are on the store already.
        self._written: set[str] = set()
        self.pause_s = LOCAL_PAUSE_S if self._appends else REMOTE_PAUSE_S

    def write(self, records: Sequence[Record]) -> None:
        """Write records, see `LogSink`."""
        hours: dict[str, list[bytes]] = {}
        for record in records:
            hours.setdefault(_hour(record["time"]), []).append(to_json(record) + b"\n")
        for hour, lines in hours.items():
            if hour in self._written:
                continue
            if self._appends:
                storage.append(self._file(hour, 1), b"".join(lines))
            else:
                storage.write(self._file(hour, self._number), b"".join(lines))
            self._written.add(hour)
        self._written.clear()
        self._number = next(self._numbers)

    def _file(self, hour: str, number: int) -> str:
        return storage.join(self._url, hour, f"{self._writer}-{number}.jsonl")


def _hour(time_ms: int) -> str:
    """Return the folder of a time, in UTC.

    Example:
        >>> _hour(0)
        'date=1970-01-01/hour=00'
    """
    return datetime.fromtimestamp(time_ms / 1000, timezone.utc).strftime("date=%Y-%m-%d/hour=%H")
