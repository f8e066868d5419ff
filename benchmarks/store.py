"""Count what runs ask of an S3 store, and what many trials cost on it.

1. A search of 32 trials that run at once for a minute and report once a second: calls and bytes,
   and the same when each trial runs twice as long. The calls of a second are those in the middle of
   the longer search: on a small machine, the starts of 32 processes take up much of the shorter.
   Bytes that grow with what is reported double; those of a file that is rewritten at each report
   grow fourfold.
2. Many trials that do nothing, on a local root and on S3: what a trial costs among the last tenth
   against the first, the memory, threads and descriptors of the driver, and bytes on disk.

    python benchmarks/store.py --trials 10000

The server is on this machine and only counts: times are not those of a real store. It prints a
table, then one JSON document.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from lib.machine import machine, resident_mb
from lib.s3_server import S3Server
from pyspark.sql import SparkSession

from sparkdl import context, experiment, search

SEARCHES = 32
AIM_CALLS_PER_S = 15.0
AIM_BYTES = 2.5  # For twice as many reports.
AIM_COST = 1.2

Row = dict[str, Any]


def reporting(x: float, seconds: int) -> float:
    """Report once a second."""
    for step in range(seconds):
        context.report(x + step, step=step)
        time.sleep(1)
    return x


def trivial(i: int) -> int:
    """Do nothing."""
    return i


def session(slots: int) -> SparkSession:
    """Start embedded Spark."""
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark = SparkSession.builder.master(f"local[{slots}]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def running_search(server: S3Server, seconds: int) -> Row:
    """Count the calls of a search, while all of its trials run."""
    found: list[dict[str, int]] = []

    def count() -> None:
        found.append(_together(server))

    # The start and the end of the run are not counted: a third of the time on each side.
    timers = [threading.Timer(seconds / 3, count), threading.Timer(2 * seconds / 3, count)]
    before = _together(server)
    for timer in timers:
        timer.start()
    run = experiment.search(
        reporting,
        {"x": search.Float(0.0, 1.0), "seconds": [seconds]},
        algorithm="random",
        num_trials=SEARCHES,
        parallelism=SEARCHES,
        pruner="median",
        direction="max",
        root=f"{server.bucket}/search-{seconds}",
        progress=False,
    )
    after = _together(server)
    first, second = found
    return {
        "seconds": seconds,
        "states": {str(state): count for state, count in run.counts().items()},
        "calls_per_s": round((second["calls"] - first["calls"]) / (seconds / 3), 1),
        "calls": after["calls"] - before["calls"],
        "bytes_in": after["bytes_in"] - before["bytes_in"],
        "bytes_out": after["bytes_out"] - before["bytes_out"],
    }


def _together(server: S3Server) -> dict[str, int]:
    counts = server.counts().values()
    return {key: sum(each[key] for each in counts) for key in ("calls", "bytes_in", "bytes_out")}


def many_trials(root: str, trials: int) -> Row:
    """Run trials that do nothing; return what they cost and what they leave."""
    samples: list[tuple[float, dict[str, int]]] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(1):
            samples.append((time.time(), _driver()))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        run = experiment.launch(trivial, {"i": list(range(trials))}, root=root, progress=False)
    finally:
        over.set()
        thread.join()
    ends = sorted(trial.spans[-1][1] for trial in run.trials)
    tenth = trials // 10
    first, last = ends[tenth - 1] - run.trials[0].spans[0][0], ends[-1] - ends[-tenth - 1]
    at_tenth = min(samples, key=lambda each: abs(each[0] - ends[tenth - 1]))[1]
    at_end = min(samples, key=lambda each: abs(each[0] - ends[-1]))[1]
    return {
        "trials": trials,
        "seconds": round(run.duration_s, 1),
        "ms_of_a_trial": [round(1e3 * first / tenth, 2), round(1e3 * last / tenth, 2)],
        "driver": {key: [at_tenth[key], at_end[key]] for key in at_end},
        "bytes_on_disk": _size(root),
    }


def _driver() -> dict[str, int]:
    return {
        "mib": round(resident_mb(os.getpid())),
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


def _size(root: str) -> int | None:
    if "://" in root:
        return None
    files = [path for path in Path(root).rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files)


def aims(searches: list[Row], many: dict[str, Row]) -> list[Row]:
    """Return the aims of the benchmark."""
    once, twice = searches
    values = [
        ("calls a second while a search runs", twice["calls_per_s"], AIM_CALLS_PER_S),
        ("bytes in, twice the reports / once", twice["bytes_in"] / once["bytes_in"], AIM_BYTES),
    ]
    for place, row in many.items():
        first, last = row["ms_of_a_trial"]
        values += [(f"{place}: a trial's cost, last tenth / first", last / first, AIM_COST)]
    return [
        {"aim": aim, "value": round(value, 3), "at_most": most, "met": value <= most}
        for aim, value, most in values
    ]


def table(result: Row) -> str:
    """Return the result for a person."""
    lines = []
    for row in result["searches"]:
        sizes = f"{row['bytes_in'] / 1e6:.2f} MB in, {row['bytes_out'] / 1e6:.2f} MB out"
        lines += [
            f"{SEARCHES} trials of {row['seconds']} s: {row['calls_per_s']} calls a second while "
            f"they run, {row['calls']} calls, {sizes}"
        ]
    for place, row in result["many"].items():
        first, last = row["ms_of_a_trial"]
        lines += [
            f"{row['trials']} trials on {place}: {first} ms each in the first tenth, {last} in the "
            f"last; driver, first tenth and end: {row['driver']}; on disk {row['bytes_on_disk']}"
        ]
    for aim in result["aims"]:
        met = "met" if aim["met"] else "NOT MET"
        lines += [f"{aim['aim']}: {aim['value']:.3g}, at most {aim['at_most']}: {met}"]
    return "\n".join(lines)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=int, default=60, help="of each trial of the search")
    parser.add_argument("--trials", type=int, default=10_000, help="on a local root")
    parser.add_argument("--trials-s3", type=int, default=10_000)
    options = parser.parse_args()
    about = machine()
    with S3Server() as server:
        os.environ.update(server.env)
        spark = session(SEARCHES)
        searches = [running_search(server, n * options.seconds) for n in (1, 2)]
        spark.stop()
        spark = session(2)
        many = {}
        with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as root:
            if options.trials:
                many["local disk"] = many_trials(root, options.trials)
        if options.trials_s3:
            many["S3"] = many_trials(f"{server.bucket}/many", options.trials_s3)
        spark.stop()
    result = {
        "benchmark": "store",
        "machine": about,
        "searches": searches,
        "many": many,
        "aims": aims(searches, many),
    }
    print(table(result))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
