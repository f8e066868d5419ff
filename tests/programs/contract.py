"""Programs whose numbers must not depend on the number of ranks. Each returns what it saw.

The global batches are the same for all numbers of ranks: each rank has its part of each of them.
"""

from pathlib import Path
from typing import Any

import numpy as np

STEPS, ROWS = 6, 24  # Rows of a step of all ranks together, for 1 to 3 ranks.


def mine(*arrays: Any) -> list[Any]:
    """Return this rank's rows of each step."""
    from sparkdl import context

    each = ROWS // context.world_size
    place = slice(context.rank * each, (context.rank + 1) * each)
    steps = [array.reshape(-1, ROWS, *array.shape[1:])[:, place] for array in arrays]
    return [step.reshape(-1, *step.shape[2:]) for step in steps]


def share(*arrays: Any) -> list[Any]:
    """Return this rank's rows of a few rows, of which ranks have more or less."""
    from sparkdl import context

    return [np.array_split(array, context.world_size)[context.rank] for array in arrays]


def batches(*arrays: Any) -> Any:
    """Return a dataset of batches of two rows, which may be empty."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(tuple(arrays)).batch(2)


def rows(num_rows: int = STEPS * ROWS, seed: int = 0) -> tuple[Any, Any, Any]:
    """Return features, labels of 0 or 1, and weights."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(num_rows, 4)).astype("float32")
    y = (x[:, :1] + 0.5 * random.normal(size=(num_rows, 1)) > 0.3).astype("float32")
    return x, y, random.uniform(0, 3, num_rows).astype("float32")


def wrapped(way: str, optimizer: Any) -> Any:
    """Return an optimizer that averages in one of the ways."""
    from sparkdl import distribute

    if way == "optimizer":
        return distribute.optimizer(optimizer)
    import sparkdl.horovod.keras as hvd

    return hvd.DistributedOptimizer(optimizer)


def classifier(keras: Any) -> Any:
    """Build a small model, with other weights on each rank."""
    from sparkdl import context

    keras.utils.set_random_seed(context.rank)
    layers = [keras.layers.Input((4,)), keras.layers.Dense(8, "tanh")]
    return keras.Sequential([*layers, keras.layers.Dense(1, "sigmoid")])


def plain(values: Any) -> Any:
    """Return logs as JSON holds them."""
    return {name: np.asarray(value, "float64").tolist() for name, value in values.items()}


def weights(model: Any) -> list[float]:
    return [value for w in model.get_weights() for value in np.ravel(w).tolist()]


def metrics(way: str) -> Any:
    """Train and evaluate with metrics that are no mean of the rows."""
    import tensorflow as tf

    keras = tf.keras
    model, of = classifier(keras), keras.metrics
    scores = [of.AUC(name="auc"), of.Precision(name="precision"), of.Recall(name="recall")]
    scores += [of.F1Score(threshold=0.5, name="f1"), of.BinaryIoU(name="iou")]
    scores += [of.RootMeanSquaredError(name="rmse"), of.R2Score(name="r2"), "mae"]
    scores += [of.CosineSimilarity(name="cosine"), of.SensitivityAtSpecificity(0.5, name="at")]
    weighted = [of.BinaryAccuracy(name="weighted"), of.AUC(name="weighted_auc")]
    loss = keras.losses.BinaryCrossentropy()
    optimizer = wrapped(way, keras.optimizers.SGD(0.1))
    model.compile(optimizer, loss, metrics=scores, weighted_metrics=weighted)
    x, y, weight = mine(*rows())
    own = share(*rows(7, seed=1))
    history = model.fit(
        *(x, y),
        sample_weight=weight,
        batch_size=len(x) // STEPS,
        epochs=2,
        shuffle=False,
        verbose=0,
        validation_data=tuple(own),
        validation_batch_size=2,
    ).history
    batch = share(*rows(9, seed=2))
    few = batches(*share(*rows(1)))  # All but one rank have no rows.
    validated = model.fit(
        x, y, batch_size=len(x) // STEPS, verbose=0, validation_data=few, shuffle=False
    )
    told = {
        "weights": weights(model),
        "history": plain(history),
        "validation of few rows": plain(validated.history),
    }
    if way == "horovod":  # An evaluation outside `fit` is that of each rank.
        return told
    return told | {
        "evaluate": plain(model.evaluate(batches(*own), verbose=0, return_dict=True)),
        "in order": np.ravel(model.evaluate(batches(*own), verbose=0)[0]).tolist(),
        "of a batch": plain(model.test_on_batch(*batch, return_dict=True)),
        "few rows": plain(model.evaluate(batches(*share(*rows(1))), verbose=0, return_dict=True)),
    }


def validated(way: str, folder: Path) -> Any:
    """Validate and evaluate with files of which some ranks read a row twice in training."""
    import keras
    import pyarrow as pa
    import pyarrow.parquet as pq

    from sparkdl import context, data

    model, seen = classifier(keras), {}
    model.compile(wrapped(way, keras.optimizers.SGD(0.1)), "mse", metrics=["mae"])
    x, y, _ = mine(*rows())
    for num_rows, shuffle in ((1, False), (5, False), (7, True)):
        features, labels, _ = rows(num_rows, seed=3)
        path = folder / f"{context.rank}-{num_rows}.parquet"
        pq.write_table(pa.table({"x": list(features), "y": labels[:, 0]}), path)
        held = data.parquet(
            str(path), batch_size_per_worker=2, shuffle=shuffle, feature_cols="x", label_cols="y"
        )
        more = {"batch_size": len(x) // STEPS, "shuffle": False, "verbose": 0}
        history = model.fit(x, y, validation_data=held, **more).history
        seen[f"{num_rows}"] = plain(history)
        if way == "optimizer":  # In Horovod, an evaluation outside `fit` is that of each rank.
            told = model.evaluate(held, verbose=0, return_dict=True)
            seen[f"evaluate {num_rows}"] = plain(told)
    return seen


def several(way: str) -> Any:
    """Train a model with two optimizers of its own, as generative adversarial networks have."""
    import keras
    import tensorflow as tf

    class Pair(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.halves = [classifier(keras), classifier(keras)]
            self.losses_of = [keras.metrics.Mean(name="first"), keras.metrics.Mean(name="second")]
            self.build((None, 4))

        def compile(self, optimizers: Any) -> None:
            super().compile()
            self.optimizers = optimizers

        def build(self, shape: Any) -> None:
            self.built = True

        @property
        def metrics(self) -> Any:
            return self.losses_of

        def train_step(self, batch: Any) -> Any:
            x, y = batch
            for place, half in enumerate(self.halves):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((half(x) - y) ** 2)
                found = tape.gradient(loss, half.trainable_weights)
                self.optimizers[place].apply(found, half.trainable_weights)
                self.losses_of[place].update_state(loss)
            return {metric.name: metric.result() for metric in self.losses_of}

    model = Pair()
    model.compile([wrapped(way, keras.optimizers.Adam(0.01 * n)) for n in (1, 2)])
    x, y, _ = mine(*rows())
    more = {"batch_size": len(x) // STEPS, "shuffle": False, "verbose": 0}
    history = model.fit(x, y, epochs=2, **more).history
    return {"weights": weights(model), "history": plain(history)}


def by_hand(way: str) -> Any:
    """Train by `train_on_batch`, without `fit`."""
    import keras

    model = classifier(keras)
    model.compile(wrapped(way, keras.optimizers.SGD(0.1)), "mse", metrics=["mae"])
    x, y, _ = (part.reshape(STEPS, -1, *part.shape[1:]) for part in mine(*rows()))
    logs = [model.train_on_batch(x[i], y[i], return_dict=True) for i in range(STEPS)]
    return {"weights": weights(model), "logs": [plain(each)["loss"] for each in logs]}


def no_rows(way: str) -> Any:
    """Return the error of a training in which the last rank has no rows."""
    import keras

    from sparkdl import context

    model = classifier(keras)
    model.compile(wrapped(way, keras.optimizers.SGD(0.1)), "mse")
    x, y, _ = rows(4)
    is_last = context.world_size > 1 and context.rank == context.world_size - 1
    try:
        model.fit(batches(*(part[: 0 if is_last else 4] for part in (x, y))), verbose=0)
    except ValueError as exc:
        return str(exc)
    return ""


def without_variables(way: str) -> Any:
    """Return the log and the warning of a metric that keeps its state outside variables."""
    import warnings

    import keras

    from sparkdl import context

    class Largest(keras.metrics.Metric):  # type: ignore[misc]
        def update_state(self, *args: Any, **kwargs: Any) -> None: ...
        def result(self) -> Any:
            return keras.ops.cast(context.rank, "float32")

    model = classifier(keras)
    optimizer = wrapped(way, keras.optimizers.SGD(0.1))
    model.compile(optimizer, "mse", metrics=[Largest(name="largest")])
    x, y, _ = mine(*rows())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = model.fit(x, y, verbose=0).history
    return [history["largest"], [str(w.message) for w in caught if "largest" in str(w.message)]]


def loaded(folder: Path) -> Any:
    """Continue a training with a loaded model; and with one that each rank trains alone."""
    import keras

    from sparkdl import context, distribute
    from sparkdl.distribute.lone_training import note_lone_training

    said = note_lone_training(context.current())
    x, y, _ = mine(*rows())
    more: dict[str, Any] = {"batch_size": len(x) // STEPS, "shuffle": False, "verbose": 0}
    model = classifier(keras)
    model.compile(distribute.optimizer(keras.optimizers.Adam(0.05)), "mse")
    model.fit(x, y, **more)
    path = str(folder / f"{context.rank}.keras")
    model.save(path)
    model = distribute.load_model(path)
    model.fit(x, y, **more)
    silent = list(said)
    keras.models.load_model(path).fit(x, y, **more)
    return {"weights": weights(model), "silent": silent, "said": said}


def files(folder: Path) -> Any:
    """Save by Keras's ModelCheckpoint to one path of all ranks, and to one of each rank."""
    import keras

    from sparkdl import context, distribute

    writes: list[str] = []

    class Counted(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
        def _save_model(self, *args: Any, **kwargs: Any) -> None:
            writes.append(self.filepath)
            super()._save_model(*args, **kwargs)

    model = classifier(keras)
    model.compile(distribute.optimizer("sgd"), "mse")
    paths = [str(folder / name) for name in ("one.keras", f"{context.rank}.keras")]
    callbacks = [Counted(path) for path in paths]
    x, y, _ = mine(*rows())
    model.fit(x, y, verbose=0, callbacks=callbacks)
    distribute.barrier()
    loaded = [weights(keras.models.load_model(path)) == weights(model) for path in paths]
    is_same = [callback.filepath for callback in callbacks] == paths
    return [[path in writes for path in paths], loaded, is_same]


def everything(folder: Path) -> Any:
    """Run all programs in one gang, because a start costs more than most programs."""
    from sparkdl import context

    programs = [metrics, several, by_hand, no_rows, without_variables]
    # One process averages nothing, and is the same in both ways.
    ways = ("optimizer", "horovod") if context.world_size > 1 else ("optimizer",)
    answers = {way: {program.__name__: program(way) for program in programs} for way in ways}
    for way in ways:
        answers[way]["validated"] = validated(way, folder)
    return answers | {"loaded": loaded(folder), "files": files(folder)}


def few(folder: Path) -> Any:
    """Run the programs whose results depend on which rank has which rows, for more ranks."""
    programs = [metrics, by_hand, no_rows, without_variables]
    answers = {program.__name__: program("optimizer") for program in programs}
    return {"optimizer": {**answers, "validated": validated("optimizer", folder)}}
