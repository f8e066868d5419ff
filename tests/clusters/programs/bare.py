"""Use what works with the core alone, and print the results as JSON."""

import importlib.metadata
import json
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import optuna
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv
from pyspark.sql import SparkSession

import sparkdl
from sparkdl import experiment, search
from sparkdl.errors import MissingPackageError
from sparkdl.ui.server import serve


def square(x: int = 0) -> dict[str, float]:
    return {"loss": float(x * x)}


def steps(rate: float) -> dict[str, float]:
    from sparkdl import context

    context.report({"loss": rate}, step=0)
    if rate > 0.5:
        time.sleep(300)  # The search ends the trial before.
    return {"loss": rate}


def reads(folder: str) -> dict[str, float]:
    from sparkdl import data

    options: Any = {"feature_cols": ["x"], "label_cols": "y", "batch_size_per_worker": 10}
    readers = {"parquet": data.parquet, "csv": data.csv}
    return {
        name: float(sum(x.sum() for x, _ in read(f"{folder}/rows.{name}", **options).as_numpy()))
        for name, read in readers.items()
    }


def gang() -> dict[str, float]:
    import numpy as np

    from sparkdl import data, distribute

    rows = data.dataset("train", global_batch_size=20, feature_cols=["x"], label_cols="y")
    own = sum(x.sum() for x, _ in rows.as_numpy())
    return {"mean": float(distribute.allreduce(np.array([own]))[0])}


def needs_tensorflow() -> None:
    import tensorflow  # noqa: F401


def needs_torch() -> None:
    from sparkdl import data

    for _ in data.dataset("train", global_batch_size=1).as_torch():
        pass


def refusal(train: Any, **options: Any) -> str:
    try:
        experiment.launch(train, **options)
    except MissingPackageError as exc:
        return str(exc)
    return "it was started"


def main() -> None:
    """Run every verb that needs no framework, in the folder of the first argument."""
    root = sys.argv[1]
    table = pa.table({"x": [float(i) for i in range(100)], "y": [i % 3 for i in range(100)]})
    pq.write_table(table, f"{root}/rows.parquet")

    csv.write_csv(table, f"{root}/rows.csv")
    refused = [refusal(needs_tensorflow), refusal(needs_torch), refusal(square, tensorboard=True)]
    has_started = SparkSession.getActiveSession() is not None
    options: Any = {"root": root, "progress": False, "metric": "loss", "direction": "min"}
    launched = experiment.launch(square, {"x": [3, 1, 2]}, **options)
    searched = experiment.search(
        steps,
        {"rate": search.Float(0.1, 1.0)},
        num_trials=3,
        initial_params=[{"rate": rate} for rate in (0.9, 0.1, 0.8)],
        pruner=optuna.pruners.ThresholdPruner(upper=0.5),
        **options,
    )
    read = experiment.launch(reads, {"folder": [root]}, root=root, progress=False)
    df = SparkSession.builder.getOrCreate().read.parquet(f"{root}/rows.parquet")
    reduced = experiment.allreduce(
        gang, data={"train": df}, num_workers=2, root=root, progress=False
    )
    with serve(root) as page, urllib.request.urlopen(page.url) as answer:
        status = answer.status
    found = {
        "page": status,
        "version": sparkdl.__version__,
        "installed": importlib.metadata.version("sparkdl-platform"),
        "recorded": json.loads(Path(launched.path, "run.json").read_text())["versions"],
        "file": sparkdl.__file__,
        "best": launched.best.params,
        "states": [str(trial.state) for trial in searched.trials],
        "report": Path(searched.path, "report.html").exists(),
        "read": read.trials[0].metrics,
        "reduced": reduced.trials[0].metrics,
        "refused": refused,
        "has_started": has_started,
        "loaded": sorted({"tensorflow", "keras", "torch", "jax"} & sys.modules.keys()),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
