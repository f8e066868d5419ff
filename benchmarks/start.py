"""Compare the start of a distributed function of two ranks with that of peers, in one run.

The function only notes the time, and every contender has a Spark application of its own with two
executors of one core. The contenders take turns:

- sparkdl: `experiment.allreduce(function, num_workers=2)`
- TorchDistributor: `TorchDistributor(2, local_mode=False, use_gpu=False).run(function)`
- TensorFlowOnSpark: `TFCluster.run(..., input_mode=TENSORFLOW)`, then `shutdown`
- Ray Train: `DataParallelTrainer(...).fit()`, in a cluster of `setup_ray_cluster` that has started
  before

The benchmark measures the time from the call to the first line of the last rank, and to the return
of the call. The first call of each contender starts processes, and is not counted. Spark ends
Python workers that have had nothing to do for a minute, as during the calls of the others, so each
turn has two calls, of which the second counts.

    for name in torch tfos ray; do benchmarks/peers/environment.sh $name; done
    python benchmarks/start.py

A peer without an environment is left out. The program prints a table, then one JSON document.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

# Set before Spark is loaded: the benchmark stays on this host.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from lib.machine import machine
from lib.peer import add_option, started
from lib.start import RANKS, measure, session
from pyspark.sql import SparkSession

from sparkdl import experiment

PEERS = {"torch": "TorchDistributor", "tfos": "TensorFlowOnSpark", "ray": "Ray Train"}

Row = dict[str, Any]


def start(spark: SparkSession, root: str, function: Callable[[str], None], folder: str) -> None:
    """Run a function in a gang of sparkdl."""
    rank = partial(function, folder)
    experiment.allreduce(rank, num_workers=RANKS, spark=spark, root=root, progress=False)


def measure_all(
    contenders: dict[str, Callable[[int], Row | None]], rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each contender; odd rounds run in reverse order."""
    seconds: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds + 1):
        names = list(contenders) if number % 2 == 0 else list(contenders)[::-1]
        for name in names:
            contenders[name](number)  # Starts again what has ended since the last turn.
            measured = contenders[name](number)
            print(f"round {number}, {name}: {measured}", file=sys.stderr)
            for key, value in measured.items() if number and measured else ():
                seconds.setdefault(name, {}).setdefault(key, []).append(round(value, 4))
    return seconds


def rows_of(seconds: dict[str, dict[str, list[float]]]) -> list[Row]:
    """Return the medians of each contender, and their ratios to sparkdl."""
    own = {key: median(values) for key, values in seconds["sparkdl"].items()}
    return [
        {
            "name": name,
            **measured,
            **{f"median_{key}": median(values) for key, values in measured.items()},
            **{
                f"times_{key}": round(median(values) / own[key], 3)
                for key, values in measured.items()
            },
        }
        for name, measured in seconds.items()
    ]


def table(rows: list[Row]) -> str:
    """Return the result as a table to read."""
    lines = [f"{'':<20}{'first line':>12}{'/ sparkdl':>11}{'return':>12}{'/ sparkdl':>11}"]
    for row in rows:
        line = f"{row['name']:<20}"
        for key in ("first_line_s", "return_s"):
            line += f"{row[f'median_{key}']:>10.2f} s{row[f'times_{key}']:>11.2f}"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    """Read the command line, measure, print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds")
    add_option(parser)
    options = parser.parse_args()
    about, programs = machine(), {name: f"peers/start_{name}.py" for name in PEERS}
    with ExitStack() as stack:
        root = stack.enter_context(tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-"))
        spark = session()
        stack.callback(spark.stop)
        own = partial(start, spark, root)
        contenders: dict[str, Callable[[int], Row | None]] = {"sparkdl": lambda _: measure(own)}
        peers = started(stack, options.peers, programs)
        contenders |= {PEERS[name]: peer.ask_while_running for name, peer in peers.items()}
        versions = {name: peer.versions for name, peer in peers.items()}
        rows = rows_of(measure_all(contenders, options.rounds))
    result = {
        "benchmark": "start",
        "machine": {**about, "peers": versions},
        "setting": {"ranks": RANKS, "rounds": options.rounds},
        "contenders": rows,
    }
    print(table(rows))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
