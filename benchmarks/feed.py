"""Measure the cost of moving rows from Spark into a training process, against peers, in one run.

Spark reads Parquet as one partition, and a training process reads the rows as batches of 1024 from
tf.data. There are two shapes of rows: wide rows, an array of 784 float32 and a label, and narrow
rows, 20 columns of float32 and a label. For each shape, the contenders take turns in several
rounds:

- ceiling: `mapInArrow` with a function that discards its batches; no training process
- sparkdl: `experiment.launch(train, data=df)` with `data.dataset(cache=False)` in the function: a
  single epoch, like all contenders
- sparkdl, kept: the same with the copy on the local disk from which later epochs are read
- TensorFlowOnSpark: `TFCluster.train` in an environment of its own. Rows are read 1024 at a time
  and stacked with NumPy, which is faster than the row-by-row reading of its own examples
- petastorm: `make_spark_converter`, which writes the rows to Parquet, then `make_tf_dataset`

All contenders read the same kind of file on the same kind of master, in two sizes. The cost of a
row is the difference between the sizes, divided by the difference in rows. This leaves out the
start, and includes rows that were read ahead before the function began. Seconds are measured until
the last batch: from the call of the function that reads the batches, for petastorm from the call of
the converter, and for TensorFlowOnSpark, which feeds some time later, from the first batch. CPU
seconds are those of all processes: drivers, JVMs, Python workers, training process. The result is
the best round of each size, since other load on the machine only adds time.

    python benchmarks/feed.py --rounds 3

The program prints a table, then one JSON document. Each aim is reported as met or not; the exit
code does not depend on the aims. Peers need environments of their own, and are left out without:

    for name in tfos petastorm; do benchmarks/peers/environment.sh $name; done
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

# Set before Spark is loaded: the benchmark stays on this host.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from lib.machine import machine
from lib.peer import Peer, add_option, started
from peers.feed_tfos import BATCH, LABEL, drain, session
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.host.os_processes import adopt_orphans

SHAPES = {"wide": 784, "narrow": 20}  # Number of floats in a row.
ROW_GROUP_BYTES = 128 << 20  # The default of Spark.
PEERS = {"tfos": "TensorFlowOnSpark", "petastorm": "petastorm"}  # The environments.
AIM_CPU = 0.85
# Rows per second, relative to each peer.
AIMS_PEER = {
    "TensorFlowOnSpark": {"wide": 20.0, "narrow": 80.0},
    "petastorm": {"wide": 1.0, "narrow": 1.0},
}

# Batches of the small and of the large size; the difference must outweigh the noise.
BATCHES = {"wide": (50, 200), "narrow": (1000, 4000)}
TFOS_BATCHES = {"wide": (5, 20), "narrow": (10, 80)}
QUICK_BATCHES = {"wide": (5, 20), "narrow": (100, 400)}

Row = dict[str, Any]
# The answer is None if a peer has failed.
Contenders = Mapping[str, Callable[[Path], Row | None]]


# ---- the data


def write_rows(folder: Path, shape: str, batches: int) -> Path:
    """Write a Parquet file with `batches` batches of random rows, unless it exists."""
    path, width = folder / f"{shape}-{batches}.parquet", SHAPES[shape]
    if path.exists():
        return path
    random, group = np.random.default_rng(0), max(1, ROW_GROUP_BYTES // (4 * width * BATCH))
    writer = None
    for begin in range(0, batches, group):
        rows = BATCH * min(group, batches - begin)
        table = table_of(shape, random.random((rows, width), np.float32))
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table, row_group_size=rows)
    assert writer
    writer.close()
    return path


def table_of(shape: str, floats: Any) -> pa.Table:
    """Return rows of floats as a table of the given shape, with labels."""
    rows, width = floats.shape
    labels = pa.array(np.arange(rows, dtype=np.int32) % 10)
    if shape == "wide":
        ends = np.arange(0, rows * width + 1, width, dtype=np.int32)
        return pa.table({"features": pa.ListArray.from_arrays(ends, floats.ravel()), LABEL: labels})
    columns = {f"f{i}": np.ascontiguousarray(floats[:, i]) for i in range(width)}
    return pa.table({**columns, LABEL: labels})


# ---- CPU time of processes


def processes() -> dict[tuple[int, int], float]:
    """Return the CPU seconds of this process and its descendants, with those of reaped children.

    A key is a process id and the start time of the process. Zombies are included. See proc(5) for
    the fields of `/proc/<pid>/stat`.
    """
    stats: dict[int, tuple[int, int, int]] = {}
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # The process has just ended.
        # Counted from the third field: parent is field 4, utime to cstime 14 to 17, start time 22.
        stats[pid] = int(fields[1]), sum(map(int, fields[11:15])), int(fields[19])
    members = [os.getpid()]
    for member in members:
        members += [pid for pid, (parent, _, _) in stats.items() if parent == member]
    ticks = os.sysconf("SC_CLK_TCK")
    return {(pid, stats[pid][2]): stats[pid][1] / ticks for pid in members}


def cpu_since(before: Mapping[tuple[int, int], float]) -> float:
    """Return the CPU seconds used since `before` was measured.

    The CPU time of a Python worker of Spark is lost when the worker ends, since no process waits
    for it. A worker ends a minute after its last task, so a missing worker was idle.
    """
    return sum(cpu_s - before.get(key, 0.0) for key, cpu_s in processes().items())


# ---- the contenders


def ceiling(spark: SparkSession, path: Path) -> Row:
    """Read all rows with `mapInArrow`, and discard them."""

    def discard(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first_s = time.time()
        rows = sum(batch.num_rows for batch in batches)
        last_s = time.time()
        yield pa.RecordBatch.from_pylist([{"rows": rows, "first_s": first_s, "last_s": last_s}])

    frame = spark.read.parquet(str(path)).coalesce(1)
    schema = "rows long, first_s double, last_s double"
    measured: Row = frame.mapInArrow(discard, schema).collect()[0].asDict()
    return measured


def through_sparkdl(spark: SparkSession, root: str, cache: bool, path: Path) -> Row:
    """Read all rows in a training process with `data.dataset`."""
    frame = spark.read.parquet(str(path)).coalesce(1)
    features = [name for name in frame.columns if name != LABEL]

    def train() -> dict[str, float]:
        from sparkdl import data

        first_s = time.time()
        dataset = data.dataset(
            batch_size_per_worker=BATCH, feature_cols=features, label_cols=[LABEL], cache=cache
        )
        return {**drain(dataset), "first_s": first_s}

    run = experiment.launch(train, data=frame, spark=spark, root=root, progress=False)
    run.raise_for_failures()
    return dict(run.trials[0].outputs)


# ---- measuring


def batches_of(options: argparse.Namespace, name: str, shape: str) -> tuple[int, int]:
    """Return the small and the large size of a contender, in batches."""
    if name == PEERS["tfos"]:
        return TFOS_BATCHES[shape]
    return (QUICK_BATCHES if options.quick else BATCHES)[shape]


def measure_one(run: Callable[[Path], Row | None], path: Path, batches: int) -> Row | None:
    """Run a contender on a file; return its rows, seconds, CPU seconds and load."""
    before, load = processes(), os.getloadavg()[0]
    measured = run(path)
    cpu_s = cpu_since(before)
    if not measured:
        return None
    if measured["rows"] != batches * BATCH:
        raise RuntimeError(f"{measured['rows']} rows arrived of {batches * BATCH} in {path}")
    seconds = measured["last_s"] - measured["first_s"]
    return {"rows": measured["rows"], "seconds": seconds, "cpu_s": cpu_s, "load": load}


def measure_round(
    options: argparse.Namespace, contenders: Contenders, folder: Path, number: int
) -> list[Row]:
    """Return a row for each shape, contender and size; odd rounds run in reverse order."""
    names = list(contenders) if number % 2 == 0 else list(contenders)[::-1]
    rows = []
    for shape in SHAPES:
        for name in names:
            sizes = batches_of(options, name, shape)
            paths = [write_rows(folder, shape, batches) for batches in sizes]
            # Spark ends Python workers that are idle for a minute, so each round warms up.
            contenders[name](paths[0])
            for path, batches in zip(paths, sizes, strict=True):
                measured = measure_one(contenders[name], path, batches)
                if not measured:
                    continue
                say(
                    f"{shape}, {name}, {measured['rows']} rows: {measured['seconds']:.2f} s, "
                    f"{measured['cpu_s']:.2f} CPU s, load {measured['load']:.1f}"
                )
                rows.append({"name": name, "shape": shape, "round": number, **measured})
    return rows


# ---- reporting


def say(text: str) -> None:
    """Print progress to standard error, apart from the result."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr)


def result_row(rows: list[Row], shape: str, name: str) -> Row:
    """Return the cost of a row for one contender; without numbers if it did not run."""
    mine = [row for row in rows if row["shape"] == shape and row["name"] == name]
    measured: Row = {"name": name, "shape": shape}
    sizes = sorted({row["rows"] for row in mine})
    if len(sizes) < 2:
        return measured

    def per_million(key: str) -> float:
        """Return the difference between the sizes, in seconds per million rows."""
        small, large = (min(row[key] for row in mine if row["rows"] == size) for size in sizes)
        return float((large - small) / (sizes[1] - sizes[0]) * 1e6)

    each = {key: [round(row[key], 3) for row in mine] for key in ("rows", "seconds", "cpu_s")}
    return {
        **measured,
        "rows_per_s": round(1e6 / per_million("seconds")),
        "cpu_s_per_million": round(per_million("cpu_s"), 4),
        "each": each,
        "load_before": [round(row["load"], 2) for row in mine],
    }


def add_ratios(rows: list[Row]) -> None:
    """Add the CPU efficiency relative to the ceiling, and sparkdl's rate relative to each peer."""
    for row in (row for row in rows if "rows_per_s" in row):
        others = {other["name"]: other for other in rows if other["shape"] == row["shape"]}
        ratio = others["ceiling"]["cpu_s_per_million"] / row["cpu_s_per_million"]
        row["cpu_efficiency"] = round(ratio, 4)
        if row["name"] in PEERS.values():
            row["sparkdl_times"] = round(others["sparkdl"]["rows_per_s"] / row["rows_per_s"], 2)


def aims(rows: list[Row]) -> list[Row]:
    """Compare the values with the aims; `met` is None if a value could not be measured."""
    result = []
    for row in rows:
        name, shape = row["name"], row["shape"]
        if name == "sparkdl":
            aim, value, least = "CPU efficiency / ceiling", row["cpu_efficiency"], AIM_CPU
        elif name in AIMS_PEER:
            aim, value = f"rows per second / {name}", row.get("sparkdl_times")
            least = AIMS_PEER[name][shape]
        else:
            continue
        met = None if value is None else value >= least
        result.append({"aim": f"{shape}: {aim}", "value": value, "at_least": least, "met": met})
    return result


def table(result: Row) -> str:
    """Return the result as a table to read."""
    lines = [f"{'':<28}{'rows/s':>12}{'CPU s / M rows':>16}{'/ ceiling':>11}{'sparkdl':>9}"]
    for row in result["contenders"]:
        label = f"{row['shape']}, {row['name']}"
        if "rows_per_s" not in row:
            lines.append(f"{label:<28}  not measured, see peers/environment.sh")
            continue
        times = f"{row['sparkdl_times']:.1f}x" if "sparkdl_times" in row else "-"
        lines.append(
            f"{label:<28}{row['rows_per_s']:>12,}{row['cpu_s_per_million']:>16.2f}"
            f"{row['cpu_efficiency']:>11.2f}{times:>9}"
        )
    words = {True: "met", False: "NOT MET", None: "not measured"}
    lines += [""]
    for aim in result["aims"]:
        value = "" if aim["value"] is None else f"{aim['value']:.2f}, "
        lines.append(f"{aim['aim']}: {value}at least {aim['at_least']}: {words[aim['met']]}")
    return "\n".join(lines)


def measure(options: argparse.Namespace, peers: Mapping[str, Peer]) -> Row:
    """Measure everything; return the JSON document."""
    versions = {name: peer.versions for name, peer in peers.items()}
    about, rows = {**machine("pyarrow", "numpy"), "peers": versions}, []
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as root:
        spark = session(options.master)
        contenders: dict[str, Callable[[Path], Row | None]] = {
            "ceiling": partial(ceiling, spark),
            "sparkdl": partial(through_sparkdl, spark, str(Path(root, "runs")), False),
            "sparkdl, kept": partial(through_sparkdl, spark, str(Path(root, "runs")), True),
        }
        contenders |= {PEERS[name]: peer.ask_while_running for name, peer in peers.items()}
        try:
            for number in range(options.rounds):
                say(f"round {number + 1} of {options.rounds}")
                rows += measure_round(options, contenders, Path(root), number)
        finally:
            spark.stop()
    names = ("ceiling", "sparkdl", "sparkdl, kept", *PEERS.values())
    measured = [result_row(rows, shape, name) for shape in SHAPES for name in names]
    add_ratios(measured)
    return {
        "benchmark": "feed",
        "machine": about,
        "setting": {"master": options.master, "batch": BATCH, "rounds": options.rounds},
        "contenders": measured,
        "aims": aims(measured),
    }


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds")
    parser.add_argument("--master", default="local-cluster[1,1,2048]", help="the Spark master")
    parser.add_argument(
        "--quick", action="store_true", help="fewer rows, to check that the benchmark runs"
    )
    add_option(parser)
    return parser.parse_args()


def main() -> None:
    """Measure and print the result."""
    options = parse()
    adopt_orphans()  # The CPU time of orphaned processes counts too.
    with ExitStack() as stack:
        programs = {name: f"peers/feed_{name}.py" for name in PEERS}
        peers = started(stack, options.peers, programs, options.master)
        result = measure(options, peers)
    print(table(result))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
