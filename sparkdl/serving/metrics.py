"""Runs on the driver. Metrics of the model server, in Prometheus' format."""

from collections.abc import Callable, Sequence
from typing import Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from sparkdl.serving.calls import Call

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """The metrics of one server.

    The workers of a server write their numbers into files of one folder, as prometheus_client does
    where the environment variable `PROMETHEUS_MULTIPROC_DIR` names it: the sums are those of all
    workers, also of those that have ended.

    Args:
        loaded: returns the name and the number of each loaded version.
        open_requests: returns the number of requests that have come and are not answered.
        dropped: returns the number of requests that the inference log has dropped.
        folder: the folder of the files of all workers; None for a server of one process.
        note_all: lets all workers call `note`.
    """

    def __init__(
        self,
        loaded: Callable[[], Sequence[tuple[str, int]]],
        open_requests: Callable[[], int],
        dropped: Callable[[], int],
        *,
        folder: str | None = None,
        note_all: Callable[[], None] | None = None,
    ) -> None:
        self._loaded = loaded
        self._open_requests = open_requests
        self._dropped = dropped
        self._registry = CollectorRegistry()
        self._page = self._registry
        if folder is not None:
            self._page = CollectorRegistry()
            MultiProcessCollector(self._page, folder)  # type: ignore[no-untyped-call]
        self._note_all = note_all or self.note
        prefix = "sparkdl_serving"
        self._requests = Counter(
            f"{prefix}_requests",
            "Requests to a model, by status in HTTP.",
            ["model", "version", "method", "status"],
            registry=self._registry,
        )
        self._latency = Histogram(
            f"{prefix}_latency_seconds",
            "Seconds from a request to its answer.",
            ["model", "version"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._rows = Counter(
            f"{prefix}_rows", "Rows of requests.", ["model", "version"], registry=self._registry
        )
        self._batches = Histogram(
            f"{prefix}_batch_rows",
            "Rows that were computed at once with those of a request.",
            ["model"],
            buckets=_ROWS,
            registry=self._registry,
        )
        # To find a metric by its labels takes longer than to count.
        self._of: dict[Any, tuple[Counter, Histogram, Counter]] = {}
        self._gauges(prefix)

    def _gauges(self, prefix: str) -> None:
        self._open = Gauge(
            f"{prefix}_open_requests",
            "Requests by HTTP that have come and are not answered.",
            registry=self._registry,
            multiprocess_mode="livesum",
        )
        # Records that a worker dropped are missing also after its end.
        self._log_dropped = Gauge(
            f"{prefix}_log_dropped",
            "Requests that the inference log has dropped since the start.",
            registry=self._registry,
            multiprocess_mode="sum",
        )
        self._versions = Gauge(
            f"{prefix}_version_loaded",
            "Number of processes that have loaded the version.",
            ["model", "version"],
            registry=self._registry,
            multiprocess_mode="livesum",
        )
        self._noted: set[tuple[str, int]] = set()

    def observe(self, call: Call) -> None:
        """Count a request."""
        key = (call.model, call.version, call.method, call.status)
        if key not in self._of:
            version = "" if call.version is None else str(call.version)
            self._of[key] = (
                self._requests.labels(call.model, version, call.method, str(call.status)),
                self._latency.labels(call.model, version),
                self._rows.labels(call.model, version),
            )
        requests, latency, rows = self._of[key]
        requests.inc()
        latency.observe(call.latency_ms / 1000)
        rows.inc(call.rows)
        if call.batch is not None:
            self._batches.labels(call.model).observe(call.batch)

    def note(self) -> None:
        """Note the numbers that are those of a moment."""
        self._open.set(self._open_requests())
        self._log_dropped.set(self._dropped())
        loaded = {*self._loaded()}
        for name, version in self._noted | loaded:
            self._versions.labels(name, str(version)).set((name, version) in loaded)
        self._noted |= loaded

    def page(self) -> tuple[bytes, str]:
        """Return the metrics and their content type."""
        self._note_all()
        return generate_latest(self._page), CONTENT_TYPE_LATEST
