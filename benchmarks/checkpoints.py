"""Measure for how long a report with a checkpoint blocks the training.

A trial on one slot (`local[1]`) writes a folder of one file, and reports it, with `wait=True` and
`wait=False` in turns. The run directory is on the disk of `--folder`, as is the folder of the
checkpoint. For each size the table has medians:

- save: seconds to write the file, as a framework does
- wait=True, wait=False: seconds that `context.report` takes
- until committed: seconds from the begin of the report with `wait=False` to the end of its commit,
  which goes on beside the training

Run it with `python benchmarks/checkpoints.py`, on a quiet machine. The program prints a table, then
one JSON document, and removes its files.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

# Set before Spark is loaded: the benchmark stays on this host.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from lib.machine import machine

from sparkdl import experiment

SIZES_MB = (10, 500)


def report_in_turns(size_mb: int, repeats: int) -> dict[str, float]:
    """Save and report checkpoints, and return the medians of the seconds of each step."""
    from sparkdl import context

    content = os.urandom(1_000_000)
    times: dict[str, list[float]] = {}

    def timed(name: str, since_s: float) -> None:
        times.setdefault(name, []).append(time.perf_counter() - since_s)

    for _ in range(repeats):
        for wait in (True, False):
            folder = Path("model")
            folder.mkdir(exist_ok=True)
            begin_s = time.perf_counter()
            with (folder / "weights").open("wb") as file:
                for _ in range(size_mb):
                    file.write(content)
            timed("save_s", begin_s)
            begin_s = time.perf_counter()
            context.report({"loss": 0.5}, checkpoint=folder, wait=wait)
            timed(f"wait_{wait}_s".lower(), begin_s)
            context.this_committer().finish()
            if not wait:
                timed("committed_s", begin_s)
    return {name: median(values) for name, values in times.items()}


def main() -> None:
    """Print the table and the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES_MB, help="in MB")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--folder", help="a folder on the disk to measure; a temporary one")
    args = parser.parse_args()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    with tempfile.TemporaryDirectory(dir=args.folder) as root:
        grid = {"size_mb": list(args.sizes), "repeats": [args.repeats]}
        run = experiment.launch(
            report_in_turns, grid, parallelism=1, keep_checkpoints="last", root=root, progress=False
        )
        rows = [{"size_mb": trial.params["size_mb"], **trial.outputs} for trial in run.trials]
    spark.stop()
    print(f"{'MB':>6} {'save':>8} {'wait=True':>10} {'wait=False':>10} {'until committed':>16}")
    for row in rows:
        print(
            f"{row['size_mb']:6} {row['save_s']:8.4f} {row['wait_true_s']:10.4f} "
            f"{row['wait_false_s']:10.4f} {row['committed_s']:16.4f}"
        )
    print(json.dumps({"benchmark": "checkpoints", "machine": machine(), "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
