"""Runs on the driver. `sparkdl monitor MODEL DATA`: drift in a table or in a log of requests."""

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from sparkdl import monitoring
from sparkdl.cli.output import add_json, print_json, rows_of
from sparkdl.cli.spark_options import add_spark_options, use_spark_options
from sparkdl.cluster.spark import SparkCluster
from sparkdl.errors import ConfigError, SparkDLError
from sparkdl.files import storage
from sparkdl.models.registry import find
from sparkdl.monitoring.drift import MIN_ROWS
from sparkdl.monitoring.logs.folder import log_files
from sparkdl.monitoring.metrics import METRICS
from sparkdl.monitoring.since import milliseconds, start_of
from sparkdl.serving.kafka_topic import SCHEME

DRIFT = 1
ERROR = 2


def add_monitor(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `sparkdl monitor`."""
    parser.description = (
        "Compare a table, or the requests in the log of a model server, with the data "
        "that a model was trained with. The exit code is 1 if a feature has drifted, 0 if none "
        "has, and 2 after an error."
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="version of a model: NAME for the newest, NAME/3, NAME@stable",
    )
    parser.add_argument(
        "data",
        metavar="DATA",
        help="a log: a folder of JSON lines or kafka://host:9092/topic; or a table: a folder of "
        "Parquet files, or a name in Spark's catalog",
    )
    parser.add_argument(
        "--root", help="folder of runs and models; default: $SPARKDL_ROOT, otherwise ./runs"
    )
    _add_comparison(parser)
    _add_log(parser)
    add_json(parser)
    add_spark_options(parser)
    parser.set_defaults(run=_run)


def _add_log(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--available-now",
        action="store_true",
        help="watch a log: read what is new since the last call, and compare the windows that have "
        "ended; for a scheduler. Drift is told again until --acknowledge",
    )
    parser.add_argument(
        "--acknowledge",
        action="store_true",
        help="compare nothing: note that the drift of which calls with --available-now have told "
        "was acted upon, and need not be told again",
    )
    parser.add_argument("--to", help="with --available-now, the folder of the results")
    parser.add_argument(
        "--late-s", type=float, default=600, help="with --available-now; default: %(default)s"
    )
    parser.add_argument(
        "--idle-s",
        type=float,
        help="with --available-now, seconds without a request after which the clock ends windows",
    )
    parser.add_argument(
        "--alert", action="append", default=[], help="with --available-now, a URL to tell of drift"
    )
    parser.add_argument(
        "--since",
        help="compare the requests in a log from this time on, such as 2026-11-23T10:00Z; default: "
        "the time when the version was exported or, for NAME@ALIAS, got the alias",
    )


def _add_comparison(parser: argparse.ArgumentParser) -> None:
    def many(name: str, text: str, parse: Callable[[str], Any] = str, **more: Any) -> None:
        parser.add_argument(name, action="append", default=[], type=parse, help=text, **more)

    many("--metric", "a metric; default: psi and js; may be repeated", choices=list(METRICS))
    many(
        "--column",
        "a feature to compare, such as age or x[3], or a column of arrays; "
        "default: all; may be repeated",
    )
    many(
        "--threshold",
        "the threshold of a metric, for all features or for one; may be repeated",
        _threshold,
        metavar="METRIC[:FEATURE]=VALUE",
    )
    many("--input", "features in an input of the model", _names, metavar="INPUT=FEATURE,...")
    many("--output", "features in an output of the model", _names, metavar="OUTPUT=FEATURE,...")
    parser.add_argument("--min-rows", type=int, default=MIN_ROWS, help="default: %(default)s")
    parser.add_argument("--by", metavar="COLUMN", help="compare the rows of each value apart")
    parser.add_argument("--window-s", type=float, help="compare each window of a log apart")


def _threshold(text: str) -> tuple[str, str, float]:
    name, separator, value = text.rpartition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is no threshold; expected METRIC=VALUE")
    metric, _, feature = name.partition(":")
    return metric, feature, float(value)


def _names(text: str) -> tuple[str, str | list[str]]:
    tensor, separator, names = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} names no features; expected TENSOR=FEATURE,...")
    return tensor, names.split(",") if "," in names else names


def _thresholds(options: Sequence[tuple[str, str, float]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for metric, feature, value in options:
        by_feature = result.get(metric, {})
        if not feature or not isinstance(by_feature, dict):
            result[metric] = value
        else:
            result[metric] = {**by_feature, feature: value}
    return result


def _run(arguments: argparse.Namespace) -> int:
    use_spark_options(arguments)
    try:
        if arguments.acknowledge:
            monitoring.acknowledge(arguments.to or arguments.model, root=arguments.root)
            return 0
        drift = _new_drift(arguments) if arguments.available_now else _compared(arguments)
        _show(drift, arguments.json)
    except (PySparkException, SparkDLError, OSError) as exc:
        print(f"sparkdl: {exc}", file=sys.stderr)
        return ERROR
    except Exception:  # noqa: BLE001 Python's own exit code, 1, would be taken for drift.
        traceback.print_exc()
        return ERROR
    return DRIFT if drift.drifted else 0


def _show(drift: monitoring.Drift, as_json: bool) -> None:
    if as_json:
        left_out = {reason: dict(counted) for reason, counted in drift.left_out.items()}
        rows = rows_of(drift.table)
        found = {"drifted": drift.drifted, "left_out": left_out, "remarks": drift.remarks}
        print_json({**found, "rows": rows})
    else:
        print(drift)


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "columns": arguments.column or None,
        "thresholds": _thresholds(arguments.threshold),
        "min_rows": arguments.min_rows,
        **({"metrics": arguments.metric} if arguments.metric else {}),
    }


def _new_drift(arguments: argparse.Namespace) -> monitoring.Drift:
    """Return the windows of a log that have ended since drift was last acknowledged."""
    if arguments.by:
        raise ConfigError("--by is for a table; a watch compares windows: see --window-s.")
    watch = monitoring.watch(
        arguments.data,
        arguments.model,
        to=arguments.to,
        since=arguments.since,
        root=arguments.root,
        window_s=arguments.window_s or 3600,
        late_s=arguments.late_s,
        idle_s=arguments.idle_s,
        inputs=dict(arguments.input),
        outputs=dict(arguments.output),
        alerts=arguments.alert,
        available_now=True,
        **_options(arguments),
    )
    return watch.new_drift


def _compared(arguments: argparse.Namespace) -> monitoring.Drift:
    """Return the drift of a table or a log."""
    version = find(arguments.model, arguments.root)
    by, options = arguments.by, _options(arguments)
    if not _is_log(arguments.data):
        if arguments.input or arguments.output or arguments.window_s or arguments.since:
            raise ConfigError(
                "--input, --output, --window-s and --since are for the log of a model server."
            )
        return monitoring.drift(version, _table(arguments.data), by=by, **options)
    since = arguments.since
    since_ms = milliseconds(since) if since else start_of(arguments.model, version, arguments.root)
    df = monitoring.read_log(
        arguments.data,
        version,
        columns=options["columns"],
        inputs=dict(arguments.input),
        outputs=dict(arguments.output),
        since=since_ms / 1000,
    )
    _, _, time, number, *features = df.columns
    if by != number:
        df = df.where(F.col(number).isNull() | (F.col(number) == version.version))
    if arguments.window_s:
        window = F.window(time, f"{int(arguments.window_s * 1000)} milliseconds")
        name = "request_window" if "window" in features else "window"
        df, by = df.withColumn(name, window.start), by or name
    options["columns"] = options["columns"] or features
    return monitoring.drift(version, df, by=by, **options)


def _is_log(data: str) -> bool:
    return data.startswith(SCHEME) or any(log_files(storage.absolute(data)))


def _table(data: str) -> Any:
    spark = SparkCluster().spark
    is_path = "/" in data or storage.exists(storage.absolute(data))
    return spark.read.parquet(storage.absolute(data)) if is_path else spark.table(data)
