"""Runs on the driver. The inference log: a record of each request, written beside the requests."""

import logging
import random
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.files.polling import Outages
from sparkdl.serving.calls import Call
from sparkdl.serving.json_tensors import Array, plain
from sparkdl.serving.kafka_topic import SCHEME, KafkaTopic
from sparkdl.serving.log_sinks import JsonLinesSink, KafkaSink, LogSink, Record

# Records of one write, and the seconds that the end of the server waits for the last of them.
MAX_WRITTEN = 2000
END_S = 10.0

_logger = logging.getLogger("sparkdl.serving")


@dataclass(frozen=True)
class Log:
    """The options of the inference log.

    Attributes:
        url: the folder of the files, a path or an fsspec URL; `kafka://host:9092/topic`; or another
            place, a `LogSink`.
        sample: the share of the requests that are logged, from 0 to 1.
        max_queued: number of records that may wait to be written. Further records are dropped, and
            counted.
        max_queued_mb: megabytes of inputs and outputs that may wait.

    Example:
        >>> Log("s3://bucket/log", sample=0.1).max_queued
        10000
    """

    url: str | LogSink
    sample: float = 1.0
    max_queued: int = 10_000
    max_queued_mb: float = 256


def check_log(value: Any) -> None:
    """Validate the log that the user asks for.

    Args:
        value: a path or URL, `Log`, or None.

    Raises:
        ConfigError: if an option has a wrong value.
    """
    if value is None:
        return
    options = value if isinstance(value, Log) else Log(value)
    if not isinstance(options.url, str | LogSink) or not options.url:
        raise ConfigError(
            f"log is {value!r}; expected a path or URL for files of JSON lines, "
            "kafka://host:9092/topic, or serving.Log(url, sample=0.1)."
        )
    if isinstance(options.url, str) and options.url.startswith(SCHEME):
        KafkaTopic.of(options.url)
    sample = options.sample
    if isinstance(sample, bool) or not isinstance(sample, int | float) or not 0 <= sample <= 1:
        raise ConfigError(f"the log has sample {sample!r}; expected a share from 0 to 1.")
    if not options.max_queued >= 1 or not options.max_queued_mb > 0:
        raise ConfigError(
            f"the log has max_queued {options.max_queued!r} and max_queued_mb "
            f"{options.max_queued_mb!r}; expected more than 0."
        )


def log_of(value: Any) -> "InferenceLog | None":
    """Start the log that the user asks for; None for no log. See `check_log`."""
    check_log(value)
    if value is None:
        return None
    options = value if isinstance(value, Log) else Log(value)
    return InferenceLog(_sink(options.url), options)


def _sink(url: str | LogSink) -> LogSink:
    if isinstance(url, LogSink):
        return url
    return KafkaSink(url) if url.startswith(SCHEME) else JsonLinesSink(url)


class InferenceLog:
    """A queue of records and the thread that writes them.

    Args:
        sink: the place that takes the records.
        options: the options.
    """

    def __init__(self, sink: LogSink, options: Log) -> None:
        self._sink = sink
        self._options = options
        self._max_bytes = int(options.max_queued_mb * (1 << 20))
        self._queue: deque[tuple[Call, int]] = deque()
        self._num_bytes = 0
        self._num_dropped = 0
        self._num_in_write = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._outages = Outages("write the inference log")
        self._thread = threading.Thread(target=self._work, name="sparkdl-serving-log", daemon=True)
        self._thread.start()

    @property
    def num_dropped(self) -> int:
        """Number of records that are not in the log, as too many waited, or by `num_left_out`."""
        return self._num_dropped + self._sink.num_left_out

    def observe(self, call: Call) -> None:
        """Let a request be logged, if it belongs to the sample. Never waits."""
        # The range of random() does not include 1.
        if not call.model or random.random() >= self._options.sample:
            return
        size = sum(map(_size, (*call.inputs.values(), *call.outputs.values())))
        with self._lock:
            is_full = len(self._queue) >= self._options.max_queued
            if is_full or (self._queue and self._num_bytes + size > self._max_bytes):
                self._num_dropped += 1
                return
            self._queue.append((call, size))
            self._num_bytes += size

    def close(self) -> None:
        """Write the records that wait, and end the thread."""
        self._stop.set()
        self._thread.join(END_S)
        with self._lock:
            self._num_dropped += len(self._queue)
            self._queue.clear()
        if self.num_dropped:
            _logger.warning("%d records of the inference log were dropped", self.num_dropped)

    # ---- in the thread

    def _work(self) -> None:
        while not self._stop.wait(self._sink.pause_s):
            self._write()
        self._write()
        self._sink.close()

    def _write(self) -> None:
        """Write all records that wait, until the place fails."""
        while self._queue:
            with self._lock:
                # A write that failed is tried again with the same records.
                self._num_in_write = self._num_in_write or min(len(self._queue), MAX_WRITTEN)
                items = [self._queue[i] for i in range(self._num_in_write)]
            is_written = False
            with self._outages.tolerated():
                try:
                    self._sink.write([_record(call) for call, _ in items])
                except OSError:
                    raise
                except Exception:
                    # Records that cannot be written must not hold up those behind them.
                    _logger.exception("%d records of the log cannot be written", len(items))
                    self._num_dropped += len(items)
                is_written = True
            if not is_written:
                return
            with self._lock:
                self._num_in_write = 0
                for _, size in items:
                    self._queue.popleft()
                    self._num_bytes -= size


def _size(array: Array) -> int:
    if getattr(getattr(array, "dtype", None), "kind", "") == "O":
        return sum(len(item) for item in array.ravel().tolist())
    return int(getattr(array, "nbytes", 0))


def _record(call: Call) -> Record:
    return {
        "id": call.id,
        "time": call.time_ms,
        "model": call.model,
        "version": call.version,
        "signature": call.signature,
        "rows": call.rows,
        "status": call.status,
        "latency_ms": round(call.latency_ms, 3),
        "batch": call.batch,
        "inputs": {name: plain(array, name) for name, array in call.inputs.items()},
        "outputs": {name: plain(array, name) for name, array in call.outputs.items()},
    }
