"""Programs for the ranks of a gang. Each returns the values that its test checks, as JSON.

They use `tf.keras`, which is Keras 3, or tf_keras where TF_USE_LEGACY_KERAS is set.
"""

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Any


def digest(model: Any) -> str:
    """Return a text that is equal for models with equal bits."""
    joined = b"".join(weight.tobytes() for weight in model.get_weights())
    return hashlib.sha256(joined).hexdigest()[:16]


def table(rows: int = 64) -> tuple[Any, Any]:
    import numpy as np

    x = np.random.default_rng(0).normal(size=(rows, 4)).astype("float32")
    return x, x @ np.array([[1.0], [-2.0], [0.5], [3.0]], "float32")


def dataset(rows: int = 64, batch: int = 16) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(table(rows)).batch(batch)


def build(norm: bool = False, seed: int = 7) -> Any:
    """Build and compile a small model under this process's strategy."""
    import tensorflow as tf

    from sparkdl import distribute

    keras = tf.keras
    keras.utils.set_random_seed(seed)
    with distribute.strategy().scope():
        layers = [keras.layers.Input((4,)), keras.layers.Dense(8, activation="relu")]
        layers += [keras.layers.BatchNormalization(momentum=0.5)] if norm else []
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.02, momentum=0.9)
        model.compile(optimizer, "mse", metrics=["mae"])
    return model


def everything(folder: Path) -> Any:
    """Run many programs in one gang, because a start costs more than all programs."""
    os.environ["TMPDIR"] = str(folder)
    parts = [fits, averages, inputs, mean, stops, restarts, resumes, warms, loops]
    return {part.__name__: part(folder) for part in parts}


def fits(folder: Path) -> Any:
    model = build()
    history = model.fit(dataset(), epochs=2, verbose=0, validation_data=dataset()).history
    return {"weights": digest(model), "history": history}


def averages(folder: Path) -> Any:
    import tensorflow as tf

    seen = []

    class Watch(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_test_begin(self, logs: Any = None) -> None:
            seen.append(digest(self.model))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(digest(self.model))

    model = build(norm=True)
    model.fit(dataset(), epochs=2, verbose=0, validation_data=dataset(), callbacks=Watch())
    model.fit(dataset(), epochs=1, verbose=0, callbacks=[Watch()])
    before = digest(model)
    model.evaluate(dataset(), verbose=0)
    return {"seen": seen, "evaluate_changes": before != digest(model)}


def inputs(folder: Path) -> Any:
    """Pass data in every supported way, and return the results of all rows."""
    import keras
    import numpy as np

    from sparkdl import distribute

    # With tf_keras each worker predicts with its own moving statistics.
    legacy = "TF_USE_LEGACY_KERAS" in os.environ
    model = build(norm=not legacy)
    if not legacy:  # Outside the scope, and with an option that is ignored with several workers.
        model.compile(keras.optimizers.SGD(0.02), "mse", steps_per_execution=2)
    x, y = table()
    model.fit(x, y, batch_size=16, validation_split=0.25, epochs=2, verbose=0)
    # The last batch has one row, so that other workers have none.
    model.fit(x[:17], y[:17], sample_weight=np.ones(17), batch_size=16, verbose=0)
    shards = distribute.strategy().distribute_datasets_from_function(
        lambda me: dataset(batch=4).shard(me.num_input_pipelines, me.input_pipeline_id).repeat()
    )
    try:
        steps = model.fit(shards, steps_per_epoch=4, epochs=2, verbose=0)
    except ValueError as exc:  # Keras takes them from 3.10 on.
        assert "Unrecognized data type" in str(exc)
        steps = model.fit(dataset().repeat(), steps_per_epoch=4, epochs=2, verbose=0)
    if not legacy:  # One process of Keras 3.5 fails to train several steps on one batch.
        model.compile(keras.optimizers.SGD(0.02), "mse")
    model.train_on_batch(x, y)
    expected = np.asarray(model(x, training=False))
    rows = {}
    for count, batch in [(64, 16), (9, 4), (1, 4)]:
        found = model.predict(x[:count], batch_size=batch, verbose=0)
        rows[f"{count}/{batch}"] = bool(np.allclose(found, expected[:count], atol=1e-5))
    return {
        "loss": model.evaluate(x, y, batch_size=10, verbose=0, return_dict=True)["loss"],
        "expected_loss": float(((expected - y) ** 2).mean()),
        "rows": rows,
        "steps": int(steps.params["steps"]),
        "weights": digest(model),
    }


def mean(folder: Path) -> Any:
    from sparkdl import context, distribute

    rank = float(context.rank)
    return [distribute.mean(rank), distribute.mean({"b": rank, "a": 10.0})]


def stops(folder: Path) -> Any:
    """Stop early by a metric that improves on the first rank only."""
    import tensorflow as tf

    from sparkdl import context, keras

    digests = []

    class Noise(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["noisy"] = -1.0 * epoch if context.is_chief else 5.0 * epoch
            digests.append(digest(self.model))

    model = build(norm=True)
    stop = keras.EarlyStopping("noisy", mode="min", patience=2, restore_best_weights=True)
    model.fit(dataset(), epochs=5, verbose=0, callbacks=[Noise(), stop])
    keras.save(model, folder / "models" / "best.keras")
    return {
        "epochs": len(digests),
        "restored_first": digest(model) == digests[0],
        "weights": digest(model),
        "predicted": float(model.predict(table()[0], batch_size=64, verbose=0).sum()),
    }


def loaded(folder: Path) -> float:
    """Predict with the model that `stops` has saved, without sparkdl."""
    import sys

    import tensorflow as tf

    model = tf.keras.models.load_model(folder / "models" / "best.keras")
    assert "sparkdl.distribute.keras3_patches" not in sys.modules
    return float(model.predict(table()[0], verbose=0).sum())


def restarts(folder: Path) -> Any:
    """Interrupt a fit with Keras's own callbacks, and go on with another model."""
    import tensorflow as tf

    from sparkdl import context

    if "TF_USE_LEGACY_KERAS" in os.environ:
        return None  # tf_keras coordinates the workers' backups itself.
    of, own = tf.keras.callbacks, folder / f"own-{context.rank}"

    class Interrupted(Exception):
        pass

    class Interrupt(of.Callback):  # type: ignore[misc, name-defined]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise Interrupted

    def fit(model: Any, *more: Any) -> Any:
        callbacks = [
            of.BackupAndRestore(str(own / "backup")),
            of.ModelCheckpoint(str(own / "best.keras"), save_best_only=True),
            # The first epoch of each fit is the best one.
            of.EarlyStopping(patience=2, min_delta=1000, restore_best_weights=True),
            *more,
        ]
        data, given = dataset(50), {"epochs": 8, "verbose": 0}
        return model.fit(data, validation_data=data, callbacks=callbacks, **given)

    try:
        fit(build(), Interrupt())
    except Interrupted:
        pass
    model = build(seed=8)
    history = fit(model)
    best = tf.keras.models.load_model(own / "best.keras")
    return {
        "epochs": history.epoch,
        "logs": history.history,
        "weights": [w.ravel().tolist() for w in model.get_weights()],
        "best": [w.ravel().tolist() for w in best.get_weights()],
    }


def resumes(folder: Path) -> Any:
    """Train two epochs at once, and twice one epoch with another model."""
    from sparkdl import checkpoints, context, distribute, keras

    whole = build(norm=True)
    whole.fit(dataset(), epochs=2, verbose=0)
    build(norm=True).fit(dataset(), verbose=0, callbacks=[keras.Checkpoint(9)])
    distribute.mean(0.0)  # Wait until the chief has committed.
    newest = checkpoints.newest(str(folder))
    assert newest is not None
    given = context.current()
    context.activate(dataclasses.replace(given, checkpoint=newest.url))
    model = build(norm=True, seed=8)
    model.fit(dataset(), epochs=2, verbose=0, callbacks=[keras.Checkpoint(), keras.Report("loss")])
    context.activate(given)
    return {
        "difference": max(
            float(abs(a - b).max())
            for a, b in zip(model.get_weights(), whole.get_weights(), strict=True)
        ),
        "epochs": model.history.epoch,
        "iterations": int(model.optimizer.iterations.numpy()),
        "next_fit": len(model.fit(dataset(), verbose=0).epoch),
    }


def warms(folder: Path) -> Any:
    """Raise the rate during two epochs, with TensorBoard."""
    import tensorflow as tf

    from sparkdl import keras

    rates = []

    class Watch(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            rates.append(round(float(self.model.optimizer.learning_rate.numpy()), 6))

    warmup = keras.LearningRateWarmup(0.01, epochs=2, num_workers=3)
    build().fit(dataset(), epochs=3, verbose=0, callbacks=[warmup, Watch(), keras.TensorBoard()])
    return rates


def loops(folder: Path) -> Any:
    """Train in a custom loop."""
    import tensorflow as tf

    from sparkdl import distribute

    strategy, model = distribute.strategy(), build()
    assert strategy is distribute.strategy()

    def step(batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            squares = (model(x, training=True) - y) ** 2
            loss = tf.nn.compute_average_loss(tf.reduce_sum(squares, -1), global_batch_size=16)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function  # type: ignore[untyped-decorator]
    def train(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(step, (batch,)), axis=None)

    shards = strategy.experimental_distribute_dataset(dataset())
    losses = [float(train(batch)) for _ in range(3) for batch in shards]
    return {"weights": digest(model), "losses": losses}


def faults(folder: Path) -> Any:
    """Show the faults that `sparkdl.distribute.keras3_patches` corrects, without it."""
    import keras
    import numpy as np
    import tensorflow as tf
    from keras.src.backend.tensorflow import trainer

    from sparkdl import context

    def error(function: Any, *args: Any) -> str:
        try:
            function(*args)
        except Exception as exc:
            return f"{type(exc).__name__}: {exc}"
        return "none"

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def log(value: float) -> Any:
        return trainer.reduce_per_replica(
            strategy.run(lambda: {"loss": tf.constant(value)}), strategy, "auto"
        )

    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        norm = keras.layers.BatchNormalization()
        norm.build((None, 4))
        weight, clipping = keras.Variable([1.0]), keras.optimizers.SGD(1.0, clipvalue=0.5)
        clipping.build([weight])
    gradient = tf.constant([3.0 if context.is_chief else -0.25])
    strategy.run(clipping.apply, ([gradient],))
    empty = keras.layers.BatchNormalization()
    empty(np.zeros((0, 4), "float32"), training=True)
    strategy.run(norm, (tf.fill([2, 4], float(context.rank)),), {"training": True})
    return {
        "batch": error(model.fit, dataset()),
        "logs": error(tf.function(log), 0.5),
        "statistics": float(norm.moving_mean.numpy()[0]),
        "averages": norm.moving_mean.value.aggregation is tf.VariableAggregation.MEAN,
        "clipped": float(weight.numpy()[0]),
        "empty": bool(np.isnan(empty.moving_mean.numpy()).any()),
    }


def names(folder: Path) -> Any:
    """Return the error of a Keras without one name, and what is replaced in a whole Keras."""
    import importlib
    from functools import reduce

    from keras.src.backend.tensorflow import trainer

    from sparkdl import distribute
    from sparkdl.distribute import keras3_losses, keras3_metrics, keras3_optimizers, keras3_patches

    function, error = trainer.reduce_per_replica, "none"
    del trainer.reduce_per_replica
    try:
        distribute.strategy()
    except RuntimeError as exc:
        error = str(exc)
    trainer.reduce_per_replica = function
    modules = (keras3_patches, keras3_optimizers, keras3_losses, keras3_metrics)
    owners: dict[str, Any] = {}
    for name in (name for module in modules for name in module.NAMES):
        path = name.path.split(".")[:-1]
        for end in range(len(path) + 1):
            owner = reduce(getattr, path[:end], importlib.import_module(name.module))
            owners[".".join([name.module, *path[:end]])] = owner
    before = {name: dict(vars(owner)) for name, owner in owners.items()}
    keras3_patches.apply()
    replaced = [
        f"{name}.{attribute}"
        for name, owner in owners.items()
        for attribute, value in vars(owner).items()
        if before[name].get(attribute) is not value and attribute != "__doc__"
    ]
    return {"error": error, "replaced": replaced}


def scopes(folder: Path) -> Any:
    """Return the errors of metrics that were created outside the scope, and a predicted batch."""
    import keras
    import numpy as np

    model, metrics, errors = build(), keras.metrics, []
    x, _ = table()
    rows = model.predict_on_batch(x[:5])
    for given in (
        {"metrics": [metrics.AUC()]},
        {"weighted_metrics": ["mae", metrics.Mean()]},
        {"metrics": ["mae", "accuracy"]},
    ):
        try:
            model.compile("sgd", "mse", **given)
            errors.append("none")
        except ValueError as exc:
            errors.append(str(exc))
    expected = np.asarray(model(x[:5], training=False))
    same = rows.shape == (5, 1) and bool(np.allclose(rows, expected, atol=1e-5))
    return {"errors": errors, "same": same}


def late(folder: Path) -> Any:
    import tensorflow as tf

    from sparkdl import distribute

    tf.zeros([1])
    try:
        distribute.strategy()
    except RuntimeError as exc:
        return str(exc)


def parameter_server(folder: Path) -> Any:
    import keras
    import tensorflow as tf

    from sparkdl import context, distribute

    if context.role != "chief":
        return distribute.serve()
    strategy = distribute.strategy()
    with strategy.scope():
        layer = keras.layers.Dense(1, kernel_initializer="zeros")
        model = keras.Sequential([keras.layers.Input((4,)), layer])
        optimizer = keras.optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    @tf.function  # type: ignore[untyped-decorator]
    def step(iterator: Any) -> Any:
        def replica(batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.run(replica, (next(iterator),))

    data = coordinator.create_per_worker_dataset(lambda: dataset().repeat())
    iterator = iter(data)
    values = [coordinator.schedule(step, (iterator,)) for _ in range(60)]
    coordinator.join()
    losses = [float(value.fetch()) for value in values]
    # A worker that starts late takes the first step when the model is trained already.
    device = str(model.weights[0].value.device)
    return {"first": max(losses), "last": losses[-1], "device": device}


def jax_gang(folder: Path) -> Any:
    import keras

    keras.distribution.initialize()
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    losses = model.fit(dataset(), epochs=3, verbose=0).history["loss"]
    import jax

    return {"losses": losses, "weights": digest(model), "processes": jax.process_count()}
