"""Send many gigabytes through one training process, and watch its memory, descriptors and threads.

Rows of 784 float32 and an id pass twice, each time until `--gigabytes` of tensors have arrived or
`--minutes` are over:

- SPARK mode: a DataFrame that Spark computes from `spark.range`, read with `cache=False`, so that
  no disk limits it
- Parquet: files of `--file-gigabytes`, read in as many epochs as it takes, with `shuffle=True`

Every few seconds the benchmark notes the resident memory, open descriptors and threads of the
training process, of Spark's JVM and of its Python workers. The result is the growth between the
second quarter of the time and the last one, by medians. The ids are added up: rows that are missing
or come twice are an error.

    python benchmarks/volume.py --gigabytes 100 --minutes 15

The program prints a table, then one JSON document, and removes its files.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

# Set before Spark is loaded: the benchmark stays on this host.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from lib.machine import machine, resident_mb
from pyspark.sql import SparkSession

from sparkdl import data, experiment
from sparkdl.host.os_processes import adopt_orphans

WIDTH, BATCH, FILES, GROUPS = 784, 1024, 8, 8
ROW_BYTES = 4 * WIDTH
SAMPLE_S = 2.0
WHO = ("training", "JVM", "workers")
WHAT = ("MB", "descriptors", "threads")

Row = dict[str, Any]


# ---- the training process


def drain(batches: Any, rows: int, seconds: float, folder: str, is_ordered: bool) -> Row:
    """Read batches until the rows or the time have passed; check their ids.

    Args:
        batches: features and ids; each pass has the ids from 0 to `rows`.
        rows: number of rows of a pass.
        seconds: maximum time.
        folder: folder for the file with this process's number and bytes, which is replaced.
        is_ordered: the ids ascend, so that those of a part of a pass are known.
    """
    begun_s, seen, total = time.time(), 0, 0
    for features, ids in batches:
        total += int(ids.numpy().sum())
        seen += features.shape[0]
        if seen // BATCH % 64 == 0:
            note = Path(folder, "note.part")
            note.write_text(f"{os.getpid()} {seen * ROW_BYTES}")
            note.rename(Path(folder, "note"))
            if time.time() > begun_s + seconds:
                break
    passes, rest = divmod(seen, rows)
    expected = passes * (rows * (rows - 1) // 2) + rest * (rest - 1) // 2
    is_checked = not rest or is_ordered
    if is_checked and total != expected:
        raise ValueError(f"the ids of {seen} rows add up to {total}; expected {expected}")
    return {"rows": seen, "seconds": time.time() - begun_s, "is_checked": int(is_checked)}


def from_spark(spark: SparkSession, root: str, options: argparse.Namespace, folder: str) -> Row:
    """Pass rows that Spark computes."""
    rows, seconds = int(options.gigabytes * 1e9 / ROW_BYTES), options.minutes * 60
    # The partition is one, since a trial reads all partitions one after the other.
    numbers = spark.range(rows, numPartitions=1)
    frame = numbers.selectExpr(f"array_repeat(cast(id % 1000 as float), {WIDTH}) AS x", "id")

    def train() -> Row:
        columns: dict[str, Any] = {"feature_cols": "x", "label_cols": "id"}
        batches = data.dataset(batch_size_per_worker=BATCH, cache=False, **columns)
        return drain(batches, rows, seconds, folder, is_ordered=True)

    run = experiment.launch(train, data=frame, spark=spark, root=root, progress=False)
    run.raise_for_failures()
    return dict(run.trials[0].outputs)


def from_parquet(spark: SparkSession, root: str, options: argparse.Namespace, folder: str) -> Row:
    """Pass the rows of files several times."""
    rows = write_files(Path(folder, "rows"), options.file_gigabytes)
    epochs, seconds = (
        max(round(options.gigabytes * 1e9 / ROW_BYTES / rows), 1),
        options.minutes * 60,
    )
    path = str(Path(folder, "rows"))

    def train() -> Row:
        columns: dict[str, Any] = {"feature_cols": "x", "label_cols": "id"}
        batches = data.parquet(
            path, batch_size_per_worker=BATCH, epochs=epochs, shuffle=True, **columns
        )
        return drain(batches, rows, seconds, folder, is_ordered=False)

    run = experiment.launch(train, spark=spark, root=root, progress=False)
    run.raise_for_failures()
    return dict(run.trials[0].outputs)


def write_files(folder: Path, gigabytes: float) -> int:
    """Write random rows as Parquet files of several row groups; return the number of rows."""
    folder.mkdir()
    group = max(int(gigabytes * 1e9 / ROW_BYTES / FILES / GROUPS), 1)
    random, begin = np.random.default_rng(0), 0
    ends = np.arange(0, group * WIDTH + 1, WIDTH, dtype=np.int32)
    for number in range(FILES):
        writer = None
        for _ in range(GROUPS):
            values = random.random(group * WIDTH, np.float32)
            ids = pa.array(np.arange(begin, begin + group))
            rows = pa.table({"x": pa.ListArray.from_arrays(ends, values), "id": ids})
            path = folder / f"part-{number}.parquet"
            writer = writer or pq.ParquetWriter(path, rows.schema, use_dictionary=["id"])
            writer.write_table(rows)
            begin += group
        assert writer
        writer.close()
    return begin


# ---- watching


def sizes(pids: list[int]) -> list[float]:
    """Return the resident MB, open descriptors and threads of some processes together."""
    found = [0.0, 0.0, 0.0]
    for pid in pids:
        try:
            found[0] += resident_mb(pid)
            found[1] += len(os.listdir(f"/proc/{pid}/fd"))
            found[2] += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:
            continue  # The process has just ended.
    return found


def processes_below(pid: int) -> dict[int, str]:
    """Return the command lines of all processes that descend from a process, by their id."""
    parents, lines = {}, {}
    for entry in (entry for entry in os.listdir("/proc") if entry.isdigit()):
        try:
            # The parent is field 4 of proc(5), after the name in parentheses.
            parents[int(entry)] = int(
                Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[1]
            )
            lines[int(entry)] = Path(f"/proc/{entry}/cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    members = [pid]
    for member in members:
        members += [child for child, parent in parents.items() if parent == member]
    return {member: lines[member] for member in members[1:]}


def watch(folder: str, has_ended: threading.Event, samples: list[Row]) -> None:
    """Add a sample every few seconds, from the first note of the training process on."""
    begun_s = time.time()
    while not has_ended.wait(SAMPLE_S):
        try:
            pid, seen = map(int, Path(folder, "note").read_text().split())
        except FileNotFoundError:
            continue
        lines = processes_below(os.getpid())
        java = [one for one, line in lines.items() if "/java " in line.split(" -", 1)[0] + " "]
        workers = [one for one, line in lines.items() if "pyspark.daemon" in line and one != pid]
        groups = dict(zip(WHO, ([pid], java, workers), strict=True))
        sample = {who: dict(zip(WHAT, sizes(pids), strict=True)) for who, pids in groups.items()}
        samples.append({"s": round(time.time() - begun_s, 1), "GB": seen / 1e9, **sample})


def growth(samples: list[Row]) -> Row:
    """Return the median of the second quarter of the samples, of the last, and the maximum."""
    quarter = max(len(samples) // 4, 1)
    found: Row = {}
    for who in WHO:
        for what in WHAT:
            values = [sample[who][what] for sample in samples]
            if values:
                early, late = median(values[quarter : 2 * quarter] or values), values[-quarter:]
                numbers = (early, median(late), max(values))
                found[f"{who}, {what}"] = [round(number) for number in numbers]
    return found


def measure(way: Callable[[str], Row]) -> Row:
    """Run one way of reading, and watch it."""
    samples: list[Row] = []
    has_ended = threading.Event()
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder:
        watcher = threading.Thread(target=watch, args=(folder, has_ended, samples))
        watcher.start()
        try:
            read = way(folder)
        finally:
            has_ended.set()
            watcher.join()
    gigabytes = round(read["rows"] * ROW_BYTES / 1e9, 1)
    kept = samples[::10]  # More would make the result hard to read.
    return {**read, "gigabytes": gigabytes, "growth": growth(samples), "samples": kept}


# ---- reporting


def table(ways: Mapping[str, Row]) -> str:
    """Return the result as a table to read."""
    lines = []
    for name, way in ways.items():
        seconds = way["seconds"]
        lines += [f"{name}: {way['gigabytes']} GB in {seconds:.0f} s"]
        lines += [f"{'':<28}{'2nd quarter':>12}{'last':>12}{'maximum':>12}"]
        for what, values in way["growth"].items():
            lines += [f"{what:<28}" + "".join(f"{value:>12}" for value in values)]
    return "\n".join(lines)


def main() -> None:
    """Read the command line, measure, print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gigabytes", type=float, default=100, help="tensors of each way")
    parser.add_argument("--minutes", type=float, default=15, help="maximum time of each way")
    parser.add_argument(
        "--file-gigabytes", type=float, default=20, help="Parquet files on the disk"
    )
    parser.add_argument("--ways", nargs="+", default=["SPARK mode", "Parquet"], metavar="WAY")
    options = parser.parse_args()
    adopt_orphans()  # The fork server of the training processes is watched too.
    about = machine("pyarrow", "numpy")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    ways = {"SPARK mode": from_spark, "Parquet": from_parquet}
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as root:
        try:
            found = {
                name: measure(partial(ways[name], spark, root, options)) for name in options.ways
            }
        finally:
            spark.stop()
    setting = {**vars(options), "batch": BATCH}
    result = {"benchmark": "volume", "machine": about, "setting": setting, "ways": found}
    print(table(found))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
