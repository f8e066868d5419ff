"""Runs on the driver. Watch the requests of a model in a stream: the verb `watch`."""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from sparkdl import profiles
from sparkdl.cluster.spark import SparkCluster
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.files.jsonl import to_json
from sparkdl.models import ModelVersion
from sparkdl.models.watch_files import ResultFiles, Seen, folder_of
from sparkdl.monitoring.alerts import check_targets
from sparkdl.monitoring.counts import Features, counter_of
from sparkdl.monitoring.drift import DEFAULT_METRICS, MIN_ROWS, Thresholds, check_thresholds
from sparkdl.monitoring.drift_table import Drift
from sparkdl.monitoring.left_out import LeftOut, observed
from sparkdl.monitoring.log_stream import check_source, lines_of, with_ticks
from sparkdl.monitoring.logs.counting import COUNTS_SCHEMA, LogCounter, LogRows
from sparkdl.monitoring.logs.places import Names, Place
from sparkdl.monitoring.metrics import check_metrics
from sparkdl.monitoring.outbox import Outbox
from sparkdl.monitoring.reference import reference_of
from sparkdl.monitoring.results import results
from sparkdl.monitoring.since import as_text, milliseconds, start_of
from sparkdl.monitoring.ticker import Ticker
from sparkdl.monitoring.windows import WindowWriter
from sparkdl.spark.capabilities import check_streams
from sparkdl.spark.python import map_in_arrow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

# The counts of a window are few: more parts would only cost time.
NUM_PARTS = 2
_PARTS = "spark.sql.shuffle.partitions"
# Seconds that the clocks of hosts may be apart.
MIN_AHEAD_S = 60.0

_logger = logging.getLogger("sparkdl.monitoring")


class Watch:
    """A stream that watches the requests of a model.

    Args:
        query: the query of Spark.
        files: the files that it writes.
        left_out: the lines that the stream leaves out.
        before: the windows and the lines of earlier calls.

    Attributes:
        query: the query, a `StreamingQuery`.
        folder: path or URL of the folder of the results.
    """

    def __init__(
        self, query: "StreamingQuery", files: ResultFiles, left_out: LeftOut, before: Seen
    ) -> None:
        self.query = query
        self.folder = files.folder
        self._files = files
        self._left_out = left_out
        self._before = before

    def __repr__(self) -> str:
        return f"<Watch {'active' if self.is_active else 'ended'}, results in {self.folder}>"

    @property
    def is_active(self) -> bool:
        """True until the stream has ended."""
        return bool(self.query.isActive)

    @property
    def drift(self) -> Drift:
        """The windows that have ended so far, see `monitoring.results`."""
        self._left_out.catch_up()
        return results(self.folder)

    @property
    def new_drift(self) -> Drift:
        """The windows that have ended since this call of `watch`.

        With `available_now` these are all windows since drift was last acknowledged, see
        `monitoring.acknowledge`: a call that is repeated, because the one before was killed or its
        exit code was lost, tells of the same drift again. Windows without drift need no
        acknowledgement.
        """
        self._left_out.catch_up()
        batch, nums = self._before
        left_out, refused = self._files.read_left_out(nums), self._files.read_refused()
        windows, remarks = self._files.read_windows(batch), self._files.read_remarks()
        return Drift(windows, "window", left_out, refused=refused, remarks=remarks)

    @property
    def alerts(self) -> list[dict[str, Any]]:
        """The alerts about these windows, also those that a place has not taken yet."""
        return self._files.read_alerts()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the stream has ended.

        Args:
            timeout_s: seconds to wait; None waits without a limit.

        Returns:
            False if the stream goes on.

        Raises:
            StreamingQueryException: if the stream has failed.
        """
        if timeout_s is None:
            self.query.awaitTermination()
            return True
        return bool(self.query.awaitTermination(timeout_s))

    def stop(self) -> None:
        """End the stream. The same call of `watch` continues where it was."""
        self.query.stop()
        self._left_out.end()

    def _finish(self, start: "Callable[[], StreamingQuery]") -> None:
        """Wait until the stream has read what there was, and note what is returned."""
        try:
            self.wait()
            if self._left_out.has_become_idle():
                self.query = self._left_out.followed(start)
                self.wait()
        finally:
            self._left_out.end()
        self._files.write_finished()
        if not self.new_drift.drifted:
            self._files.acknowledge()


def watch(
    source: str,
    model: Any,
    *,
    to: str | None = None,
    since: datetime | str | float | None = None,
    window_s: float = 3600,
    late_s: float = 600,
    idle_s: float | None = None,
    metrics: Sequence[str] = DEFAULT_METRICS,
    columns: Sequence[str] | None = None,
    inputs: Names | None = None,
    outputs: Names | None = None,
    thresholds: Thresholds | None = None,
    min_rows: int = MIN_ROWS,
    alerts: Any = (),
    available_now: bool = False,
    trigger_s: float = 10,
    checkpoint: str | None = None,
    options: Mapping[str, str] | None = None,
    root: str | None = None,
    spark: "SparkSession | None" = None,
) -> Watch:
    """Compare the requests of a model with its training data, window by window, while they come.

    Spark counts the values of all features in one aggregation of a stream, by window and version.
    A window ends when requests have come that are `late_s` newer than its end; it is then compared
    with the profile, written once, and told of if a feature has drifted. A watch that was stopped
    or killed continues where it was when it is started again in the same way.

    Lines that cannot be read, and requests whose time is more than `late_s` (at least a minute)
    ahead of the clock, are left out, counted in `drift.left_out`, and told of in the log of the
    driver.

    Args:
        source: the inference log of the model server, a folder or URL of JSON lines, or a topic
            of Kafka, `kafka://host:9092/topic`. Logs of Hopsworks and KServe are read, too.
        model: a version of a model that was exported with `profile=`; its name, such as `loans`,
            `loans/3` or `loans@stable`; or a profile, for a log of one model only.
        to: the folder of the results; by default `monitoring/<name>/<version>` in the root.
        since: the time from which on requests are compared: a datetime, a text such as
            `2026-11-23T10:00:00Z`, or seconds since 1970. By default the time when the alias was
            moved to the version, for `loans@stable`, or else when the version was exported; for a
            profile all requests.
        window_s: seconds of a window.
        late_s: seconds that requests may come late.
        idle_s: seconds without a request to the model after which the clock ends windows, so that
            the last one does not wait for the next request. Requests that a log tells later than
            that are too late. By default only requests end windows.
        metrics, thresholds, min_rows: see `drift`.
        columns: the features to compare, or columns of arrays, for all of their elements; by
            default all that are inputs or outputs of the model.
        inputs: the features that inputs are, where the names differ: `{"x": ["age", "income"]}`
            for an input with several features in a row, or `{"x": "features"}` for one that was
            a column of arrays in the training data.
        outputs: the same for outputs, `{"output_0": "score"}`, if the profile has the predictions.
        alerts: places that are told of windows with drift: http(s) URLs, `callbacks.Webhook`,
            topics of Kafka, functions that take the alert. A place that does not take an alert
            gets it again with the next batch. A function that cannot take it now raises an
            `OSError`; after ten other errors, it does not get this alert again.
        available_now: read what there is, wait for it, and end; for a scheduler.
        trigger_s: seconds between two looks at the log.
        checkpoint: the folder in which Spark keeps its place, which its Hadoop must be able to
            write to; by default `checkpoint` in the folder of the results.
        options: further options of Spark's source for Kafka, such as
            `{"kafka.security.protocol": "SSL"}`.
        root: the folder that holds the runs and the models.
        spark: the session; by default the active one.

    Raises:
        ConfigError: if an argument is invalid, or the folder has results of another watch; no
            stream has started.
        StreamingQueryException: with `available_now`, if the stream has failed.

    Example:
        >>> from sparkdl import monitoring
        >>> monitoring.watch("/nowhere/log", "loans@stable", alerts="https://hooks.example.com/x")
        Traceback (most recent call last):
        sparkdl.errors.ConfigError: the log /nowhere/log does not exist. ...
    """
    names, limits = check_metrics(metrics), check_thresholds(thresholds or {})
    targets, source = check_targets(alerts), check_source(source)
    _check_times(window_s, late_s, trigger_s, idle_s)
    session = _session(spark)
    asked_ms = None if since is None else milliseconds(since)
    label, features, places, version = reference_of(model, columns, inputs, outputs, root)
    files = ResultFiles(storage.absolute(to) if to else _folder_of(version))
    checkpoint = checkpoint or files.checkpoint
    ticks = None if idle_s is None else files.ticks
    since_ms = _since(files, asked_ms, model, version, root)
    lines = lines_of(session, source, options, is_stream=True, since_ms=since_ms)
    fixed = {"model": label, "source": source, "window_s": window_s, "metrics": list(names)}
    fixed |= {"features": _digest(features), "since": as_text(since_ms), "has_idle_s": bool(ticks)}
    _keep_options(files, checkpoint, fixed, profiles.remarks(features))
    rows = LogRows(places, version.name if version else None, since_ms)
    bins = counter_of(features, names, [place.feature for place in places])
    counter = LogCounter(rows, bins, int(window_s * 1000), _ahead_ms(late_s))
    writer = WindowWriter(
        files=files,
        model=label,
        features=features,
        outputs=_outputs(features, bins.columns, places),
        metrics=names,
        limits=limits,
        min_rows=min_rows,
        outbox=Outbox(files, targets),
        version=version.version if version else None,
    )
    writer.outbox.deliver()
    windows = _windows(lines, counter, late_s, ticks)
    stream = windows.writeStream.foreachBatch(writer).queryName(f"sparkdl watch {label}")
    stream = stream.trigger(**_trigger(available_now, trigger_s))
    start = partial(_start, session, stream, checkpoint)
    ticker = Ticker(files, idle_s, window_s, late_s)
    left_out = LeftOut(files, label, ticker, None if available_now else trigger_s)
    before = files.last_acknowledged() if available_now else files.now()
    result = Watch(left_out.followed(start), files, left_out, before)
    if available_now:
        result._finish(start)
    return result


def _session(spark: "SparkSession | None") -> "SparkSession":
    session = SparkCluster(spark).spark
    check_streams(session, "monitoring.watch", "monitoring.read_log or monitoring.drift")
    return session


def _since(
    files: ResultFiles,
    asked_ms: int | None,
    model: Any,
    version: ModelVersion | None,
    root: str | None,
) -> int:
    """Return the time from which on requests count: that of the first start, if none is given."""
    if asked_ms is not None:
        return asked_ms
    options = files.read_options()
    if options is not None:
        return milliseconds(options.get("since", 0))
    return start_of(model, version, root) if version else 0


def _ahead_ms(late_s: float) -> int:
    """Return by how much the time of a request may be ahead of the clock."""
    return int(max(late_s, MIN_AHEAD_S) * 1000)


def _trigger(available_now: bool, trigger_s: float) -> dict[str, Any]:
    if available_now:
        return {"availableNow": True}
    return {"processingTime": f"{int(trigger_s * 1000)} milliseconds"}


def _check_times(window_s: float, late_s: float, trigger_s: float, idle_s: float | None) -> None:
    others = (late_s, trigger_s, 0 if idle_s is None else idle_s)
    if not window_s > 0 or not all(seconds >= 0 for seconds in others):
        raise ConfigError(
            f"got {window_s=}, {late_s=}, {trigger_s=} and {idle_s=}; expected a window of more "
            "than 0 seconds, and other times from 0 on."
        )


def _folder_of(version: ModelVersion | None) -> str:
    if version is None:
        raise ConfigError("with a profile as the model, pass to=, the folder of the results.")
    return folder_of(version)


def _outputs(features: Features, columns: Sequence[int], places: Sequence[Place]) -> frozenset[str]:
    """Return the names of the features that are in outputs of the model."""
    pairs = zip(features, columns, strict=True)
    return frozenset(name for name, column in pairs if places[column].is_output)


def _digest(features: Features) -> str:
    return hashlib.sha256(to_json(features).encode()).hexdigest()[:16]


def _keep_options(
    files: ResultFiles, checkpoint: str, options: dict[str, Any], remarks: Sequence[str]
) -> None:
    """Write the options of the first start; later ones must have the same. Tell the remarks."""
    first_options = files.read_options()
    if first_options is None:
        storage.write(files.options, to_json(options, indent=1))
        first_options = options
    if changed := [name for name in options if first_options.get(name) != options[name]]:
        raise ConfigError(
            f"{files.folder} has the results of a watch with another value of {changed[0]!r}: "
            f"{first_options.get(changed[0])!r}, not {options[changed[0]]!r}. Pass another "
            "folder as to=."
        )
    if storage.list_names(files.drift) and not storage.list_names(checkpoint):
        raise ConfigError(
            f"{files.folder} has results, and there is no checkpoint in {checkpoint}: windows "
            "would be counted again. Pass the checkpoint of these results, or another folder as "
            "to=."
        )
    if remarks or files.read_remarks():
        files.write_remarks(remarks)
    for text in remarks:
        _logger.warning("the watch of %s: %s", options["model"], text)


def _windows(
    lines: "DataFrame", counter: LogCounter, late_s: float, ticks: str | None
) -> "DataFrame":
    """Return the counts of each window. The time of counts lies in the window of their events."""
    counts = observed(map_in_arrow(lines, counter, COUNTS_SCHEMA))
    counts = counts if ticks is None else with_ticks(counts, ticks)
    counts = counts.withWatermark("time", f"{int(late_s * 1000)} milliseconds")
    window = F.window("time", f"{counter.window_ms} milliseconds").alias("window")
    sums = counts.groupBy(window, "version", "feature", "part", "bin").agg(
        F.sum("num").alias("num")
    )
    times = [F.col("window.start").alias("start"), F.col("window.end").alias("end")]
    return sums.select(*times, "version", "feature", "part", "bin", "num")


def _for_spark(url: str) -> str:
    """Return a URL as Hadoop reads it, which takes a path without a scheme for one in HDFS."""
    return f"file://{storage.absolute(url)}" if storage.is_local(url) else url


def _start(session: "SparkSession", stream: Any, checkpoint: str) -> "StreamingQuery":
    try:
        with _few_parts(session):
            stream = stream.outputMode("append")
            return stream.option("checkpointLocation", _for_spark(checkpoint)).start()
    except Exception as exc:  # Of py4j, or of pyspark.
        if "No FileSystem for scheme" not in str(exc):
            raise
        raise ConfigError(
            f"Spark cannot write its checkpoint to {checkpoint}: its Hadoop does not know the "
            "scheme. Pass checkpoint=, a folder that the driver and all executors can write to, or "
            "start Spark with the library of the store."
        ) from exc


@contextmanager
def _few_parts(spark: "SparkSession") -> "Iterator[None]":
    """Let a stream that starts add up its counts in few parts."""
    before = spark.conf.get(_PARTS)
    spark.conf.set(_PARTS, str(NUM_PARTS))
    try:
        yield
    finally:
        spark.conf.set(_PARTS, str(before))
