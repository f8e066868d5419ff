"""Programs that train with every kind of optimizer; one process and several give the same numbers.

Each returns weights and logs. They run under `distribute.strategy()`, on the same global batches.
"""

import functools
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

ROWS, BATCH = 48, 12  # The rows of a step, of all workers together, for 1 to 3 workers.
WITH_METRICS = ("sgd", "batch normalization")
FEW = ("accumulation and clipping", "batch normalization", "loss scaling, clipnorm")


def rows() -> tuple[Any, Any]:
    import numpy as np

    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, 4)).astype("float32")
    y = x @ np.array([[1.0], [-2.0], [0.5], [3.0]], "float32")
    y[5::12] *= 20  # One worker has a long gradient, which is clipped or overflows.
    return x, y


def optimizers() -> dict[str, Callable[[], Any]]:
    import keras

    adam, sgd = keras.optimizers.Adam, keras.optimizers.SGD
    decay = keras.optimizers.schedules.ExponentialDecay(0.05, 4, 0.7)
    return {
        "sgd": lambda: sgd(0.005, momentum=0.9),
        "adam": lambda: adam(0.02),
        "schedule and weight decay": lambda: keras.optimizers.AdamW(decay, weight_decay=0.1),
        "clipnorm": lambda: sgd(0.1, clipnorm=0.5),
        "clipvalue": lambda: sgd(0.1, clipvalue=0.2),
        "global_clipnorm": lambda: adam(0.05, global_clipnorm=0.5),
        "accumulation": lambda: adam(0.02, gradient_accumulation_steps=3),
        "accumulation and clipping": lambda: sgd(
            0.02, gradient_accumulation_steps=2, clipnorm=0.5, weight_decay=0.01
        ),
        "ema": lambda: sgd(0.005, use_ema=True, ema_momentum=0.8),
        "ema that overwrites": lambda: sgd(
            0.005, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2
        ),
        "loss scale factor": lambda: sgd(0.005, loss_scale_factor=8.0),
    }


def layers(name: str) -> list[Any]:
    import keras

    dense = keras.layers.Dense(1, dtype="float32")
    hidden = keras.layers.Dense(
        8,
        "relu",
        kernel_constraint="max_norm" if name.startswith("constraint") else None,
        kernel_regularizer="l2" if name.startswith("constraint") else None,
    )
    first = [keras.layers.Input((4,)), hidden]
    if name == "batch normalization":
        first.append(keras.layers.BatchNormalization(synchronized=True))
    if name.startswith("embedding"):
        first[1:] = [
            keras.layers.Lambda(lambda x: keras.ops.cast(keras.ops.abs(x) * 3, "int32") % 8),
            keras.layers.Embedding(8, 3),
            keras.layers.Flatten(),
        ]
    return [*first, dense]


def build(name: str, optimizer: Any) -> Any:
    """Build and compile a model under the strategy of this process."""
    import keras

    from sparkdl import distribute

    class OwnStep(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            import tensorflow as tf

            x, y = data
            with tf.GradientTape() as tape:
                predicted = self(x, training=True)
                loss = self.compute_loss(x, y, predicted)
                scaled = self.optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            # Not the name of a metric, whose result Keras would log in place of this value.
            return {"distance": tf.reduce_mean(tf.abs(y - predicted))}

    keras.utils.set_random_seed(7)
    with distribute.strategy().scope():
        cls = OwnStep if name.startswith("own step") else keras.Sequential
        model = cls(layers(name))
        if name.startswith("embedding"):
            model.spare = keras.layers.Dense(2)
            model.spare.build((None, 4))
        metrics = ["mae", keras.metrics.RootMeanSquaredError()] if name in WITH_METRICS else None
        model.compile(optimizer(), "mse", metrics=metrics)
        if name not in WITH_METRICS:
            # A function that creates variables is traced twice, which takes half the time of a fit.
            model.optimizer.build(model.trainable_variables)
    return model


def cases() -> Mapping[str, Callable[[], Any]]:
    """Return a compiled model by the name of each case."""
    import keras

    every = optimizers()

    def scaled(inner: Callable[[], Any]) -> Any:
        # So large a scale overflows on the worker with the long gradient first.
        return keras.optimizers.LossScaleOptimizer(
            inner(), initial_scale=2.0**127, dynamic_growth_steps=3
        )

    made = {name: functools.partial(build, name, every[name]) for name in every}
    for name in ("batch normalization", "embedding and unused variables"):
        made[name] = functools.partial(build, name, every["adam"])
    name = "constraint and regularizer"
    made[name] = functools.partial(build, name, every["global_clipnorm"])
    made["own step"] = functools.partial(build, "own step", every["accumulation and clipping"])
    for name in ("clipnorm", "accumulation", "ema that overwrites"):
        optimizer = functools.partial(scaled, every[name])
        made[f"loss scaling, {name}"] = functools.partial(build, "", optimizer)
    optimizer = functools.partial(scaled, every["sgd"])
    made["own step, loss scaling"] = functools.partial(build, "own step", optimizer)
    return made


def of_devices(folder: Path) -> Any:
    """Train each case on two devices of one worker, as if they were GPUs."""
    from unittest.mock import patch

    import tensorflow as tf

    from sparkdl import distribute

    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    with patch.object(tf.config, "list_physical_devices", return_value=["GPU:0", "GPU:1"]):
        strategy = distribute.strategy()
    assert type(strategy) is tf.distribute.MirroredStrategy
    assert strategy.num_replicas_in_sync == 2
    return numbers(folder)


def few_numbers(folder: Path) -> Any:
    """Train some of the cases."""
    return numbers(folder, FEW)


def numbers(folder: Path, names: Collection[str] = ()) -> Any:
    """Train each case, or those of some names; return weights, logs and the optimizer's state."""
    import keras
    import numpy as np
    import tensorflow as tf

    from sparkdl import distribute

    distribute.strategy()  # Before anything that computes.
    data = tf.data.Dataset.from_tensor_slices(rows()).batch(BATCH)
    # An iterator over workers or devices takes longer than an epoch: here one serves all epochs.
    endless = {"x": data.repeat(), "steps_per_epoch": ROWS // BATCH}
    answers = {}

    def add(name: str, model: Any) -> None:
        epochs = {"x": data} if name in WITH_METRICS else endless
        history = model.fit(**epochs, epochs=4, verbose=0).history
        state = model.optimizer.variables
        answers[name] = {
            "weights": [w.ravel().tolist() for w in model.get_weights()],
            "logs": history,
            "state": [np.ravel(v.numpy()).astype("f8").tolist() for v in state],
        }

    for name, made in cases().items():
        if not names or name in names:
            add(name, made())
    if names:
        return answers
    keras.config.set_dtype_policy("mixed_float16")
    for name in ("sgd", "accumulation and clipping"):
        add(f"mixed precision, {name}", build("", optimizers()[name]))
    return answers
