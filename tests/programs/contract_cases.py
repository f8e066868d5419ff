"""One training for each part of Keras that acts on gradients, see `contract`."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from tests.programs.contract import (
    ROWS,
    STEPS,
    classifier,
    mine,
    plain,
    rows,
    weights,
    wrapped,
)

UNBUILT = ("sgd", "adam")  # They create their variables in `fit`, as most programs have it.


def optimizers(keras: Any) -> dict[str, Callable[[], Any]]:
    """Return functions that create an optimizer, by the name of what they try."""
    of = keras.optimizers
    decay = of.schedules.CosineDecay(0.0, 8, warmup_target=0.1, warmup_steps=3)
    return {
        "sgd": lambda: of.SGD(0.1, momentum=0.9, nesterov=True),
        "adam": lambda: of.Adam(0.02),
        "clipnorm": lambda: of.SGD(0.2, clipnorm=0.05),
        "clipvalue": lambda: of.SGD(0.2, clipvalue=0.01),
        "global_clipnorm": lambda: of.SGD(0.2, global_clipnorm=0.05),
        "accumulation": lambda: of.Adam(0.02, gradient_accumulation_steps=2),
        "ema": lambda: of.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3),
        "weight decay": lambda: of.AdamW(0.02, weight_decay=0.1),
        "schedule and warm-up": lambda: of.SGD(decay),
        "loss scale": lambda: of.LossScaleOptimizer(of.SGD(0.1), initial_scale=2.0**10),
    }


def fit(model: Any, *arrays: Any) -> dict[str, Any]:
    """Train on this rank's rows of some arrays, and return weights and logs."""
    x, y = mine(*arrays) if arrays else mine(*rows()[:2])
    each = ROWS // _world_size()
    history = model.fit(x, y, batch_size=each, epochs=2, shuffle=False, verbose=0).history
    return {"weights": weights(model), "history": plain(history)}


def _world_size() -> int:
    from sparkdl import context

    return context.world_size


def of_optimizers(way: str, names: Collection[str] = ()) -> dict[str, Any]:
    """Train with each kind of optimizer, or with those of some names."""
    import keras

    told = {}
    for name, create in optimizers(keras).items():
        if names and name not in names:
            continue
        model = classifier(keras)
        metrics = ["mae"] if name in UNBUILT else None
        model.compile(wrapped(way, create()), "mse", metrics=metrics)
        if name not in UNBUILT:
            # A function that creates variables is traced twice, which takes half the time of a fit.
            model.optimizer.build(model.trainable_variables)
        told[name] = fit(model)
    return told


def half_precision(way: str) -> dict[str, Any]:
    """Train with a loss scale; the step of one row overflows, and all ranks leave it out."""
    import keras

    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = classifier(keras)
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=64.0)
        model.compile(wrapped(way, scaled), "mse")
        x, y, _ = rows()
        x[2 * ROWS] = 1e6
        told = fit(model, x, y)
        return {"weights": told["weights"], "scale": float(scaled.dynamic_scale)}
    finally:
        keras.config.set_dtype_policy("float32")


def norm(way: str) -> dict[str, Any]:
    import keras

    from sparkdl import context

    keras.utils.set_random_seed(context.rank)
    layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input((4,)), *layers])
    model.compile(wrapped(way, keras.optimizers.SGD(0.1)), "mse")
    return fit(model)


def embedding(way: str) -> dict[str, Any]:
    import keras

    from sparkdl import context

    keras.utils.set_random_seed(context.rank)
    layers = [keras.layers.Embedding(9, 3), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input((2,)), *layers])
    model.compile(wrapped(way, keras.optimizers.Adam(0.05)), "mse")
    x = np.random.default_rng(4).integers(0, 9, (STEPS * ROWS, 2))
    return fit(model, x, rows()[1])


def custom(way: str) -> dict[str, Any]:
    """Train with a `train_step` of the model's own, and variables that have no gradient."""
    import keras
    import tensorflow as tf

    class Custom(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.used = classifier(keras)
            self.unused = keras.layers.Dense(2)
            self.unused.build((None, 4))
            self.built = True

        def call(self, x: Any) -> Any:
            return self.used(x)

        def train_step(self, batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                predicted = self(x, training=True)
                loss = self.compute_loss(x, y, predicted)
            self._loss_tracker.update_state(loss, sample_weight=tf.shape(x)[0])
            found = tape.gradient(loss, self.trainable_weights)
            self.optimizer.apply(found, self.trainable_weights)
            return self.compute_metrics(x, y, predicted)

    model = Custom()
    model.compile(wrapped(way, keras.optimizers.Adam(0.02)), "mse", metrics=["mae"])
    return fit(model)


def restored(way: str) -> dict[str, Any]:
    """Train, restore weights and optimizer in a new model, and train twice more."""
    import keras

    from sparkdl import context

    def compiled() -> Any:
        model = classifier(keras)
        model.compile(wrapped(way, keras.optimizers.Adam(0.02)), "mse")
        return model

    first, second = compiled(), compiled()
    fit(first)
    path = f"restored-{context.rank}.weights.h5"
    first.save_weights(path)
    second.optimizer.build(second.trainable_variables)
    second.load_weights(path)
    Path(path).unlink()
    fit(second)
    return fit(second)


def loop(way: str) -> dict[str, Any]:
    """Train in a loop of one's own, with a tape that averages and a plain optimizer."""
    import keras
    import tensorflow as tf

    from sparkdl import distribute

    model, optimizer = classifier(keras), keras.optimizers.Adam(0.02)
    optimizer.build(model.trainable_variables)
    if way == "optimizer":
        wrap: Any = distribute.gradient_tape
    else:
        import sparkdl.horovod.tensorflow as hvd

        wrap = hvd.DistributedGradientTape

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with wrap(tf.GradientTape()) as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        found = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply(found, model.trainable_variables)

    distribute.broadcast_variables([*model.weights, *optimizer.variables])
    x, y = (part.reshape(STEPS, -1, *part.shape[1:]) for part in mine(*rows()[:2]))
    for i in range(STEPS):
        step(x[i], y[i])
    return {"weights": weights(model)}


def uneven(way: str) -> dict[str, Any]:
    """Train with two steps fewer on the last rank: an epoch ends with it."""
    import keras

    from sparkdl import context

    model = classifier(keras)
    model.compile(wrapped(way, keras.optimizers.Adam(0.02)), "mse")
    x, y = mine(*rows()[:2])
    each = ROWS // context.world_size
    is_last = context.rank == context.world_size - 1
    kept = (STEPS - 2) * each if is_last else len(x)
    model.fit(x[:kept], y[:kept], batch_size=each, epochs=2, shuffle=False, verbose=0)
    return {"weights": weights(model)}


def few(folder: Path) -> Any:
    """Run some of the programs, for more ranks."""
    programs = [half_precision, norm, embedding, uneven]
    told = of_optimizers("optimizer", ("global_clipnorm", "accumulation"))
    return {**told, **{program.__name__: program("optimizer") for program in programs}}


def everything(folder: Path) -> Any:
    """Run all programs in one gang, because a start costs more than most programs."""
    return of_way("optimizer")


def horovod(folder: Path) -> Any:
    """Run all programs with Horovod's names."""
    return of_way("horovod")


def of_way(way: str) -> dict[str, Any]:
    programs = [half_precision, norm, embedding, custom, restored, loop, uneven]
    return {**of_optimizers(way), **{program.__name__: program(way) for program in programs}}
