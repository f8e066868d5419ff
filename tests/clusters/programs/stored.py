"""Runs, models and data in a store, for a driver of `tests.clusters.driver`."""

import socket
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sparkdl import context, experiment, models
from tests.clusters.programs.trials import summary


def _trained(scale: float) -> dict[str, Any]:
    kept = Path(tempfile.mkdtemp())
    (kept / "scale.txt").write_text(str(scale))
    context.report(scale / 2, step=1, checkpoint=kept)
    notes = Path(context.logdir, "notes.txt")
    notes.write_text(f"noted {scale}")
    return {"score": scale, "notes": str(notes)}


def runs(spark: SparkSession) -> Any:
    """Run a grid in the default root, and read it again."""
    grid = {"scale": [1.0, 2.0]}
    run = experiment.launch(_trained, grid, metric="score", direction="max", progress=False)
    again = experiment.load(run.path)
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(again.best.artifact("notes", folder)).read_text()
    return {
        **summary(again),
        "best": again.best.value,
        "notes": notes,
        "checkpoint": again.best.checkpoint,
        "listed": run.id in set(experiment.history()["run"]),
    }


def exported(spark: SparkSession, data: str) -> Any:
    """Export a model, find it again, and apply it to the rows of a table."""
    import keras
    import numpy as np
    from pyspark.sql import functions as F

    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.set_weights([np.array([[1.0], [2.0]]), np.array([0.5])])
    version = models.export(model, "line", alias="stable")
    assert version
    table = spark.read.parquet(data)
    found = models.get("line", alias="stable")
    predicted = experiment.predict(found, table, feature_cols=["a", "b"])
    error = F.abs(F.col("prediction") - F.col("a") - 2 * F.col("b") - 0.5)
    count, worst = predicted.agg(F.count("*"), F.max(error)).first()
    return {"count": count, "worst": worst, "path": version.path}


def write_tables(spark: SparkSession, url: str) -> Any:
    """Write the same rows as Parquet and TFRecord files, and for petastorm."""
    from sparkdl import data
    from sparkdl.data.readers.petastorm.materialize import materialize

    table = spark.range(100, numPartitions=4).selectExpr(
        "id", "cast(id / 2 as float) a", "cast(id + 1 as float) b"
    )
    table.write.parquet(f"{url}/parquet")
    data.write_tfrecord(table, f"{url}/tfrecord")
    materialize(table, f"{url}/petastorm")
    return table.count()


def _sums(kind: str, url: str) -> dict[str, float]:
    from sparkdl import data

    options = {"trust": True} if kind == "petastorm" else {}
    dataset = getattr(data, kind)(
        f"{url}/{kind}", feature_cols="a", label_cols="id", batch_size_per_worker=8, **options
    )
    rows = [(float(a.sum()), int(y.sum()), len(y)) for a, y in dataset.as_numpy_iterator()]
    a, y, count = map(sum, zip(*rows, strict=True))
    return {"a": a, "ids": y, "rows": count}


def read_tables(spark: SparkSession, url: str, kind: str) -> Any:
    """Read the rows in a training process."""
    run = experiment.launch(_sums, {"kind": [kind], "url": [url]}, progress=False)
    return {**summary(run), "outputs": run.trials[0].outputs}


def _held(number: int, folder: str) -> dict[str, Any]:
    """Report until the test goes on."""
    Path(folder, f"trial-{number}").touch()
    step = 0
    while not Path(folder, "go").exists():
        context.report(step, step=step)
        step += 1
        time.sleep(0.1)
    return {"host": socket.gethostname(), "value": number, "steps": step}


def reporting_grid(spark: SparkSession, folder: str, trials: int) -> Any:
    """Run trials that report all the time; the first ones wait for the test."""
    grid = {"number": list(range(trials)), "folder": [folder]}
    run = experiment.launch(_held, grid, progress=False)
    again = experiment.load(run.path)
    reported = [len(trial.reported_values()) for trial in again.trials]
    steps = [trial.outputs["steps"] for trial in again.trials]
    return {**summary(again), "steps": steps, "reported": reported}
