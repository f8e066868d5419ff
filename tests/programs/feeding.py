"""Training functions that record the rows they receive, for tests of the data feed."""

import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

# Number of rows in each of seven partitions.
SKEWED = (600, 0, 1, 291, 2, 7, 100)
FEATURES = ["part", "a", "b", "c"]


def skewed(spark: SparkSession) -> DataFrame:
    """Return 1 001 rows `id, part, a, b, c, y` in seven partitions, one of them empty."""
    place, end = F.lit(len(SKEWED) - 1), sum(SKEWED)
    for number in reversed(range(len(SKEWED))):
        place = F.when(F.col("id") < end, number).otherwise(place)
        end -= SKEWED[number]
    rows = spark.range(sum(SKEWED)).repartitionById(len(SKEWED), place.cast("int"))
    return rows.selectExpr(
        "id",
        "cast(id / 1001 as float) part",
        "cast(sin(id) as float) a",
        "cast(cos(id) as float) b",
        "cast(sin(id * 7) as float) c",
        "cast(sin(id) * 2 - cos(id) + id / 1001 as float) y",
    )


def note(folder: Path, name: str, **said: Any) -> None:
    """Append a line to the file of this rank."""
    from sparkdl import context

    with Path(folder, f"{name}-{context.rank}").open("a") as out:
        out.write(json.dumps(said) + "\n")


def notes(folder: Path, name: str, rank: int = 0) -> list[dict[str, Any]]:
    """Return the records of a rank, in order."""
    path = Path(folder, f"{name}-{rank}")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def mapped() -> list[tuple[str, str]]:
    """Return the folder and the inode of each unnamed file that this process has mapped."""
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    paths = [(line[5], line[4]) for line in lines if len(line) == 6 and "/#" in line[5]]
    return sorted({(path.rsplit("/", 1)[0], inode) for path, inode in paths})


def ids(dataset: Any) -> list[list[int]]:
    """Return the ids of each batch of a pass; a batch is a tensor of ids, or a dict with them."""
    found = []
    for batch in dataset:
        batch = batch[0] if isinstance(batch, tuple) else batch
        batch = batch["id"] if isinstance(batch, dict) else batch
        found.append([int(i) for i in batch])
    return found


def data_lines(run: Any) -> list[dict[str, Any]]:
    """Return the lines of `data.jsonl` of a run's first trial."""
    text = Path(run.trials[0].path, "data.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def build(keras: Any) -> Any:
    """Build and compile a small model under this process's strategy."""
    from sparkdl import distribute

    keras.utils.set_random_seed(7)
    with distribute.strategy().scope():
        layers = [keras.layers.Input((len(FEATURES),)), keras.layers.Dense(8, activation="tanh")]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    return model


def fit(folder: Path, batch_size: int, epochs: int) -> None:
    """Train on `train`, evaluate on `validation`, and record rows and results."""
    import numpy as np
    import tensorflow as tf

    from sparkdl import context, data

    keras = tf.keras
    model = build(keras)
    seen: list[list[int]] = []

    def see(x: Any) -> Any:
        seen.append([round(float(part) * 1001) for part in x[:, 0]])
        return x

    def watched(x: Any, y: Any) -> Any:
        shown = tf.numpy_function(see, [x], tf.float32)
        return tf.ensure_shape(shown, x.shape), y

    columns = {"feature_cols": FEATURES, "label_cols": "y"}
    rows = data.dataset("train", global_batch_size=batch_size, **columns)
    others = data.dataset("validation", global_batch_size=30, **columns)
    steps: list[int] = []

    class Steps(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            steps.append(0)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            steps[-1] += 1

    np.savez(Path(folder, f"begin-{context.rank}"), *model.get_weights())
    done = model.fit(
        rows.map(watched), validation_data=others, epochs=epochs, verbose=0, callbacks=[Steps()]
    )
    np.savez(Path(folder, f"end-{context.rank}"), *model.get_weights())
    note(folder, "fit", steps=steps, seen=seen, history=done.history, keras=type(model).__module__)
