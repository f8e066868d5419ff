"""Compare TensorFlowOnSpark programs on sparkdl and on TensorFlowOnSpark: start, feeding, end.

The same program, in which only the import differs, runs on the same rows in turns: a cluster of one
node reads lists of floats with `next_batch`, from an RDD and from a DataFrame. The first turn of
each is not counted, since it starts processes and imports TensorFlow.

    benchmarks/peers/environment.sh tfos
    python benchmarks/clusters.py

Without the environment, only sparkdl is measured. The program prints JSON and a table.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
from functools import partial
from typing import Any

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from lib.machine import machine
from lib.peer import Peer, add_option, python_of
from peers.clusters_tfos import SHAPES, measure, session

from sparkdl.tfos import TFCluster

PEER = "TensorFlowOnSpark"


def main() -> None:
    """Measure both systems in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_option(parser)
    parser.add_argument("--master", default="local-cluster[1,1,2048]")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    about = machine()
    spark = session(options.master)
    measured: dict[str, dict[str, list[dict[str, float]]]] = {}
    with contextlib.ExitStack() as stack:
        systems = {"sparkdl": partial(measure, TFCluster, spark)}
        if python := python_of(options.peers, "tfos"):
            peer = stack.enter_context(Peer(python, "peers/clusters_tfos.py", options.master))
            about["peer"], systems[PEER] = peer.versions, peer.ask
        for number in range(options.repeats + 1):
            for shape in SHAPES:
                turns = {name: run(shape) for name, run in systems.items()}
                for name, times in turns.items() if number else ():
                    measured.setdefault(shape, {}).setdefault(name, []).append(times)
    spark.stop()
    print(json.dumps({"machine": about, "measured": measured}))
    print(table(measured))


def table(measured: dict[str, Any]) -> str:
    """Return the medians, and the gain over the peer."""
    lines = []
    for shape, names in measured.items():
        for metric in ("start_s", "rows_per_s", "shutdown_s"):
            medians = {k: statistics.median(turn[metric] for turn in v) for k, v in names.items()}
            line = f"{shape:<24}{metric:<12}{medians['sparkdl']:>12.2f}"
            if PEER in medians:
                ratio = medians["sparkdl"] / medians[PEER]
                ratio = ratio if metric == "rows_per_s" else 1 / ratio
                line += f"{medians[PEER]:>12.2f}{ratio:>8.1f}x"
            lines.append(line)
    return "\n".join([f"{'':<36}{'sparkdl':>12}{'TFoS':>12}", *lines])


if __name__ == "__main__":
    main()
