"""Two workers train one Keras model on a DataFrame, each with a half of its weights.

    pip install 'sparkdl-platform[jax]'
    python examples/jax_model_parallel.py
    python examples/jax_model_parallel.py --workers 4  # two copies of two halves

Models that do not fit one device are trained so: Keras puts the parts of the weights where its
layout says, and JAX moves what passes between them.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from sklearn.datasets import load_digits

from sparkdl import context, data, distribute, experiment

EPOCHS, COLUMNS = 10, {"feature_cols": "pixels", "label_cols": "digit"}
BACKEND = {"KERAS_BACKEND": "jax"}


def digits(spark: SparkSession) -> dict[str, DataFrame]:
    """Return scikit-learn's digits as two DataFrames of `pixels` and `digit`."""
    images, labels = load_digits(return_X_y=True)
    rows = [((x / 16.0).tolist(), int(y)) for x, y in zip(images, labels, strict=True)]
    df = spark.createDataFrame(rows, "pixels array<float>, digit bigint")
    train, unseen = df.randomSplit([0.75, 0.25], seed=7)
    return {"train": train, "unseen": unseen}


def classifier() -> Any:
    """Return a compiled network; a distribution that is set before places its weights."""
    import keras

    keras.utils.set_random_seed(7)
    layers = [
        keras.Input((64,)),
        keras.layers.Dense(64, activation="relu", name="hidden"),
        keras.layers.Dense(10, name="logits"),
    ]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.003), loss, metrics=["accuracy"])
    return model


def split_model(num_parts: int) -> None:
    """Let Keras place each model that is made from now on onto `num_parts` neighbouring ranks."""
    import keras

    keras.distribution.initialize()  # with the addresses that sparkdl has set
    devices = keras.distribution.list_devices()
    shape = (len(devices) // num_parts, num_parts)
    layout = keras.distribution.LayoutMap(
        keras.distribution.DeviceMesh(shape, ["copy", "part"], devices)
    )
    # Neurons are divided: the columns of this matrix, and the rows of the next one.
    layout[".*hidden/kernel"] = (None, "part")
    layout[".*hidden/bias"] = ("part",)
    layout[".*logits/kernel"] = ("part", None)
    parallel = keras.distribution.ModelParallel(
        layout_map=layout, batch_dim_name="copy", auto_shard_dataset=False
    )
    keras.distribution.set_distribution(parallel)


def save_parts(variables: list[Any], folder: str) -> None:
    """Write what this rank has of the variables, with its place in the whole."""
    parts = {}
    for number, variable in enumerate(variables):
        part = variable.value.addressable_shards[0]
        starts = "-".join(str(place.start or 0) for place in part.index)
        parts[f"{number}:{starts}"] = np.asarray(part.data)
    Path(folder).mkdir(exist_ok=True)
    np.savez(Path(folder, f"parts-{context.rank}.npz"), **parts)


def load_parts(variables: list[Any], folder: str) -> None:
    """Assign what all ranks have written; their number may be another one than now."""
    wholes = [np.empty(variable.shape, variable.dtype) for variable in variables]
    for path in Path(folder).glob("parts-*.npz"):
        for name, part in np.load(path).items():
            number, starts = name.split(":")
            begins = [int(start) for start in starts.split("-") if start]
            place = tuple(slice(b, b + n) for b, n in zip(begins, part.shape, strict=True))
            wholes[int(number)][place] = part
    for variable, whole in zip(variables, wholes, strict=True):
        variable.assign(whole)


def train(num_parts: int = 2) -> dict[str, float]:
    """Train; return the accuracy on unseen digits, and the share of the weights on this rank."""
    split_model(num_parts)
    model = classifier()
    model.optimizer.build(model.trainable_variables)
    variables = model.variables + model.optimizer.variables
    firsts = range(0, context.world_size, num_parts)
    copies = [distribute.group(range(first, first + num_parts)) for first in firsts]
    copy = copies[context.rank // num_parts]

    def rows(name: str, size: int) -> Any:
        return data.dataset(name, global_batch_size=size, **COLUMNS).as_numpy()

    def batches(rows: Any) -> Any:
        """Yield the batches: the ranks of a copy of the model need the same rows."""
        for x, y in rows:
            yield distribute.allgather(x, group=copy), distribute.allgather(y, group=copy)

    seen, unseen = rows("train", 32), rows("unseen", 64)
    done = 0
    if folder := context.get_checkpoint():
        load_parts(variables, folder)
        done = int(Path(folder, "epochs").read_text())
    for epoch in range(done, EPOCHS):
        logs = [model.train_on_batch(x, y, return_dict=True) for x, y in batches(seen)]
        model.reset_metrics()
        folder = f"model-{context.rank}"
        save_parts(variables, folder)
        Path(folder, "epochs").write_text(str(epoch + 1))
        metrics = {"loss": float(logs[-1]["loss"])}
        context.report(metrics, step=epoch, checkpoint=folder, sharded=True)
    accuracy = [model.test_on_batch(x, y) for x, y in batches(unseen)][-1][1]
    here = sum(v.value.addressable_shards[0].data.size for v in model.variables)
    return {"accuracy": float(accuracy), "share": here / model.count_params()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="processes, each in a slot")
    parser.add_argument("--parts", type=int, default=2, help="ranks that share one model")
    args = parser.parse_args()
    frames = digits(SparkSession.builder.appName("digits").getOrCreate())
    run = experiment.allreduce(
        partial(train, args.parts),
        num_workers=args.workers,
        framework="jax",
        data=frames,
        env=BACKEND,
    )
    print(f"accuracy {run.result['accuracy']:.4f} on unseen digits")
    print(f"each rank had {run.result['share']:.0%} of the weights")
