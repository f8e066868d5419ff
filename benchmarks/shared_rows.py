"""Measure what trials over one DataFrame cost with one copy of its rows, and with a copy each.

Trials read a DataFrame from Parquet as batches of 1024 from tf.data, once, on local Spark with two
slots. The contenders take turns in several rounds:

- shared: `experiment.launch(train, args, data=df)`: the first trial makes the copy
- each its own: the same with `steps=`, as many as there are batches, so that every trial reads the
  same rows; a trial with `steps=` shares no copy

For each contender there are the seconds of the whole run; the seconds from the call of
`data.dataset` until the first batch and until the last one, of the trials of the first wave and of
the later ones; the CPU seconds of all processes; and the most bytes that the files of trials that
ran at the same time had on the disk. The copy that Spark itself keeps comes on top, in both.

    python benchmarks/shared_rows.py --rounds 3

The program prints a table, then one JSON document.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

# Set before Spark is loaded: the benchmark stays on this host.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from feed import BATCH, LABEL, cpu_since, processes, say, write_rows
from lib.machine import machine
from pyspark.sql import DataFrame, SparkSession

from sparkdl import experiment

SLOTS = 2
CONTENDERS = ("shared", "each its own")

Row = dict[str, Any]


def unnamed_files() -> dict[str, int]:
    """Return the bytes on the disk of each unnamed file that this process has open, by inode."""
    files = {}
    for entry in os.scandir("/proc/self/fd"):
        try:
            if "/#" in os.readlink(entry.path):
                status = os.stat(entry.path)
                files[str(status.st_ino)] = status.st_blocks * 512
        except FileNotFoundError:
            continue
    return files


def run_trials(frame: DataFrame, root: str, trials: int, steps: int | None) -> list[Row]:
    """Run trials that read all rows; return what each has measured."""
    features = [name for name in frame.columns if name != LABEL]

    def train(number: int) -> dict[str, Any]:
        from sparkdl import data

        begin_s, first_s, rows = time.time(), 0.0, 0
        dataset = data.dataset(
            batch_size_per_worker=BATCH, feature_cols=features, label_cols=[LABEL], steps=steps
        )
        for _, labels in dataset:
            first_s = first_s or time.time()
            rows += len(labels)
        measured = {"begin_s": begin_s, "first_s": first_s, "last_s": time.time(), "rows": rows}
        return {**measured, "files": json.dumps(unnamed_files())}

    args = {"number": list(range(trials))}
    run = experiment.launch(train, args, data=frame, root=root, progress=False)
    run.raise_for_failures()
    return [dict(trial.outputs) for trial in run.trials]


def most_bytes(trials: list[Row]) -> int:
    """Return the most bytes of the files of trials at the same time."""
    most = 0
    for now in (trial["last_s"] for trial in trials):
        files: dict[str, int] = {}
        for trial in trials:
            if trial["begin_s"] <= now <= trial["last_s"]:
                files |= json.loads(trial["files"])
        most = max(most, sum(files.values()))
    return most


def measure_one(frame: DataFrame, root: str, trials: int, steps: int | None) -> Row:
    """Return the numbers of one run."""
    load, before, begin_s = os.getloadavg()[0], processes(), time.monotonic()
    measured = run_trials(frame, root, trials, steps)
    seconds = time.monotonic() - begin_s
    waves = {"first": measured[:SLOTS], "later": measured[SLOTS:]}
    each = {
        f"{wave}_trials_until_{end}_s": median(t[f"{end}_s"] - t["begin_s"] for t in some)
        for wave, some in waves.items()
        for end in ("first", "last")
    }
    return {
        "seconds": seconds,
        "cpu_s": cpu_since(before),
        "disk_mib": most_bytes(measured) / 2**20,
        "rows": sum(trial["rows"] for trial in measured),
        **each,
        "load": load,
    }


def summary(rows: list[Row]) -> list[Row]:
    """Return the medians of each contender, and their ratios to those of the shared copy."""
    results: list[Row] = []
    keys = [key for key in rows[0] if key not in ("name", "round", "rows", "load")]
    for name in CONTENDERS:
        mine = [row for row in rows if row["name"] == name]
        medians = {key: round(median(row[key] for row in mine), 3) for key in keys}
        loads = [round(row["load"], 2) for row in mine]
        results.append({"name": name, **medians, "load_before": loads})
    for row in results:
        ratios = {key: round(row[key] / max(results[0][key], 1e-3), 2) for key in keys}
        row["times_shared"] = ratios
    return results


def table(result: Mapping[str, Any]) -> str:
    """Return the result as a table to read."""
    shared, own = result["contenders"]
    lines = [f"{'':<32}{shared['name']:>14}{own['name']:>14}{'ratio':>8}"]
    for key, ratio in own["times_shared"].items():
        lines.append(f"{key:<32}{shared[key]:>14.2f}{own[key]:>14.2f}{ratio:>8.2f}")
    return "\n".join(lines)


def measure(options: argparse.Namespace) -> Row:
    """Measure everything; return the JSON document."""
    about, rows = machine("pyarrow", "numpy"), []
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder:
        path = write_rows(Path(folder), options.shape, options.batches)
        builder = SparkSession.builder.master(f"local[{SLOTS}]")
        spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        frame = spark.read.parquet(str(path))
        runs = str(Path(folder, "runs"))
        run_trials(frame.limit(BATCH), runs, SLOTS, None)  # Starts workers and the fork server.
        for number in range(options.rounds):
            for name in CONTENDERS if number % 2 == 0 else CONTENDERS[::-1]:
                steps = None if name == "shared" else options.batches
                measured = measure_one(frame, runs, options.trials, steps)
                if measured["rows"] != options.trials * options.batches * BATCH:
                    raise RuntimeError(f"{name}: {measured['rows']} rows arrived")
                say(f"{name}: {measured['seconds']:.1f} s, load {measured['load']:.1f}")
                rows.append({"name": name, "round": number, **measured})
        spark.stop()
    return {
        "benchmark": "shared_rows",
        "machine": about,
        "setting": {**vars(options), "slots": SLOTS, "batch": BATCH},
        "contenders": summary(rows),
    }


def main() -> None:
    """Read the options, measure, print the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--shape", choices=("wide", "narrow"), default="wide")
    parser.add_argument("--batches", type=int, default=100, help="100 wide ones have 300 MiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a small size, to see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.batches, options.rounds = 20, 1
    result = measure(options)
    print(table(result))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
