"""Measure the profile and the drift of a wide table, against one plain aggregation, in one run.

A Parquet table of numbers and categories is read by embedded Spark. The contenders take turns in
several rounds, after a warm-up on a hundredth of the rows:

- aggregation: the count of each column, and mean, minimum and maximum of each number, in one
  aggregation of plain Spark: the floor of what reading all values costs
- profile: `monitoring.profile`, with moments, three histograms and the top categories
- drift: `monitoring.drift` against that profile, with PSI and the Jensen-Shannon distance
- drift, all: the same with all metrics but `chi_squared`
- pandas: the bins of the profile counted by NumPy in one pandas DataFrame, on `--pandas-rows` rows:
  what a program of twenty lines does
- evidently: with `--evidently-python`, the drift report of evidently on as many rows, in an
  environment of its own (`pip install evidently pyarrow`)

The memory is the largest sum of the resident memory of the driver, the JVM and the Python workers.

    python benchmarks/monitoring.py --rows 10000000
    python benchmarks/monitoring.py --quick

The program prints a table, then one JSON document, and removes its files. Each aim is reported as
met or not; the exit code does not depend on the aims.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from lib.machine import machine, resident_mb
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl import monitoring
from sparkdl.profiles.histograms import Edges

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

ROWS, PANDAS_ROWS, PARTS = 10_000_000, 1_000_000, 32
NUMBERS, TEXTS = 45, 5
METRICS = ["psi", "js", "hellinger", "l_infinity", "ks", "wasserstein"]
# The aim: a profile costs at most this many plain aggregations, and drift no more than a profile.
AIMS = {"profile": 5.0, "drift": 5.0}
PEER = Path(__file__).parent / "peers" / "monitoring_evidently.py"

Row = dict[str, Any]


# ---- the table


def write_table(spark: SparkSession, path: str, rows: int, shift: float) -> None:
    """Write the table; the first number and the first category are shifted."""
    numbers = [
        (F.round(F.randn(i), 3) * (i + 1) + (shift if i == 0 else 0.0)).alias(f"number_{i}")
        for i in range(NUMBERS)
    ]
    texts = [
        F.concat(
            F.lit("value-"),
            F.floor(F.rand(100 + i) ** (2 + (4 * shift if i == 0 else 0)) * 30).cast("string"),
        ).alias(f"text_{i}")
        for i in range(TEXTS)
    ]
    frame = spark.range(rows, numPartitions=min(PARTS, max(2, rows // 1000)))
    frame.select(*numbers, *texts).write.parquet(path)


# ---- the contenders


def aggregation(df: DataFrame) -> Any:
    """One plain aggregation of all columns."""
    wanted = []
    for name in df.columns:
        # The minimum of texts would let Spark sort all rows.
        wanted += [F.count(name)]
        if name.startswith("number"):
            wanted += [F.avg(name), F.min(name), F.max(name)]
    return df.agg(*(column.alias(f"c{i}") for i, column in enumerate(wanted))).collect()


def pandas_drift(profile: Row, path: str, rows: int) -> float:
    """Return the largest PSI, with the bins counted by NumPy in one DataFrame."""
    table = read_pandas(path, rows)
    largest = 0.0
    for name, feature in profile["features"].items():
        column = table[name]
        if "quantiles" in feature:
            edges = Edges.from_fields(feature)
            expected = np.array(feature["quantiles"]["counts"], float)
            places = np.searchsorted(edges.quantiles, column.to_numpy(), side="left")
            found = np.bincount(places, minlength=len(expected)).astype(float)
        else:
            names = list(feature["categories"])
            expected = np.array([*feature["categories"].values(), feature["other"]], float)
            counts = column.value_counts()
            known = counts.reindex(names).fillna(0).to_numpy(float)
            found = np.append(known, len(column) - known.sum())
        p, q = expected / expected.sum() + 1e-6, found / found.sum() + 1e-6
        largest = max(largest, float(((q - p) * np.log(q / p)).sum()))
    return largest


def read_pandas(path: str, rows: int) -> pd.DataFrame:
    """Return the first rows of the table, of as many files as needed."""
    parts: list[pd.DataFrame] = []
    for file in sorted(Path(path).glob("*.parquet")):
        if sum(map(len, parts)) < rows:
            parts.append(pq.read_table(file).to_pandas())
    return pd.concat(parts).head(rows)


# ---- measuring


def descendants(pid: int) -> list[int]:
    """Return a process and all below it, see proc(5)."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += map(int, task.read_text().split())
            except OSError:
                continue
    return found


@contextmanager
def peak_memory(result: Row) -> Iterator[None]:
    """Note the largest memory of this process and all below it while the block runs."""
    end = threading.Event()
    result["peak_mb"] = 0.0

    def watch() -> None:
        while not end.wait(0.1):
            total = 0.0
            for pid in descendants(os.getpid()):
                try:
                    total += resident_mb(pid)
                except OSError:
                    continue
            result["peak_mb"] = round(max(result["peak_mb"], total), 1)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def measured(spark: SparkSession, name: str, call: Callable[[], Any]) -> Row:
    """Return the seconds, the jobs and the memory of a call."""
    context = spark.sparkContext
    context.setJobGroup(name, name)
    before = len(context.statusTracker().getJobIdsForGroup(name))
    row: Row = {"name": name}
    with peak_memory(row):
        started = time.perf_counter()
        call()
        row["wall_s"] = round(time.perf_counter() - started, 3)
    row["jobs"] = len(context.statusTracker().getJobIdsForGroup(name)) - before
    return row


def measure(spark: SparkSession, folder: Path, options: argparse.Namespace) -> list[Row]:
    """Measure all contenders; the best round of each counts."""
    train, later, warm = (str(folder / name) for name in ("train", "later", "warm"))
    write_table(spark, warm, max(1000, options.rows // 100), 0.0)
    write_table(spark, train, options.rows, 0.0)
    write_table(spark, later, options.rows, 0.5)
    profile = monitoring.profile(spark.read.parquet(warm))
    monitoring.drift(profile, spark.read.parquet(warm))
    aggregation(spark.read.parquet(warm))
    first, second = spark.read.parquet(train), spark.read.parquet(later)
    known: Row = {}

    def make_profile() -> None:
        known.update(monitoring.profile(first))

    def drift(metrics: list[str]) -> Callable[[], None]:
        def run() -> None:
            found = monitoring.drift(known, second, metrics=metrics)
            assert found.drifted == ["number_0", "text_0"], found.drifted

        return run

    contenders: dict[str, Callable[[], Any]] = {
        "aggregation": lambda: aggregation(second),
        "profile": make_profile,
        "drift": drift(["psi", "js"]),
        "drift, all": drift(METRICS),
        "pandas": lambda: pandas_drift(known, later, options.pandas_rows),
    }
    best: dict[str, Row] = {}
    for _ in range(options.rounds):
        for name, call in contenders.items():
            row = measured(spark, name, call)
            row["rows"] = min(
                options.pandas_rows if name == "pandas" else options.rows, options.rows
            )
            if name not in best or row["wall_s"] < best[name]["wall_s"]:
                best[name] = row
    if options.evidently_python:
        best["evidently"] = evidently(folder, train, later, options)
    return list(best.values())


def evidently(folder: Path, train: str, later: str, options: argparse.Namespace) -> Row:
    """Run the peer on the rows of two files, and return what it measured."""
    paths = []
    for name, source in (("reference", train), ("current", later)):
        path = folder / f"{name}.parquet"
        read_pandas(source, options.pandas_rows).to_parquet(path)
        paths.append(str(path))
    command = [options.evidently_python, str(PEER), *paths]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        problem = (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]
        return {"name": "evidently", "rows": options.pandas_rows, "problem": problem}
    return {"name": "evidently", **json.loads(done.stdout.splitlines()[-1])}


# ---- the result


def aims(rows: list[Row]) -> list[Row]:
    """Compare the times with the aims."""
    by_name = {row["name"]: row for row in rows}
    floor = by_name["aggregation"]["wall_s"]
    found = []
    for name, most in AIMS.items():
        value = round(by_name[name]["wall_s"] / floor, 2)
        aim = f"{name} takes at most {most:g} times as long as a plain aggregation"
        found.append({"aim": aim, "value": value, "met": value <= most})
    # Spark itself makes two jobs of one aggregation, a job for each stage.
    jobs = by_name["drift"]["jobs"]
    aim = "drift has no more Spark jobs than a plain aggregation"
    found.append({"aim": aim, "value": jobs, "met": jobs <= by_name["aggregation"]["jobs"]})
    return found


def table(result: Row) -> str:
    """Return the result for people."""
    lines = [f"{'':<12}{'rows':>12}{'seconds':>10}{'rows/s':>12}{'jobs':>6}{'MB':>9}"]
    for row in result["contenders"]:
        if "problem" in row:
            lines.append(f"{row['name']:<12}{row['rows']:>12}  {row['problem']}")
            continue
        rate = int(row["rows"] / row["wall_s"])
        jobs = row.get("jobs", "")
        lines.append(
            f"{row['name']:<12}{row['rows']:>12}{row['wall_s']:>10.2f}{rate:>12}{jobs:>6}"
            f"{row['peak_mb']:>9.0f}"
        )
    words = {True: "met", False: "NOT MET"}
    lines += ["", *(f"{a['aim']}: {a['value']}, {words[a['met']]}" for a in result["aims"])]
    return "\n".join(lines)


def main() -> None:
    """Read the command line, measure, print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--pandas-rows", type=int, default=PANDAS_ROWS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--memory", default="4g", help="the memory of the JVM")
    parser.add_argument("--evidently-python", help="the Python of an environment with evidently")
    parser.add_argument("--quick", action="store_true", help="100 000 rows, one round")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.rounds = 100_000, 1
    options.pandas_rows = min(options.pandas_rows, options.rows)
    about = machine("pyarrow", "numpy", "pandas")
    builder = SparkSession.builder.master("local[*]").config("spark.driver.memory", options.memory)
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as name:
        rows = measure(spark, Path(name), options)
        spark.stop()
    setting = {"rows": options.rows, "numbers": NUMBERS, "texts": TEXTS, "rounds": options.rounds}
    result = {
        "benchmark": "monitoring",
        "machine": about,
        "setting": setting,
        "contenders": rows,
        "aims": aims(rows),
    }
    print(table(result))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
