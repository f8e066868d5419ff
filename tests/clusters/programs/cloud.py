"""A search whose run is in a cloud's store, and which reads a Parquet dataset from it."""

import json
import logging
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from sparkdl import context, data, experiment


def train(scale: float, url: str) -> float:
    """Sum the rows of a dataset, report, and commit a checkpoint."""
    batches = data.parquet(url, feature_cols="a", batch_size_per_worker=8).as_numpy_iterator()
    total = scale * sum(float(a.sum()) for a in batches)
    kept = Path(tempfile.mkdtemp())
    (kept / "total.txt").write_text(str(total))
    for step in range(3):
        context.report(total, step=step, checkpoint=kept)
    return total


def main(store: str) -> None:
    """Print what was found in the run directory."""
    logged: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    space = {"scale": [1.0, 2.0, 3.0], "url": [f"{store}/table"]}
    run = experiment.search(
        train, space, algorithm="grid", num_trials=3, root=f"{store}/runs", progress=False
    )
    again = experiment.load(run.path)
    found = {
        "path": again.path,
        "states": [str(trial.state) for trial in again.trials],
        "best": again.best.value,
        "checkpoint": again.best.checkpoint,
        "histories": [len(trial.reported_values()) for trial in again.trials],
        "listed": experiment.history(f"{store}/runs")["state"].tolist(),
        "logged": logged,
    }
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
