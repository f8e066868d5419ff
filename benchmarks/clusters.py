"""What a TensorFlowOnSpark program takes here and there: its start, its feeding, its end.

The same program, of which only the import differs, on the same rows, in turns: a cluster of one
node that takes lists of floats with `next_batch`, of an RDD and of a DataFrame. The first turn of
each is not counted: it starts processes and imports TensorFlow.

    python benchmarks/clusters.py --tfos-python <environment>/bin/python

It prints JSON and a table.
"""

import argparse
import json
import os
import statistics
import sys
from typing import Any

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from clusters_tfos import SHAPES, measure, session
from machine import machine
from peer import Peer

from sparkdl.tfos import TFCluster

PEER = "TensorFlowOnSpark"


def main() -> None:
    """Measure both in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tfos-python", default=os.environ.get("SPARKDL_TFOS_PYTHON"))
    parser.add_argument("--master", default="local-cluster[1,1,2048]")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if not options.tfos_python:
        parser.error(f"--tfos-python is needed: the python of an environment with {PEER}")
    about = machine()
    spark = session(options.master)
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    with Peer(options.tfos_python, "clusters_tfos.py", options.master) as peer:
        about["peer"] = peer.versions
        for number in range(options.repeats + 1):
            for shape in SHAPES:
                times = {"sparkdl": measure(TFCluster, spark, shape), PEER: peer.ask(shape)}
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
            ours, theirs = (
                statistics.median(one[what] for one in names[name]) for name in ("sparkdl", PEER)
            )
            ratio = ours / theirs if what == "rows_per_s" else theirs / ours
            lines.append(f"{shape:<24}{what:<12}{ours:>12.2f}{theirs:>12.2f}{ratio:>8.1f}x")
    return "\n".join([f"{'':<36}{'sparkdl':>12}{'TFoS':>12}", *lines])


if __name__ == "__main__":
    main()
