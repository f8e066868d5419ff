"""Runs on the driver. Tell of the lines of a log that a watch leaves out.

The tasks count these lines beside the others. Spark returns the sums with the progress of a batch,
rather than with a window: a log without a single line that can be read ends no window.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQueryListener

from sparkdl.models.watch_files import ResultFiles
from sparkdl.monitoring.since import milliseconds
from sparkdl.monitoring.ticker import Ticker
from sparkdl.request_logs.counting import AHEAD, UNREADABLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["LeftOut", "has_caught_up", "observed"]

NAME = "sparkdl_left_out"
_KINDS = {"unreadable": UNREADABLE, "ahead": AHEAD}
_TEXTS = {
    "unreadable": "%d lines of the log of %s cannot be read, such as %s",
    "ahead": "%d requests in the log of %s are left out, as their time lies in the future, such as "
    "%s",
}

_logger = logging.getLogger("sparkdl.monitoring")


def observed(counts: "DataFrame") -> "DataFrame":
    """Return the counts of lines, without those of lines that are left out, which Spark sums up."""
    sums = []
    for name, number in _KINDS.items():
        is_kind = F.col("feature") == number
        sums.append(F.sum(F.when(is_kind, F.col("num"))).alias(name))
        sums.append(F.max(F.when(is_kind, F.col("part"))).alias(f"{name}_example"))
    time_ms = F.when(F.col("feature") >= 0, F.unix_millis("time"))
    sums.append(F.max(time_ms).alias("newest_ms"))
    return counts.observe(NAME, *sums).where(F.col("feature") >= 0)


class LeftOut(StreamingQueryListener):  # type: ignore[misc]
    """Writes the number of lines that the batches of a query leave out, and warns.

    Args:
        spark: the session.
        files: the files to write.
        model: the model that is watched, for messages.
        ticker: ends windows while no requests to the model come.
        ends: the query ends when it has read what there is.
    """

    def __init__(
        self, spark: "SparkSession", files: ResultFiles, model: str, ticker: Ticker, ends: bool
    ) -> None:
        self._spark = spark
        self._files = files
        self._model = model
        self._ticker = ticker
        self._ends = ends
        self._query: StreamingQuery | None = None
        self._noted: set[int] = set()
        self._lock = threading.Lock()

    def followed(self, start: Callable[[], "StreamingQuery"]) -> "StreamingQuery":
        """Start a query, or start it again, and note its batches from the first one on."""
        if self._query is None:
            self._spark.streams.addListener(self)
        try:
            self._query = start()
        except BaseException:
            self._spark.streams.removeListener(self)
            raise
        return self._query

    def end(self) -> None:
        """Note the batches that have ended, and no further ones."""
        self.catch_up()
        self._spark.streams.removeListener(self)
        self._ticker.keep()

    def has_become_idle(self) -> bool:
        """Return True if the log has become idle, and the clock is to end windows."""
        self.catch_up()
        return self._ticker.tick_if_idle()

    def catch_up(self) -> None:
        """Note the batches that have ended: the events of Spark come later."""
        for progress in self._query.recentProgress if self._query is not None else ():
            self._note(progress)

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing."""

    def onQueryIdle(self, event: Any) -> None:
        """Let the clock end windows if the log has been idle for long enough."""
        if self._is_own(event.runId):
            self._ticker.tick_if_idle()

    def onQueryTerminated(self, event: Any) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:
        """Note a batch that has ended; a log with lines of other models is never idle."""
        if not self._is_own(event.progress.runId):
            return
        self._note(event.progress)
        if not self._ends and has_caught_up(event.progress):
            self._ticker.tick_if_idle(milliseconds(event.progress.timestamp))

    def _is_own(self, run_id: Any) -> bool:
        return self._query is not None and str(run_id) == str(self._query.runId)

    def _note(self, progress: Any) -> None:
        with self._lock:  # The batches are added up in their order.
            if progress.batchId in self._noted:
                return
            self._noted.add(progress.batchId)
            row = progress.observedMetrics.get(NAME)
            sums = row.asDict() if row is not None else {}
            self._ticker.note(sums.get("newest_ms"))
            if found := _left_out(sums):
                self._files.add_left_out(progress.batchId, found)
        for name, counted in found.items():
            _logger.warning(_TEXTS[name], counted["num"], self._model, counted["example"])
        if any(state.numRowsDroppedByWatermark for state in progress.stateOperators):
            _logger.warning(
                "requests in the log of %s came after the end of their window, and are left out: "
                "raise late_s",
                self._model,
            )


def has_caught_up(progress: Any) -> bool:
    """Return True if a batch has read all lines that there were when it began."""
    unknown = (None, "None", "null")  # Of a source that has no limit.
    return all(s.latestOffset in (*unknown, s.endOffset) for s in progress.sources)


def _left_out(sums: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        name: {"num": sums[name], "example": sums[f"{name}_example"]}
        for name in _KINDS
        if sums.get(name)
    }
