"""Searches and grids, for a driver of `tests.clusters.driver`."""

import os
import socket
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sparkdl import experiment


def meet(folder: str, name: str) -> None:
    """Tell the test that a process runs on this host, and wait until the test goes on."""
    Path(folder, f"{name}@{socket.gethostname()}").write_text(str(os.getpid()))
    while not Path(folder, "go").exists():
        time.sleep(0.05)


def summary(run: Any) -> dict[str, Any]:
    """Return what tests compare of a run."""
    return {
        "state": str(run.state),
        "states": [str(trial.state) for trial in run.trials],
        "hosts": sorted({str(trial.outputs.get("host")) for trial in run.trials}),
        "attempts": [trial.attempts for trial in run.trials],
        "path": run.path,
        "pins": sorted(str(trial.outputs.get("pin")) for trial in run.trials),
        "clocks": [(trial.host, trial.outputs.get("clock")) for trial in run.trials],
        "seconds": [trial.duration_s for trial in run.trials],
    }


def digits(spark: SparkSession) -> Any:
    """Run the grid of the demo."""
    from grid_search import train

    run = experiment.launch(
        train,
        {"learning_rate": [0.001, 0.01], "dropout": [0.2, 0.5]},
        metric="accuracy",
        direction="max",
        seed=7,
        progress=False,
    )
    return {**summary(run), "accuracy": run.best.value}


def held(number: int, folder: str) -> dict[str, Any]:
    """Wait for the test; return the host and the GPUs of this process."""
    meet(folder, f"trial-{number}")
    host = socket.gethostname()
    return {
        "host": host,
        "value": number,
        "clock": time.time(),
        "pin": f"{host}:{os.environ['CUDA_VISIBLE_DEVICES']}",
    }


def held_grid(
    spark: SparkSession, folder: str, trials: int, root: str | None = None, **options: Any
) -> Any:
    """Run a grid whose trials wait for the test."""
    run = experiment.launch(
        held,
        {"number": list(range(trials)), "folder": [folder]},
        root=root,
        progress=False,
        **options,
    )
    return summary(run)


def num_slots(spark: SparkSession) -> int:
    """Return the number of tasks that Spark runs at once."""
    context = spark.sparkContext._jsc.sc()
    profile = context.resourceProfileManager().defaultResourceProfile()
    return int(context.maxNumConcurrentTasks(profile))


def closed_grid(spark: SparkSession, folder: str) -> Any:
    """Run a grid whose directory only its owner may read."""
    before = os.environ["SPARKDL_PERMISSIONS"]
    os.environ["SPARKDL_PERMISSIONS"] = "700"
    try:
        return held_grid(spark, folder, trials=3)
    finally:
        os.environ["SPARKDL_PERMISSIONS"] = before
