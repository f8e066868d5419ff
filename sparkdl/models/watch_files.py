"""Runs anywhere. The files that `monitoring.watch` writes about a version of a model.

```
<folder>/watch.json                        the options that must not change
        /drift/000000000012.parquet        the windows that ended with a batch of the stream
        /alerts/000000000012.jsonl         the alerts about these windows
        /unsent/000000000012.json          the places that have taken these alerts or have failed,
                                           until all have taken them
        /refused.json                      the number of alerts that places have refused for good
        /remarks.json                      what the windows cannot tell; missing if they tell all
        /left_out.json                     the number of lines that were left out, and why
        /ticks/000001795428000000          the times at which the log was idle
        /performance.parquet               the performance of windows whose labels have come
        /finished.json                     the newest batch, and these numbers, when a call ended
        /acknowledged.json                 the same, of the drift that was acted upon
        /checkpoint/                       Spark's own files
```

A batch that Spark repeats after a failure has the same windows, and replaces its files.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl.files import storage
from sparkdl.files.jsonl import from_json, to_json
from sparkdl.models.layout import models_folder
from sparkdl.models.version import ModelVersion

# By reason, the number of lines that were left out, and an example.
LeftOut = dict[str, dict[str, Any]]
# By alert, the places that have taken it, and the number of times that others have failed.
Taken = dict[str, dict[str, Any]]
# The number of a batch, and the numbers of lines that were left out.
Seen = tuple[int, dict[str, int]]

_TIME = pa.timestamp("us", "UTC")
RESULT_SCHEMA = pa.schema(
    [
        *(("window", _TIME), ("window_end", _TIME), ("version", pa.int64())),
        *(("feature", pa.string()), ("role", pa.string()), ("metric", pa.string())),
        *(("value", pa.float64()), ("threshold", pa.float64()), ("status", pa.string())),
        *(("rows", pa.int64()), ("nulls", pa.int64())),
    ]
)
PERFORMANCE_SCHEMA = pa.schema(
    [
        *(("window", _TIME), ("version", pa.int64()), ("metric", pa.string())),
        *(("value", pa.float64()), ("requests", pa.int64()), ("labelled", pa.int64())),
    ]
)


@dataclass(frozen=True)
class ResultFiles:
    """The files of one watch.

    Attributes:
        folder: path or URL of the folder.
    """

    folder: str

    @property
    def drift(self) -> str:
        """The folder of the windows."""
        return storage.join(self.folder, "drift")

    @property
    def alerts(self) -> str:
        """The folder of the alerts."""
        return storage.join(self.folder, "alerts")

    @property
    def unsent_alerts(self) -> str:
        """The folder of the places that have taken alerts."""
        return storage.join(self.folder, "unsent")

    @property
    def ticks(self) -> str:
        """The folder of the ticks that end windows while the log is idle."""
        return storage.join(self.folder, "ticks")

    @property
    def checkpoint(self) -> str:
        """The folder of Spark's checkpoint."""
        return storage.join(self.folder, "checkpoint")

    @property
    def options(self) -> str:
        """The file of the options."""
        return storage.join(self.folder, "watch.json")

    def write_windows(self, batch: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the windows of a batch; a batch that is written again replaces its file."""
        target = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(list(rows), schema=RESULT_SCHEMA), target)
        storage.write(storage.join(self.drift, f"{batch:012}.parquet"), target.getvalue())

    def write_alerts(self, batch: int, alerts: Sequence[Mapping[str, Any]]) -> None:
        """Write the alerts of a batch."""
        text = "".join(to_json(alert) + "\n" for alert in alerts)
        storage.write(self._alerts_of(batch), text)

    def has_alerts(self, batch: int) -> bool:
        """Return True if the alerts of a batch are there."""
        return storage.exists(self._alerts_of(batch))

    def _alerts_of(self, batch: int) -> str:
        return storage.join(self.alerts, f"{batch:012}.jsonl")

    def read_alerts_of(self, batch: int) -> list[dict[str, Any]]:
        """Return the alerts of a batch."""
        contents = storage.read_many([self._alerts_of(batch)])
        return [from_json(line) for data in contents.values() for line in data.splitlines()]

    def unsent(self) -> list[int]:
        """Return the batches whose alerts some place has not taken."""
        names = storage.list_names(self.unsent_alerts)
        return [_number(name) for name in names if name.endswith(".json")]

    def read_taken(self, batch: int) -> Taken:
        """Return the places that have taken each alert of a batch; none if all have."""
        taken: Taken | None = _content(self._taken_of(batch))
        return taken or {}

    def write_taken(self, batch: int, taken: Taken) -> None:
        """Write the places that have taken each alert of a batch."""
        storage.write(self._taken_of(batch), to_json(taken, indent=1))

    def remove_taken(self, batch: int) -> None:
        """Remove the places that have taken the alerts of a batch, as all have."""
        storage.remove(self._taken_of(batch))

    def _taken_of(self, batch: int) -> str:
        return storage.join(self.unsent_alerts, f"{batch:012}.json")

    def add_refused(self, place: str) -> int:
        """Count an alert that a place has refused for good, and return the number so far."""
        known = self.read_refused()
        known[place] = known.get(place, 0) + 1
        storage.write(self._refused, to_json(known, indent=1))
        return known[place]

    def read_refused(self) -> dict[str, int]:
        """Return the number of alerts that each place has refused for good."""
        return _content(self._refused) or {}

    @property
    def _refused(self) -> str:
        return storage.join(self.folder, "refused.json")

    def write_remarks(self, texts: Sequence[str]) -> None:
        """Write what the windows cannot tell."""
        storage.write(self._remarks, to_json(list(texts), indent=1))

    def read_remarks(self) -> tuple[str, ...]:
        """Return what the windows cannot tell."""
        return tuple(_content(self._remarks) or ())

    @property
    def _remarks(self) -> str:
        return storage.join(self.folder, "remarks.json")

    def add_left_out(self, batch: int, found: LeftOut) -> None:
        """Add the lines that a batch has left out to those of earlier batches."""
        known = _content(self._left_out) or {"batch": -1, "lines": {}}
        if batch <= known["batch"]:
            return
        lines = dict(known["lines"])
        for reason, counted in found.items():
            num = lines.get(reason, {"num": 0})["num"] + counted["num"]
            lines[reason] = {**counted, "num": num}
        storage.write(self._left_out, to_json({"batch": batch, "lines": lines}, indent=1))

    def read_left_out(self, before: Mapping[str, int] | None = None) -> LeftOut:
        """Return the number of lines that were left out and an example, for each reason.

        Args:
            before: the numbers of lines that do not count.
        """
        lines: LeftOut = (_content(self._left_out) or {"lines": {}})["lines"]
        nums = {
            name: counted["num"] - (before or {}).get(name, 0) for name, counted in lines.items()
        }
        return {name: {**lines[name], "num": num} for name, num in nums.items() if num > 0}

    @property
    def _left_out(self) -> str:
        return storage.join(self.folder, "left_out.json")

    def now(self) -> Seen:
        """Return the newest batch with windows, or -1, and the numbers of lines left out."""
        nums = {name: counted["num"] for name, counted in self.read_left_out().items()}
        return max(map(_number, self.names()), default=-1), nums

    def write_finished(self) -> None:
        """Note that a call has ended, and returns the windows that there are."""
        batch, nums = self.now()
        storage.write(self._finished, to_json({"batch": batch, "left_out": nums}))

    def acknowledge(self) -> None:
        """Note that what the last call returned was acted upon; nothing if no call has ended."""
        known = _content(self._finished)
        if known is not None:
            storage.write(self._acknowledged, to_json(known))

    def last_acknowledged(self) -> Seen:
        """Return `now` of the time when the last call ended that was acknowledged."""
        known = _content(self._acknowledged) or {"batch": -1, "left_out": {}}
        return int(known["batch"]), known["left_out"]

    @property
    def _acknowledged(self) -> str:
        return storage.join(self.folder, "acknowledged.json")

    @property
    def _finished(self) -> str:
        return storage.join(self.folder, "finished.json")

    def write_newest(self, time_ms: int) -> None:
        """Write the time of the newest request, in milliseconds since 1970."""
        storage.write(storage.join(self.ticks, "newest.json"), to_json({"time_ms": time_ms}))

    def read_newest(self) -> int | None:
        """Return the time of the newest request; None before one was written."""
        known = _content(storage.join(self.ticks, "newest.json"))
        return None if known is None else int(known["time_ms"])

    def write_performance(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the performance of windows in place of what was known of the same windows.

        Args:
            rows: rows with the fields of `PERFORMANCE_SCHEMA`.
        """
        both = [*self._read_performance().to_pylist(), *rows]
        known = {(row["window"], row["version"], row["metric"]): row for row in both}
        target = io.BytesIO()
        pq.write_table(pa.Table.from_pylist([*known.values()], PERFORMANCE_SCHEMA), target)
        storage.write(self._performance, target.getvalue())

    def read_performance(self) -> pd.DataFrame:
        """Return the performance of windows in their order."""
        table: pd.DataFrame = self._read_performance().to_pandas()
        return table.sort_values(["metric", "window"], kind="stable", ignore_index=True)

    def _read_performance(self) -> pa.Table:
        contents = storage.read_many([self._performance])
        tables = [pq.read_table(io.BytesIO(data)) for data in contents.values()]
        return tables[0] if tables else PERFORMANCE_SCHEMA.empty_table()

    @property
    def _performance(self) -> str:
        return storage.join(self.folder, "performance.parquet")

    def read_options(self) -> dict[str, Any] | None:
        """Return the options; None before the first start."""
        content: dict[str, Any] | None = _content(self.options)
        return content

    def names(self) -> list[str]:
        """Return the names of the files of windows."""
        return [name for name in storage.list_names(self.drift) if name.endswith(".parquet")]

    def read_windows(self, after: int = -1, last: int = 0) -> pd.DataFrame:
        """Return the windows in their order.

        Args:
            after: the number of a batch; only later batches are read.
            last: number of the newest files to read; 0 for all.
        """
        names = [name for name in self.names() if _number(name) > after][-last:]
        contents = storage.read_many(storage.join(self.drift, name) for name in names)
        tables = [pq.read_table(io.BytesIO(data)) for data in contents.values()]
        table: pd.DataFrame = pa.concat_tables(tables or [RESULT_SCHEMA.empty_table()]).to_pandas()
        order = ["window", "version", "feature", "metric"]
        return table.sort_values(order, kind="stable", ignore_index=True)

    def read_alerts(self) -> list[dict[str, Any]]:
        """Return all alerts in their order."""
        urls = [storage.join(self.alerts, name) for name in storage.list_names(self.alerts)]
        contents = storage.read_many(url for url in urls if url.endswith(".jsonl"))
        lines = [line for url in sorted(contents) for line in contents[url].splitlines()]
        return [from_json(line) for line in lines]


def _number(name: str) -> int:
    """Return the number of the batch that a file is about; -1 for other files."""
    number = name.partition(".")[0]
    return int(number) if number.isdecimal() else -1


def _content(url: str) -> Any:
    """Return the value in a file of JSON; None if there is no file."""
    try:
        return from_json(storage.read(url))
    except FileNotFoundError:
        return None


def folder_of(version: ModelVersion) -> str:
    """Return the folder of the results for a version of a model: below `monitoring` in the root."""
    folder, _, _ = version.path.rpartition(f"/models/{version.name}/{version.version}")
    folder = folder or models_folder(None).rpartition("/")[0]
    return storage.join(folder, "monitoring", version.name, version.version)
