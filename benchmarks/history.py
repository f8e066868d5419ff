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
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lib.machine import machine

from sparkdl import experiment
from sparkdl.runs.events import Event, RunEnded, TrialChanged
from sparkdl.runs.opening import RunDescription, open_run
from sparkdl.runs.states import RunState, TrialState

AIM_S = 1.0
TRIALS = 20


def make_run(root: str, run_id: str) -> str:
    """Make a run that has ended; return its directory."""
    description = RunDescription(
        id=run_id,
        name="digits",
        kind="launch",
        description=None,
        metric="accuracy",
        direction="max",
        params=[{"lr": 0.1 / (n + 1), "units": 16 * n, "opt": "adam"} for n in range(TRIALS)],
        seed=1,
        secrets=(),
        facts={"user": "ann", "git_commit": "0" * 40, "versions": {"python": "3.12"}},
    )
    opened = open_run(root, description, "error")
    ends: list[Event] = []
    for number in range(TRIALS):
        value = number / TRIALS
        metrics = {"accuracy": value, "loss": 1 - value}
        ends.append(
            TrialChanged(
                number=number,
                state=TrialState.COMPLETE,
                attempt=0,
                value=value,
                metrics=metrics,
                outputs=metrics,
                shape="dict",
            )
        )
    opened.record(*ends)
    opened.close(RunEnded(state=RunState.COMPLETE, duration_s=60.0))
    return opened.run.path


def make_runs(root: str, count: int) -> None:
    """Make many runs as copies of one, and tag every tenth."""
    first = make_run(root, "run-0")
    summary = json.loads(Path(first, "summary.json").read_text())
    for number in range(1, count):
        path = Path(root, f"run-{number}")
        shutil.copytree(first, path)
        row = {**summary, "run": path.name, "best": number / count}
        (path / "summary.json").write_text(json.dumps(row))
    for number in range(0, count, 10):
        experiment.load(f"{root}/run-{number}").tag("tenth")


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
