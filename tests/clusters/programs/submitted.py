"""A program for `spark-submit`: a grid whose trials wait for the test, and tell what they see.

It needs no module of the tests, as hosts get nothing but its file and an archive.
"""

import argparse
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sparkdl import context, devices, experiment


def train(number: int, folder: str, memory_mb: int) -> dict[str, Any]:
    """Tell the test where this trial runs, take memory, and wait until the test goes on."""
    name = f"trial-{number}-{time.time_ns()}@{socket.gethostname()}"
    facts = {
        "pid": os.getpid(),
        "container": os.environ.get("CONTAINER_ID"),
        "python": sys.executable,
        "gpus": devices.gpus(),
        "resumed": context.get_checkpoint(),
    }
    aside = Path(folder, f".{name}")
    aside.write_text(json.dumps(facts))
    aside.rename(Path(folder, name))
    taken = []
    while not Path(folder, "go").exists() and not Path(folder, f"go-{number}").exists():
        if len(taken) * 16 < memory_mb:
            taken.append(os.urandom(16 << 20))
        time.sleep(0.05)
    return {"value": number, "host": socket.gethostname(), "gpus": ",".join(devices.gpus())}


def main() -> None:
    """Run the grid, and write a summary for the test."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--memory-mb", type=int, default=0)
    parser.add_argument("--run-id")
    parser.add_argument("--gpus", type=float)
    arguments = parser.parse_args()
    SparkSession.builder.getOrCreate()
    grid = {
        "number": list(range(arguments.trials)),
        "folder": [arguments.folder],
        "memory_mb": [arguments.memory_mb],
    }
    options: dict[str, Any] = {"run_id": arguments.run_id, "if_exists": "resume"}
    if arguments.gpus is not None:
        options["num_gpus"] = arguments.gpus
    options = {name: value for name, value in options.items() if value is not None}
    if not arguments.run_id:
        options.pop("if_exists")
    run = experiment.launch(train, grid, progress=False, **options)
    summary = {
        "state": str(run.state),
        "states": [str(trial.state) for trial in run.trials],
        "attempts": [trial.attempts for trial in run.trials],
        "hosts": sorted({str(trial.outputs.get("host")) for trial in run.trials}),
        "errors": [trial.error for trial in run.trials],
        "gpus": [trial.outputs.get("gpus") for trial in run.trials],
        "path": run.path,
        "python": sys.executable,
    }
    aside = Path(arguments.folder, ".summary")
    aside.write_text(json.dumps(summary))
    aside.rename(Path(arguments.folder, "summary.json"))
    run.raise_for_failures()


if __name__ == "__main__":
    main()
