"""What reading Parquet into TensorFlow costs, against bare pyarrow and against peers, in one run.

Three ways of storing rows of 784 float32 and an int64 label (as a list, a fixed-size list, and
binary), and rows of 20 float32 in columns of their own. Of each:

- pyarrow: `pyarrow.dataset.to_batches`, thrown away; nothing reaches TensorFlow
- sparkdl: `data.parquet`, with the 20 columns stacked into one tensor
- petastorm: `make_batch_reader` (dummy pool, the only one of 0.13.1 that loses no rows), then
  `make_petastorm_dataset`, stacked too; it drops fixed-size lists, and gives binary as strings
- TFRecord: `TFRecordDataset` of the same rows, `batch(1024)`, `parse_example`

All but the first end in a loop over batches of 1024 in `tf.data`. They take turns for some rounds,
each after a warm-up, in one process; files are in the page cache. What counts is the CPU time of
the process, best of the rounds: a shared machine blurs wall time.

Run it with `python benchmarks/parquet.py --rounds 3`, or with `--quick` for a tenth of the rows. It
prints a table, then one JSON document; its files are removed. Nothing passes or fails here: each
aim is reported as met or not.
"""

import argparse
import contextlib
import importlib
import io
import json
import os
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import tensorflow as tf
from lib.machine import machine

from sparkdl.data.readers.parquet import parquet

WIDTH, COLUMNS, BATCH = 784, 20, 1024
WIDE_ROWS, NARROW_ROWS = 200_000, 2_000_000
# TFRecord and petastorm take so much longer that a part of the rows shows it.
PEER_PART = 4
AIM = 0.7

Row = dict[str, Any]
# Reads everything once, and returns how many rows that were.
Contender = Callable[[], int]


# ---- the files


def write_wide(folder: Path, rows: int) -> None:
    """The same rows three times, in files of 8 row groups."""
    x = np.random.default_rng(0).random((rows, WIDTH), np.float32)
    ids, ends = pa.array(np.arange(rows)), np.arange(rows + 1, dtype=np.int32)
    flat = pa.array(x.ravel())
    columns = {
        "list": pa.ListArray.from_arrays(pa.array(ends * WIDTH), flat),
        "fixed": pa.FixedSizeListArray.from_arrays(flat, WIDTH),
        "binary": pa.Array.from_buffers(
            pa.binary(), rows, [None, pa.py_buffer(ends * x[0].nbytes), pa.py_buffer(x)]
        ),
    }
    for name, column in columns.items():
        path = folder / name / "part-0.parquet"
        path.parent.mkdir()
        pq.write_table(pa.table({"x": column, "y": ids}), path, row_group_size=max(rows // 8, 1))
    write_records(folder / "wide.tfrecord", x[: rows // PEER_PART])


def write_narrow(folder: Path, rows: int) -> None:
    """Rows of 20 columns."""
    values = np.random.default_rng(0).random((COLUMNS, rows), np.float32)
    path = folder / "scalars" / "part-0.parquet"
    path.parent.mkdir()
    table = pa.table({f"c{i}": values[i] for i in range(COLUMNS)})
    pq.write_table(table, path, row_group_size=max(rows // 8, 1))
    write_records(folder / "narrow.tfrecord", values.T[: rows // PEER_PART // 4])


def write_records(path: Path, rows: Any) -> None:
    """Each row a float list `x`, and its number `y`."""
    with tf.io.TFRecordWriter(str(path)) as file:
        for number, row in enumerate(rows):
            feature = {
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=row)),
                "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
            }
            features = tf.train.Features(feature=feature)
            file.write(tf.train.Example(features=features).SerializeToString())


# ---- the contenders


def bare(path: Path) -> int:
    """pyarrow alone."""
    return sum(batch.num_rows for batch in ds.dataset(path).to_batches())


def drained(dataset: Any) -> int:
    """Loop over the batches; the rows are counted by the first tensor of each."""
    rows = 0
    for batch in dataset:
        rows += int(tf.nest.flatten(batch)[0].shape[0])
    return rows


def ours(path: Path, **options: Any) -> int:
    """`data.parquet`."""
    with contextlib.redirect_stdout(io.StringIO()):  # Its line about rows and batches.
        dataset = parquet(path, batch_size_per_worker=BATCH, **options)
    return drained(dataset)


def records(path: Path, width: int) -> int:
    """TFRecord with parse_example."""
    features = {
        "x": tf.io.FixedLenFeature([width], tf.float32),
        "y": tf.io.FixedLenFeature([], tf.int64),
    }
    parsed = tf.data.TFRecordDataset(str(path)).batch(BATCH)
    parsed = parsed.map(lambda some: tf.io.parse_example(some, features)).prefetch(2)
    return drained(parsed)


def load_petastorm() -> Any:
    """petastorm's modules for today's pyarrow, or None where it is not installed."""
    try:
        importlib.import_module("sparkdl.data.readers.petastorm.compat").load()
        reader = importlib.import_module("petastorm")
        return reader, importlib.import_module("petastorm.tf_utils")
    except ImportError as exc:
        say(f"petastorm is left out: {exc}")
        return None


def petastorm_batches(modules: Any, path: Path, stacked: bool) -> int:
    """petastorm's batch reader."""
    reader_module, tf_utils = modules
    reading = reader_module.make_batch_reader(
        path.as_uri(), reader_pool_type="dummy", num_epochs=1, shuffle_row_groups=False
    )
    with contextlib.redirect_stdout(io.StringIO()), reading as reader:
        dataset = tf_utils.make_petastorm_dataset(reader)
        if stacked:
            dataset = dataset.map(lambda row: tf.stack(list(row), 1))
        return drained(dataset.rebatch(BATCH).prefetch(2))


def contenders(folder: Path, petastorm: Any) -> dict[str, dict[str, Contender]]:
    """For each way of storing rows, who reads them."""
    found: dict[str, dict[str, Contender]] = {}
    for name in ("list", "fixed", "binary"):
        options = {"decode": {"x": "float32"}} if name == "binary" else {}
        path = folder / name
        found[name] = {
            "pyarrow": partial(bare, path),
            "sparkdl": partial(ours, path, feature_cols="x", label_cols="y", **options),
            "TFRecord": partial(records, folder / "wide.tfrecord", WIDTH),
        }
        if petastorm and name != "fixed":
            found[name]["petastorm"] = partial(petastorm_batches, petastorm, path, False)
    names = [f"c{i}" for i in range(COLUMNS)]
    path = folder / "scalars"
    found["20 scalars"] = {
        "pyarrow": partial(bare, path),
        "sparkdl": partial(ours, path, feature_cols=names),
        "TFRecord": partial(records, folder / "narrow.tfrecord", COLUMNS),
    }
    if petastorm:
        found["20 scalars"]["petastorm"] = partial(petastorm_batches, petastorm, path, True)
    return found


# ---- measuring


def say(text: str) -> None:
    """Show that it goes on, apart from the result."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr)


def cpu_s() -> float:
    """Seconds of processor time that all threads of this process have used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def timed(contender: Contender) -> tuple[float, float]:
    """Rows a second: by wall clock, and by CPU time."""
    wall, cpu = time.perf_counter(), cpu_s()
    rows = contender()
    return rows / (time.perf_counter() - wall), rows / (cpu_s() - cpu)


def measure(folder: Path, rounds: int, petastorm: Any) -> list[Row]:
    """The best of the rounds of each contender."""
    found = []
    for storage, running in contenders(folder, petastorm).items():
        results: dict[str, list[tuple[float, float]]] = {name: [] for name in running}
        for contender in running.values():
            contender()
        for number in range(rounds):
            say(f"{storage}, round {number + 1} of {rounds}")
            order = list(running.items())
            for name, contender in order if number % 2 == 0 else reversed(order):
                results[name].append(timed(contender))
        for name, pairs in results.items():
            wall, cpu = (round(max(values)) for values in zip(*pairs, strict=True))
            found.append({"rows": storage, "name": name, "wall": wall, "cpu": cpu})
    return found


# ---- reporting


def aims(found: list[Row]) -> list[Row]:
    """What was aimed at; `met` is None where it could not be measured."""
    cpu = {(row["rows"], row["name"]): row["cpu"] for row in found}
    ratio = cpu["binary", "sparkdl"] / cpu["binary", "pyarrow"]
    result = [{"aim": f"binary, {AIM:.0%} of pyarrow", "value": round(ratio, 3), "at_least": AIM}]
    for storage in dict.fromkeys(row["rows"] for row in found):
        for peer in ("petastorm", "TFRecord"):
            value = None
            if (storage, peer) in cpu:
                value = round(cpu[storage, "sparkdl"] / cpu[storage, peer], 2)
            result.append(
                {"aim": f"{storage}, faster than {peer}", "value": value, "at_least": 1.0}
            )
    return [
        {**aim, "met": None if aim["value"] is None else aim["value"] >= aim["at_least"]}
        for aim in result
    ]


def table(result: Row) -> str:
    """The result for a person."""
    lines = [f"{'thousand rows/s':<14}{'':<12}{'wall':>10}{'per core':>10}{'/ pyarrow':>11}"]
    for row in result["contenders"]:
        bare_cpu = next(
            r["cpu"] for r in result["contenders"] if r["rows"] == row["rows"]
        )  # The first of each is pyarrow.
        lines += [
            f"{row['rows']:<14}{row['name']:<12}{row['wall'] / 1e3:>10.1f}{row['cpu'] / 1e3:>10.1f}"
            f"{row['cpu'] / bare_cpu:>11.2f}"
        ]
    words = {True: "met", False: "NOT MET", None: "not available"}
    lines += ["", *(f"{a['aim']}: {a['value']}, {words[a['met']]}" for a in result["aims"])]
    return "\n".join(lines)


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3, help="how often each takes its turn")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    options = parser.parse_args()
    part = 10 if options.quick else 1
    warnings.filterwarnings("ignore", module="petastorm")
    about = machine("pyarrow", "numpy")
    petastorm = load_petastorm()
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as name:
        say("writing files")
        write_wide(Path(name), WIDE_ROWS // part)
        write_narrow(Path(name), NARROW_ROWS // part)
        found = measure(Path(name), options.rounds, petastorm)
    result = {
        "benchmark": "parquet",
        "machine": about,
        "setting": {"rounds": options.rounds, "batch": BATCH, "quick": options.quick},
        "contenders": found,
        "aims": aims(found),
    }
    print(table(result))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
