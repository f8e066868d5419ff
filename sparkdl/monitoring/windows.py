"""Runs on the driver. Write the drift of the windows that end with a batch of a stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timezone
from typing import TYPE_CHECKING, Any

from sparkdl.models.watch_files import ResultFiles
from sparkdl.monitoring.alerts import alerts_of
from sparkdl.monitoring.counts import Features, as_counts
from sparkdl.monitoring.drift import Thresholds, drift_rows
from sparkdl.monitoring.drift_table import OTHER_VERSION
from sparkdl.monitoring.logs.counting import TICK
from sparkdl.monitoring.outbox import Outbox
from sparkdl.spark.capabilities import to_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, kw_only=True)
class WindowWriter:
    """A function for `foreachBatch`.

    Attributes:
        files: the files to write.
        model: the model whose training data is the reference.
        features: the features by name, in the order of their numbers.
        outputs: the names of the features that are outputs.
        metrics, limits, min_rows: see `watch`.
        outbox: the alerts on their way.
        version: the version that is watched; None for all.
    """

    files: ResultFiles
    model: str
    features: Features
    outputs: frozenset[str]
    metrics: tuple[str, ...]
    limits: Thresholds
    min_rows: int
    outbox: Outbox
    version: int | None = None

    def __call__(self, batch: "DataFrame", number: int) -> None:
        """Write the windows of a batch, and send alerts, also those of earlier batches.

        Spark calls this function again with the same batch if it was killed in between. An alert
        that a place has taken is not sent again, unless the kill came before this was written.
        """
        sums = [row for row in to_arrow(batch).to_pylist() if row["feature"] != TICK]
        if rows := self._rows(sums):
            self.files.write_windows(number, rows)
            self.outbox.add(number, alerts_of(rows, self.model))
        self.outbox.deliver()

    def _rows(self, sums: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        # A version that is not known comes before the others.
        groups = [{**row, "group": (row["start"], row["end"], row["version"] or 0)} for row in sums]
        rows = []
        for (start, end, version), counts in as_counts(groups, self.features).items():
            times = {
                "window": start.astimezone(timezone.utc),
                "window_end": end.astimezone(timezone.utc),
            }
            first = {**times, "version": version or None}
            is_other = self.version is not None and version not in (0, self.version)
            for row in drift_rows(
                counts, self.features, self.metrics, self.limits, self.min_rows, first
            ):
                role = "output" if row["feature"] in self.outputs else "input"
                # The profile of a version says nothing about requests to another one.
                rows.append(
                    {**row, "role": role, **({"status": OTHER_VERSION} if is_other else {})}
                )
        return rows
