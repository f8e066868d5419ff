"""Count bytes and requests of the readers against an object store, and what its latency costs.

A store in this process answers each request after a given time, 20 ms unless told otherwise:

- parquet: 4 of 16 columns of 8 files with 8 row groups each, in order
- parquet shuffled: the same with `shuffle=True`
- tfrecord: one file of 32 MB, divided among 4 ranks that read one after the other, in order
- tfrecord again: the same by a second trial of the run

Each reads by `as_numpy()`, without TensorFlow. The bytes that are needed are those of the columns,
or of the file: the first trial that reads records has counted them before, which reads the file
once more. The seconds are those of all ranks together, with the listing and the count.

    python benchmarks/object_store.py --rounds 3 --before ../earlier

`--before` is a checkout of an earlier version; both take turns, in processes of their own. The
program prints a table, then one JSON document with the median of each number.
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from lib.distant import DistantStore
from lib.machine import machine

from sparkdl import context, data
from sparkdl.data.tfexample.columns import Column, Kind
from sparkdl.data.tfexample.encode import encode
from sparkdl.data.tfexample.framing import frame

FILES, GROUPS, GROUP_ROWS, COLUMNS, WANTED = 8, 8, 1 << 14, 16, 4
RECORDS, WIDTH, RANKS = 8192, 1024, 4
AIM_BYTES = 1.1

Row = dict[str, Any]


def put_parquet(folder: str) -> int:
    """Write the files; return the bytes of the wanted columns."""
    random, needed = np.random.default_rng(0), 0
    for number in range(FILES):
        columns = {f"c{n}": random.random(GROUPS * GROUP_ROWS) for n in range(COLUMNS)}
        file = io.BytesIO()
        pq.write_table(pa.table(columns), file, row_group_size=GROUP_ROWS, use_dictionary=False)
        DistantStore.put(f"{folder}/{number:02d}.parquet", file.getvalue())
        footer = pq.read_metadata(file)
        needed += sum(
            footer.row_group(group).column(column).total_compressed_size
            for group in range(GROUPS)
            for column in range(WANTED)
        )
    return needed


def put_records(url: str) -> int:
    """Write the file; return its bytes."""
    rows = np.random.default_rng(0).random((RECORDS, WIDTH), np.float32)
    batch = pa.RecordBatch.from_pydict({"x": list(rows), "id": range(RECORDS)})
    columns = [
        Column("x", Kind.FLOAT, pa.float32(), is_array=True),
        Column("id", Kind.INT64, pa.int64()),
    ]
    content = frame(encode(batch, columns))
    DistantStore.put(url, content)
    return len(content)


def read_parquet(folder: str, shuffle: bool) -> int:
    """Read the wanted columns; return the number of rows."""
    names = tuple(f"c{n}" for n in range(WANTED))
    rows = data.parquet(folder, batch_size_per_worker=1024, feature_cols=names, shuffle=shuffle)
    return sum(len(batch[0]) for batch in rows.as_numpy())


def read_records(url: str, run: Path) -> int:
    """Read a file as the ranks of a gang, one after the other; return the number of records."""
    count = 0
    trial = Path(tempfile.mkdtemp(dir=run))
    for rank in range(RANKS):
        named = {"rank": rank, "world_size": RANKS, "num_readers": RANKS, "folder": str(trial)}
        context.activate(context.Context(run="r", run_path=str(run), **named))
        rows = data.tfrecord(
            url,
            schema={"x": ("float32", [WIDTH]), "id": "int64"},
            batch_size_per_worker=256,
            feature_cols=("x", "id"),
        )
        count += sum(len(ids) for _, ids in rows.as_numpy())
    return count


def measured(read: Callable[[], int], expected: int, needed: int) -> Row:
    """Read once; return seconds, requests, and bytes over those that are needed."""
    DistantStore.requests.clear()
    begun = time.perf_counter()
    count = read()
    seconds = time.perf_counter() - begun
    assert count == expected, f"{count} rows; expected {expected}"
    requests = dict(DistantStore.requests)
    num_bytes = requests.pop("bytes")
    return {
        "seconds": round(seconds, 3),
        "requests": sum(requests.values()),
        "bytes": round(num_bytes / needed, 3),
    }


def measure(latency_s: float) -> dict[str, Row]:
    """Return the numbers of the version of sparkdl that this process has imported."""
    bucket = DistantStore.start(0.0)
    table, records = f"{bucket}/table", f"{bucket}/records/a"
    columns, file = put_parquet(table), put_records(records)
    DistantStore.latency_s = latency_s
    num_rows = FILES * GROUPS * GROUP_ROWS
    found = {
        "parquet": measured(lambda: read_parquet(table, False), num_rows, columns),
        "parquet shuffled": measured(lambda: read_parquet(table, True), num_rows, columns),
    }
    with tempfile.TemporaryDirectory() as run:
        os.environ[context.VARIABLE] = "{}"
        for name in ("tfrecord", "tfrecord again"):
            found[name] = measured(lambda: read_records(records, Path(run)), RECORDS, file)
    return found


def in_process(checkout: Path, latency_s: float) -> dict[str, Row]:
    """Return the numbers of another checkout."""
    command = [sys.executable, __file__, "--worker", "--latency", str(latency_s)]
    paths = os.pathsep.join([str(checkout), os.path.dirname(__file__)])
    environ = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    numbers: dict[str, Row] = json.loads(done.stdout.splitlines()[-1])
    return numbers


def medians(rounds: list[dict[str, Row]]) -> dict[str, Row]:
    """Return the median of each number."""
    return {
        name: {key: statistics.median(each[name][key] for each in rounds) for key in row}
        for name, row in rounds[0].items()
    }


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency", type=float, default=0.02, help="seconds of a request")
    parser.add_argument("--before", type=Path, help="checkout of an earlier version")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options.latency)))
        return
    checkouts = {"now": Path(__file__).parents[1]}
    if options.before:
        checkouts["before"] = options.before.absolute()
    rounds: dict[str, list[dict[str, Row]]] = {name: [] for name in checkouts}
    for _ in range(options.rounds):
        for name, checkout in checkouts.items():
            rounds[name].append(in_process(checkout, options.latency))
    results = {name: medians(numbers) for name, numbers in rounds.items()}
    for contender, numbers in results.items():
        for name, row in numbers.items():
            print(f"{contender:7} {name:17} {row}")
    met = {name: row["bytes"] <= AIM_BYTES for name, row in results["now"].items()}
    document = {"machine": machine(), "latency_s": options.latency, "results": results}
    print(json.dumps({**document, "bytes_within_aim": met}, indent=1))


if __name__ == "__main__":
    main()
