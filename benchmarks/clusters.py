"""What a TensorFlowOnSpark program takes here and there: its start, its feeding, its end.

The same program, of which only the import differs, on the same rows, in turns: a cluster of one
node that takes lists of floats with `next_batch`, of an RDD and of a DataFrame. The first turn of
each is not counted: it starts processes and imports TensorFlow.

    python benchmarks/clusters.py --tfos-python <environment>/bin/python

Without `--tfos-python` it measures ours alone. It prints JSON and a table.
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
from lib.peer import Peer
from peers.clusters_tfos import SHAPES, measure, session

from sparkdl.tfos import TFCluster

PEER = "TensorFlowOnSpark"


def main() -> None:
    """Measure both in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tfos-python", default=os.environ.get("SPARKDL_TFOS_PYTHON"))
    parser.add_argument("--master", default="local-cluster[1,1,2048]")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    about = machine()
    spark = session(options.master)
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    with contextlib.ExitStack() as stack:
        ways = {"sparkdl": partial(measure, TFCluster, spark)}
        if options.tfos_python:
            peer = stack.enter_context(
                Peer(options.tfos_python, "peers/clusters_tfos.py", options.master)
            )
            about["peer"], ways[PEER] = peer.versions, peer.ask
        for number in range(options.repeats + 1):
            for shape in SHAPES:
                times = {name: way(shape) for name, way in ways.items()}
                for name, one in times.items() if number else ():
                    found.setdefault(shape, {}).setdefault(name, []).append(one)
    spark.stop()
    print(json.dumps({"about": about, "found": found}))
    print(table(found))


def table(found: dict[str, Any]) -> str:
    """Medians, and how many times the peer's."""
    lines = []
    for shape, names in found.items():
        for what in ("start_s", "rows_per_s", "shutdown_s"):
            medians = {k: statistics.median(one[what] for one in v) for k, v in names.items()}
            line = f"{shape:<24}{what:<12}{medians['sparkdl']:>12.2f}"
            if PEER in medians:
                ratio = medians["sparkdl"] / medians[PEER]
                ratio = ratio if what == "rows_per_s" else 1 / ratio
                line += f"{medians[PEER]:>12.2f}{ratio:>8.1f}x"
            lines.append(line)
    return "\n".join([f"{'':<36}{'sparkdl':>12}{'TFoS':>12}", *lines])


if __name__ == "__main__":
    main()
