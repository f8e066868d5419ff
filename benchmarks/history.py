"""Measure how fast runs are listed, found and compared on a local disk.

1000 runs with 20 trials, of which every tenth has tags, are made without Spark. The floor is to
read the summaries of all runs, one after the other, and to parse them.

    python benchmarks/history.py --runs 1000

The program prints a table, then one JSON document, and removes its files. On a store, a list of
runs is one request for each run; a test counts the requests.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lib.machine import machine
from lib.stored_runs import make_runs

from sparkdl import experiment

AIM_S = 1.0


def seconds(call: Callable[[], Any], rounds: int) -> float:
    """Return the shortest time of several calls."""
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return min(times)


def read_summaries(root: str) -> int:
    """The floor: read and parse the summary of each run."""
    texts = (Path(root, name, "summary.json") for name in os.listdir(root) if name[0] != ".")
    return len([json.loads(text.read_text()) for text in texts])


def local(count: int, rounds: int) -> dict[str, float]:
    """Return the seconds of each call on a local disk."""
    with tempfile.TemporaryDirectory() as root:
        make_runs(root, count)
        where = "state == 'COMPLETE' and best > 0.9 and lr < 1"
        calls: dict[str, Callable[[], Any]] = {
            "floor: read and parse the summaries": lambda: read_summaries(root),
            "history": lambda: experiment.history(root),
            "history, where= a text": lambda: experiment.history(root, where=where),
            "history, where= a function": lambda: experiment.history(
                root, where=lambda row: row["best"] > 0.9
            ),
            "history, tags=": lambda: experiment.history(root, tags="tenth"),
            "compare two runs": lambda: experiment.compare([f"{root}/run-0", f"{root}/run-1"]),
        }
        calls["history"]()  # Imports pandas.
        return {name: seconds(call, rounds) for name, call in calls.items()}


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    before = machine()
    times = local(arguments.runs, arguments.rounds)
    for name, value in times.items():
        print(f"{name:40} {value:8.3f} s")
    is_met = times["history"] < AIM_S
    print(f"{arguments.runs} runs in less than {AIM_S:g} s: {'met' if is_met else 'not met'}")
    document = {"machine": before, "runs": arguments.runs, "seconds": times, "met": is_met}
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
