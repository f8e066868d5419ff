"""Measure shuffled passes over sorted files: what they cost, and how well they shuffle.

Each table has a column `label`, which grows inside each file, and columns of float32:

- files: 64 files, 2 million rows, 20 columns
- columns: 16 files, 200,000 rows, 100 columns
- large groups: 8 files of one row group each, 8 million rows, 20 columns, 640 MB
- many groups: 128 files of one row group each, 25.6 million rows, 20 columns, 2 GB
- small files: 3000 files, 1.5 million rows, 20 columns
- csv: 16 files of text, 500,000 rows, 10 columns

Each contender reads a table twice by `as_numpy()`, in a process of its own, in batches of 1024
rows. The result has the rows per second of CPU time of the faster epoch, the seconds until the
first batch, the largest resident memory, the mean number of different labels, of 10, in a batch of
256, and the correlation of the places of a row in the two epochs (0 in a true shuffle). All
files are in the page cache.

    python benchmarks/shuffle.py --rounds 3 --before ../earlier

`--before` is a checkout of an earlier version; both take turns. The program prints a table, then
one JSON document.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from lib.machine import machine
from pyarrow import csv

from sparkdl import context, data

CLASSES = 10
Row = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """The form of a table: the number of files, of rows in each, and of columns."""

    files: int
    rows: int
    columns: int
    is_text: bool = False


SHAPES = {
    "files": Shape(64, 31_250, 20),
    "columns": Shape(16, 12_500, 100),
    "large groups": Shape(8, 1_000_000, 20),
    "many groups": Shape(128, 200_000, 20),
    "small files": Shape(3000, 500, 20),
    "csv": Shape(16, 31_250, 10, is_text=True),
}


def write(folder: Path, shape: Shape) -> None:
    """Write a table; `id` numbers its rows through."""
    random = np.random.default_rng(0)
    columns = {f"c{n}": random.random(shape.rows, "float32") for n in range(shape.columns)}
    labels = np.arange(shape.rows, dtype="int32") * CLASSES // shape.rows
    folder.mkdir()
    for number in range(shape.files):
        ids = number * shape.rows + np.arange(shape.rows, dtype="int32")
        table = pa.table({"id": ids, "label": labels, **columns})
        if shape.is_text:
            csv.write_csv(table, folder / f"{number:04}.csv")
        else:
            pq.write_table(table, folder / f"{number:04}.parquet", row_group_size=shape.rows)


def measure(folder: Path, shape: Shape) -> Row:
    """Return the numbers of the version of sparkdl that this process has imported."""
    os.environ[context.VARIABLE] = "{}"
    reader = data.csv if shape.is_text else data.parquet
    rows = reader(str(folder), batch_size_per_worker=1024, shuffle=True).as_numpy()
    first_batch = num_labels = 0.0
    rates: list[float] = []
    places: list[Any] = []
    for _ in range(2):
        ids, labels = [], []
        begun, cpu = time.perf_counter(), time.process_time()
        for batch in rows:
            if not ids and not rates:
                first_batch = time.perf_counter() - begun
            ids.append(np.array(batch["id"]))
            labels.append(np.array(batch["label"]))
        total = shape.files * shape.rows
        rates.append(total / (time.process_time() - cpu))
        order = np.concatenate(ids)
        assert np.array_equal(np.bincount(order), np.ones(total)), "rows are lost or doubled"
        places.append(np.argsort(order))
        joined = np.concatenate(labels)[: total // 256 * 256].reshape(-1, 256)
        num_labels = float(np.mean([len(np.unique(batch)) for batch in joined[::8]]))
    return {
        "krows_per_cpu_s": round(max(rates) / 1000),
        "first_batch_s": round(first_batch, 2),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "labels_in_a_batch": round(num_labels, 2),
        "correlation": round(float(np.corrcoef(places)[0, 1]), 3),
    }


def in_process(checkout: Path, folder: Path, name: str) -> Row:
    """Return the numbers of a checkout."""
    command = [sys.executable, __file__, "--worker", name, "--folder", str(folder)]
    paths = os.pathsep.join([str(checkout), os.path.dirname(__file__)])
    environ = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    numbers: Row = json.loads(done.stdout.splitlines()[-1])
    return numbers


def best(rounds: list[Row]) -> Row:
    """Return the round with the least CPU time."""
    return max(rounds, key=lambda row: row["krows_per_cpu_s"])


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=Path, help="checkout of an earlier version")
    parser.add_argument("--worker", choices=SHAPES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options.folder, SHAPES[options.worker])))
        return
    checkouts = {"now": Path(__file__).parents[1]}
    if options.before:
        checkouts["before"] = options.before.absolute()
    results: dict[str, dict[str, Row]] = {}
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "table"
            write(folder, shape)
            rounds: dict[str, list[Row]] = {contender: [] for contender in checkouts}
            for _ in range(options.rounds):
                for contender, checkout in checkouts.items():
                    rounds[contender].append(in_process(checkout, folder, name))
            results[name] = {contender: best(rows) for contender, rows in rounds.items()}
        for contender, row in results[name].items():
            print(f"{name:12} {contender:7} {row}")
    print(json.dumps({"machine": machine(), "results": results}, indent=1))


if __name__ == "__main__":
    main()
