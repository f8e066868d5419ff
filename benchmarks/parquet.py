"""Measure the cost of reading Parquet into TensorFlow, against pyarrow and peers, in one run.

Rows of 784 float32 and an int64 label are stored in three ways (as a list, as a fixed-size list, as
binary), and rows of 20 float32 in one column each. The contenders are:

- pyarrow: `pyarrow.dataset.to_batches`; the batches are discarded, nothing reaches TensorFlow
- sparkdl: `data.parquet`, with the 20 columns stacked into one tensor
- as_numpy: the same rows as NumPy arrays, `data.parquet(...).as_numpy()`
- tf.data alone: batches of the same shape that are in memory already, `from_tensors(...).repeat()`;
  what the loop over a `tf.data.Dataset` costs by itself, whatever is read
- petastorm: `make_batch_reader` (dummy pool, the only pool of 0.13.1 that loses no rows), then
  `make_petastorm_dataset`, also stacked. It drops fixed-size lists, and returns binary as strings
- TFRecord: `TFRecordDataset` of the same rows, `batch(1024)`, `parse_example`

All but pyarrow and `as_numpy` end in a loop over batches of 1024 in `tf.data`. The contenders take
turns in several rounds in one process, each after a warm-up; files are in the page cache. The
result is the CPU time of the process in the best round, since wall time depends on other load on
the machine.

Run it with `python benchmarks/parquet.py --rounds 3`, or with `--quick` for a tenth of the rows.
The program prints a table, then one JSON document, and removes its files. Each aim is reported as
met or not; the exit code does not depend on the aims.
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
# TFRecord is much slower, so a part of the rows is enough.
PEER_PART = 4
AIM = 0.7

Row = dict[str, Any]
# A contender reads all rows once, and returns their number.
Contender = Callable[[], int]


# ---- the files


def write_wide(folder: Path, rows: int) -> None:
    """Write the same rows in three ways, in files of 8 row groups."""
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
    """Write rows of 20 columns."""
    values = np.random.default_rng(0).random((COLUMNS, rows), np.float32)
    path = folder / "scalars" / "part-0.parquet"
    path.parent.mkdir()
    table = pa.table({f"c{i}": values[i] for i in range(COLUMNS)})
    pq.write_table(table, path, row_group_size=max(rows // 8, 1))
    write_records(folder / "narrow.tfrecord", values.T[: rows // PEER_PART // 4])


def write_records(path: Path, rows: Any) -> None:
    """Write each row as a float list `x` and its number `y`."""
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
    """Read with pyarrow alone."""
    return sum(batch.num_rows for batch in ds.dataset(path).to_batches())


def drained(dataset: Any) -> int:
    """Loop over all batches; return the number of rows, by the first tensor of each batch."""
    rows = 0
    for batch in dataset:
        rows += int(tf.nest.flatten(batch)[0].shape[0])
    return rows


def ours(path: Path, **options: Any) -> int:
    """Read with `data.parquet` into TensorFlow."""
    with contextlib.redirect_stdout(io.StringIO()):  # Hides the line about rows and batches.
        dataset = parquet(path, batch_size_per_worker=BATCH, **options)
    return drained(dataset)


def arrays(path: Path, **options: Any) -> int:
    """Read with `data.parquet` into NumPy."""
    with contextlib.redirect_stdout(io.StringIO()):
        return drained(parquet(path, batch_size_per_worker=BATCH, **options).as_numpy())


def records(path: Path, width: int) -> int:
    """Read TFRecord files with `parse_example`."""
    features = {
        "x": tf.io.FixedLenFeature([width], tf.float32),
        "y": tf.io.FixedLenFeature([], tf.int64),
    }
    parsed = tf.data.TFRecordDataset(str(path)).batch(BATCH)
    parsed = parsed.map(lambda examples: tf.io.parse_example(examples, features)).prefetch(2)
    return drained(parsed)


def in_memory(rows: int, *tensors: Any) -> int:
    """Loop over one batch again and again, with `tf.data` alone."""
    return drained(tf.data.Dataset.from_tensors(tensors).repeat(rows // BATCH))


def load_petastorm() -> Any:
    """Return the modules of petastorm, or None if petastorm is not installed."""
    try:
        importlib.import_module("sparkdl.data.readers.petastorm.compat").load()
        reader = importlib.import_module("petastorm")
        return reader, importlib.import_module("petastorm.tf_utils")
    except ImportError as exc:
        say(f"petastorm is left out: {exc}")
        return None


def petastorm_batches(modules: Any, path: Path, stacked: bool) -> int:
    """Read with the batch reader of petastorm."""
    reader_module, tf_utils = modules
    reading = reader_module.make_batch_reader(
        path.as_uri(), reader_pool_type="dummy", num_epochs=1, shuffle_row_groups=False
    )
    with contextlib.redirect_stdout(io.StringIO()), reading as reader:
        dataset = tf_utils.make_petastorm_dataset(reader)
        if stacked:
            dataset = dataset.map(lambda row: tf.stack(list(row), 1))
        return drained(dataset.rebatch(BATCH).prefetch(2))


def contenders(folder: Path, petastorm: Any, part: int) -> dict[str, dict[str, Contender]]:
    """Return the contenders for each way of storing rows, with a part of the rows."""
    wide = tf.zeros((BATCH, WIDTH)), tf.zeros(BATCH, tf.int64)
    readers: dict[str, dict[str, Contender]] = {}
    for name in ("list", "fixed", "binary"):
        options: dict[str, Any] = {"feature_cols": "x", "label_cols": "y"}
        options |= {"decode": {"x": "float32"}} if name == "binary" else {}
        path = folder / name
        readers[name] = {
            "pyarrow": partial(bare, path),
            "sparkdl": partial(ours, path, **options),
            "as_numpy": partial(arrays, path, **options),
            "tf.data alone": partial(in_memory, WIDE_ROWS // part, *wide),
            "TFRecord": partial(records, folder / "wide.tfrecord", WIDTH),
        }
        if petastorm and name != "fixed":
            readers[name]["petastorm"] = partial(petastorm_batches, petastorm, path, False)
    names = [f"c{i}" for i in range(COLUMNS)]
    path = folder / "scalars"
    readers["20 scalars"] = {
        "pyarrow": partial(bare, path),
        "sparkdl": partial(ours, path, feature_cols=names),
        "as_numpy": partial(arrays, path, feature_cols=names),
        "tf.data alone": partial(in_memory, NARROW_ROWS // part, tf.zeros((BATCH, COLUMNS))),
        "TFRecord": partial(records, folder / "narrow.tfrecord", COLUMNS),
    }
    if petastorm:
        readers["20 scalars"]["petastorm"] = partial(petastorm_batches, petastorm, path, True)
    return readers


# ---- measuring


def say(text: str) -> None:
    """Print progress to standard error, apart from the result."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr)


def cpu_s() -> float:
    """Return the CPU seconds of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def timed(contender: Contender) -> tuple[float, float]:
    """Return rows per second, by wall time and by CPU time."""
    wall, cpu = time.perf_counter(), cpu_s()
    rows = contender()
    return rows / (time.perf_counter() - wall), rows / (cpu_s() - cpu)


def measure(folder: Path, rounds: int, petastorm: Any, part: int) -> list[Row]:
    """Return the best round of each contender."""
    measured = []
    for storage, running in contenders(folder, petastorm, part).items():
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
            measured.append({"rows": storage, "name": name, "wall": wall, "cpu": cpu})
    return measured


# ---- reporting


def aims(measured: list[Row]) -> list[Row]:
    """Compare the values with the aims; `met` is None if a value could not be measured."""
    cpu = {(row["rows"], row["name"]): row["cpu"] for row in measured}
    ratio = cpu["binary", "sparkdl"] / cpu["binary", "pyarrow"]
    result = [{"aim": f"binary, {AIM:.0%} of pyarrow", "value": round(ratio, 3), "at_least": AIM}]
    for storage in dict.fromkeys(row["rows"] for row in measured):
        value = round(cpu[storage, "as_numpy"] / cpu[storage, "sparkdl"], 2)
        result.append({"aim": f"{storage}, NumPy / tf.data", "value": value, "at_least": 1.0})
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
    """Return the result as a table to read."""
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
    """Read the command line, measure, print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds")
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
        measured = measure(Path(name), options.rounds, petastorm, part)
    result = {
        "benchmark": "parquet",
        "machine": about,
        "setting": {"rounds": options.rounds, "batch": BATCH, "quick": options.quick},
        "contenders": measured,
        "aims": aims(measured),
    }
    print(table(result))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
