"""Compare PyTorch's data-parallel training on two ranks with that of peers, in one run.

The program trains a network of 85,000 parameters with DistributedDataParallel (gloo, one thread
per rank, batches of 256 rows per rank) on Parquet files, twice over them:

- sparkdl: `experiment.allreduce`, rows by `data.parquet(shuffle=True).as_torch()`
- sparkdl, rows in memory: the same with PyTorch's own `DataLoader`
- TorchDistributor: the same rows in memory, as it has no reader
- Ray Train: `TorchTrainer` with Ray Data, in a cluster of `setup_ray_cluster` that runs already

The contenders take turns. The benchmark measures the time from the call to the first line of the
last rank, the median of a step with its batch at hand, and the rows per second of all ranks in the
second epoch. The first round starts processes, and is not counted.

It runs in an environment that has sparkdl and PyTorch, such as the one of `make test-torch`:

    for name in torch ray; do benchmarks/peers/environment.sh $name; done
    PYTHONPATH=$PWD build/torch/bin/python benchmarks/torch_ddp.py

A peer without an environment is left out. The program prints a table, then one JSON document.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

# Set before Spark is loaded: the benchmark stays on this host.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from lib.ddp import BATCH, RANKS, result, write_rows
from lib.machine import machine
from lib.peer import add_option, started
from lib.start import session
from pyspark.sql import SparkSession

from sparkdl import experiment

PEERS = {"torch": "TorchDistributor", "ray": "Ray Train"}
KEYS = {"first_line_s": "first line s", "step_ms": "step ms", "rows_per_s": "rows/s"}

Row = dict[str, Any]


def train(rows: str, out: str, in_memory: bool) -> None:
    """Train a rank of sparkdl."""
    import torch.distributed
    from lib import ddp

    from sparkdl import context, data

    torch.distributed.init_process_group("gloo")
    if in_memory:
        batches = ddp.rows_in_memory(rows, context.rank)
    else:
        files = data.parquet(
            rows, batch_size_per_worker=BATCH, feature_cols="x", label_cols="y", shuffle=True
        ).as_torch()
        batches = lambda epoch: files  # noqa: E731
    ddp.train(out, context.rank, batches)
    torch.distributed.destroy_process_group()


def measure(spark: SparkSession, root: str, rows: str, in_memory: bool, _: int) -> Row:
    """Return the times of a training of sparkdl."""
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as out:
        called_s = time.time()
        experiment.allreduce(
            partial(train, rows, out, in_memory),
            num_workers=RANKS,
            spark=spark,
            root=root,
            progress=False,
            framework="torch",
        )
        return result(out, called_s)


def measure_all(contenders: dict[str, Callable[[int], Row | None]], rounds: int) -> list[Row]:
    """Return the medians of each contender; odd rounds run in reverse order."""
    measured: dict[str, list[Row]] = {}
    for number in range(rounds + 1):
        for name in list(contenders)[:: 1 if number % 2 == 0 else -1]:
            row = contenders[name](number)
            print(f"round {number}, {name}: {row}", file=sys.stderr)
            if number and row:
                measured.setdefault(name, []).append(row)
    return [
        {"name": name, "rows": rows[0]["rows"]}
        | {key: round(median(row[key] for row in rows), 3) for key in KEYS}
        | {f"all_{key}": [round(row[key], 3) for row in rows] for key in KEYS}
        for name, rows in measured.items()
    ]


def table(rows: list[Row]) -> str:
    """Return the result as a table to read."""
    lines = [f"{'':<26}" + "".join(f"{title:>14}" for title in KEYS.values())]
    for row in rows:
        lines.append(f"{row['name']:<26}" + "".join(f"{row[key]:>14,.2f}" for key in KEYS))
    return "\n".join(lines)


def main() -> None:
    """Read the command line, measure, print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds")
    parser.add_argument("--rows", type=int, default=400_000, help="rows of an epoch")
    add_option(parser)
    options = parser.parse_args()
    about, programs = machine(), {name: f"peers/ddp_{name}.py" for name in PEERS}
    with ExitStack() as stack:
        root = stack.enter_context(tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-"))
        rows = Path(root, "rows")
        rows.mkdir()
        write_rows(rows, options.rows)
        spark = session()
        stack.callback(spark.stop)
        own = partial(measure, spark, root, str(rows))
        contenders: dict[str, Callable[[int], Row | None]] = {
            "sparkdl": partial(own, False),
            "sparkdl, rows in memory": partial(own, True),
        }
        peers = started(stack, options.peers, programs, str(rows))
        contenders |= {PEERS[name]: peer.ask_while_running for name, peer in peers.items()}
        versions = {name: peer.versions for name, peer in peers.items()}
        measured = measure_all(contenders, options.rounds)
    document = {
        "benchmark": "torch_ddp",
        "machine": {**about, "peers": versions},
        "setting": {"ranks": RANKS, "rounds": options.rounds, "rows": options.rows},
        "contenders": measured,
    }
    print(table(measured))
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
