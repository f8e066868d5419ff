"""Runs on the driver. Tell of the lines of a log that a watch leaves out.

The tasks count these lines beside the others. Spark returns the sums with the progress of a batch,
rather than with a window: a log without a single line that can be read ends no window.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from sparkdl.models.watch_files import ResultFiles
from sparkdl.monitoring.logs.counting import AHEAD, UNREADABLE
from sparkdl.monitoring.since import milliseconds
from sparkdl.monitoring.ticker import Ticker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

NAME = "sparkdl_left_out"
# Seconds between two looks at the batches that have ended, of which Spark keeps one hundred.
MIN_PAUSE_S, MAX_PAUSE_S = 1.0, 10.0
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


class LeftOut:
    """Writes the number of lines that the batches of a query leave out, and warns.

    A thread asks Spark for the batches that have ended. A listener of Spark would be told of them,
    but to remove one of a client of Spark Connect can block forever (SPARK-59623).

    Args:
        files: the files to write.
        model: the model that is watched, for messages.
        ticker: ends windows while no requests to the model come.
        trigger_s: seconds between two looks of the query at the log; None if it ends when it has
            read what there is.
    """

    def __init__(
        self, files: ResultFiles, model: str, ticker: Ticker, trigger_s: float | None
    ) -> None:
        self._files = files
        self._model = model
        self._ticker = ticker
        self._trigger_s = trigger_s
        self._query: StreamingQuery | None = None
        self._noted_batches: set[int] = set()
        self._lock = threading.Lock()
        self._has_ended = threading.Event()

    def followed(self, start: Callable[[], "StreamingQuery"]) -> "StreamingQuery":
        """Start a query, or start it again, and note its batches from the first one on."""
        query = self._query = start()
        threading.Thread(
            target=self._follow, args=(query,), name="sparkdl-watch", daemon=True
        ).start()
        return query

    def end(self) -> None:
        """Note the batches that have ended, and no further ones."""
        self._has_ended.set()
        self.catch_up()
        self._ticker.keep()

    def has_become_idle(self) -> bool:
        """Return True if the log has become idle, and the clock is to end windows."""
        self.catch_up()
        return self._ticker.tick_if_idle()

    def catch_up(self) -> None:
        """Note the batches that have ended since the last look."""
        if self._query is not None:
            self._note_batches_of(self._query)

    def _follow(self, query: "StreamingQuery") -> None:
        """Look at a query until it ends, and once more then."""
        pause_s = min(max(self._trigger_s or 0.0, MIN_PAUSE_S), MAX_PAUSE_S)
        is_active = True
        while is_active and not self._has_ended.wait(pause_s):
            try:
                is_active = query.isActive
            except Exception:
                _logger.debug("Spark has ended before the watch", exc_info=True)
                return
            try:
                self._look_at(query)
            except Exception:  # Of the store, which the next look may reach.
                _logger.warning(
                    "a batch of the watch of %s could not be noted; the next look tries again",
                    self._model,
                    exc_info=True,
                )

    def _look_at(self, query: "StreamingQuery") -> None:
        """Note the batches that have ended, and let the clock end windows if there are none."""
        status = query.status
        last = query.lastProgress
        if last is not None and last.batchId not in self._noted_batches:
            self._note_batches_of(query)
        elif self._trigger_s is not None and _found_nothing(status):
            # The query has looked at the log since this time.
            looked_s = time.time() - 2 * self._trigger_s
            self._ticker.tick_if_idle(int(looked_s * 1000))

    def _note_batches_of(self, query: "StreamingQuery") -> None:
        with self._lock:  # The batches are added up in their order.
            for progress in query.recentProgress:
                if progress.batchId not in self._noted_batches:
                    self._note(progress)
                    self._noted_batches.add(progress.batchId)

    def _note(self, progress: Any) -> None:
        """Note a batch that has ended; a log with lines of other models only is idle, too."""
        sums = _sums(progress)
        self._ticker.note(sums.get("newest_ms"))
        if kinds := _left_out(sums):
            self._files.add_left_out(progress.batchId, kinds)
        for name, lines in kinds.items():
            _logger.warning(_TEXTS[name], lines["num"], self._model, lines["example"])
        if any(state.numRowsDroppedByWatermark for state in progress.stateOperators):
            _logger.warning(
                "requests in the log of %s came after the end of their window, and are left out: "
                "raise late_s",
                self._model,
            )
        if self._trigger_s is not None and has_caught_up(progress):
            self._ticker.tick_if_idle(milliseconds(progress.timestamp))


def _found_nothing(status: Mapping[str, Any]) -> bool:
    """Return True if the query waits, and its last look at the log has found nothing."""
    # Before the first look the message is another, such as "Initializing sources".
    return not status["isDataAvailable"] and status["message"].startswith("Waiting")


def has_caught_up(progress: Any) -> bool:
    """Return True if a batch has read all lines that there were when it began."""
    unknown = (None, "None", "null")  # Of a source that has no limit.
    return all(s.latestOffset in (*unknown, s.endOffset) for s in progress.sources)


def _sums(progress: Any) -> dict[str, Any]:
    """Return the sums of a batch; a batch without lines has none."""
    row = progress.observedMetrics.get(NAME)
    sums = row.asDict() if row is not None else {}
    if "schema" in sums:  # Through Spark Connect.
        names = [field["name"] for field in sums["schema"]["fields"]]
        return dict(zip(names, sums["values"], strict=True))
    return sums


def _left_out(sums: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        name: {"num": sums[name], "example": sums[f"{name}_example"]}
        for name in _KINDS
        if sums.get(name)
    }
