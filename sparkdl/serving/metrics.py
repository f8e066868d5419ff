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

from sparkdl.serving.calls import Call

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """The metrics of one server.

    Args:
        loaded: returns the name and the number of each loaded version.
        open_requests: returns the number of requests that have come and are not answered.
        dropped: returns the number of requests that the inference log has dropped.
    """

    def __init__(
        self,
        loaded: Callable[[], Sequence[tuple[str, int]]],
        open_requests: Callable[[], int],
        dropped: Callable[[], int],
    ) -> None:
        self._loaded = loaded
        self._open_requests = open_requests
        self._dropped = dropped
        self._registry = CollectorRegistry()
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
        open_requests = Gauge(
            f"{prefix}_open_requests",
            "Requests by HTTP that have come and are not answered.",
            registry=self._registry,
        )
        open_requests.set_function(self._open_requests)
        dropped = Gauge(
            f"{prefix}_log_dropped",
            "Requests that the inference log has dropped since the start.",
            registry=self._registry,
        )
        dropped.set_function(self._dropped)
        self._versions = Gauge(
            f"{prefix}_version_loaded",
            "1 for each loaded version.",
            ["model", "version"],
            registry=self._registry,
        )

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

    def page(self) -> tuple[bytes, str]:
        """Return the metrics and their content type."""
        self._versions.clear()
        for name, version in self._loaded():
            self._versions.labels(name, str(version)).set(1)
        return generate_latest(self._registry), CONTENT_TYPE_LATEST
