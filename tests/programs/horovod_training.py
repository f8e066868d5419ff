"""Programs that train with Horovod's optimizers and tapes, where ranks differ."""

from pathlib import Path
from typing import Any

from tests.programs.ring import digest


def values(variables: Any) -> list[Any]:
    import numpy as np

    return [np.asarray(v).tolist() for v in (variables() if callable(variables) else variables)]


def keeps_own_layers(optimizer: Any) -> Any:
    """Call fit twice; the second must not change what each rank keeps of its own layer."""
    import numpy as np
    import tensorflow as tf

    import sparkdl.horovod.tensorflow.keras as hvd

    keras, seen = tf.keras, []

    class Look(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            seen.append(values(self.model.optimizer.variables))

    own = keras.layers.BatchNormalization(momentum=0.5)
    shared = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.layers.Input((1,)), own, shared])
    optimizer = hvd.PartialDistributedOptimizer(optimizer, local_layers=[own])
    model.compile(optimizer, lambda y, p: p * y)
    factor = 1 + hvd.rank()
    x, y = np.array([[1.0], [3.0]]) * factor, np.ones((2, 1)) * factor
    model.fit(x, y, batch_size=2, verbose=0)
    slots = values(optimizer.variables)
    model.fit(x, y, batch_size=2, verbose=0, callbacks=[Look()])
    return {
        "kept": slots == seen[0],
        "slots": slots,
        "mean": values([own.moving_mean])[0],
        "shared": values([shared.kernel]),
    }


def local_layers(folder: Path) -> Any:
    import tensorflow as tf

    optimizers = tf.keras.optimizers
    found = {"new": keeps_own_layers(optimizers.SGD(0.1, momentum=0.9))}
    if "tf_keras" in optimizers.SGD.__module__:
        found["legacy"] = keeps_own_layers(optimizers.legacy.SGD(0.1, momentum=0.9))
    return found


def uneven(folder: Path) -> Any:
    """Rank 0 has five batches, the other ranks have three."""
    import numpy as np
    import tensorflow as tf

    import sparkdl.horovod.tensorflow.keras as hvd

    told = {}
    num_rows = 20 if hvd.rank() == 0 else 12
    x = np.random.default_rng(hvd.rank()).normal(size=(num_rows, 3)).astype("f4")
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(4)
    for kind in ("arrays", "known", "unknown"):
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(1)])
        optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.1))
        model.compile(optimizer, "mse")
        if kind == "arrays":
            history = model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0)
        else:
            rows = dataset.filter(lambda *_: True) if kind == "unknown" else dataset
            history = model.fit(rows, epochs=2, verbose=0)
        told[kind] = [int(optimizer.iterations), len(history.history["loss"]), digest(model)]
    return told


def alone(folder: Path) -> Any:
    """Rank 0 alone evaluates between two fits; the loss is that of its own rows."""
    import numpy as np
    import tensorflow as tf

    import sparkdl.horovod.tensorflow.keras as hvd

    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), "mse")
    x = np.random.default_rng(hvd.rank()).normal(size=(4, 3)).astype("f4")
    y = x[:, :1]
    validated = model.fit(x, y, batch_size=4, validation_data=(x, y), verbose=0).history["val_loss"]
    losses = []
    if hvd.rank() == 0:
        losses = [float(model.evaluate(x, y, verbose=0)), float(model.test_on_batch(x, y))]
    own = float(np.mean((model.predict(x, verbose=0) - y) ** 2))
    model.fit(x, y, batch_size=4, verbose=0)
    return {"validated": validated[0], "losses": losses, "own": own}


def session_passes(folder: Path) -> Any:
    """Two batches for each update, in a session of TensorFlow 1; 0 * 1 + 1 + 2, and so on."""
    import tensorflow as tf

    import sparkdl.horovod.tensorflow as hvd

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("weight", (), initializer=v1.zeros_initializer())
        x = v1.placeholder(tf.float32, ())
        optimizer = v1.train.GradientDescentOptimizer(1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2)
        train = optimizer.minimize(weight * x)
        session.run(v1.global_variables_initializer())
        found = []
        for number in range(4):
            session.run(train, {x: number + 1.0 + hvd.rank()})
            found.append(float(session.run(weight)))
    return found


def once(folder: Path) -> Any:
    """Apply gradients that a tape has reduced with an optimizer that reduces, too."""
    import tensorflow as tf

    import sparkdl.horovod.tensorflow.keras as hvd

    x = tf.Variable([1.0, 1.0])
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), op=hvd.Sum)

    def step(is_reduced: bool) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x * 1.0)
        if is_reduced:
            tape = hvd.DistributedGradientTape(tape, op=hvd.Sum)
            gradients = tape.gradient(loss, [x], use_generic_names=True)
        else:
            gradients = tape.gradient(loss, [x])
        optimizer.apply_gradients(zip(gradients, [x], strict=True))

    found = []
    for is_reduced in (True, False):
        step(is_reduced)
        found.append(float(x[0]))
        tf.function(step)(is_reduced)
        found.append(float(x[0]))
    return found


def disagreements(folder: Path) -> Any:
    """Reduce gradients on which the ranks disagree, and some on which they agree."""
    import tensorflow as tf

    import sparkdl.horovod.tensorflow as hvd

    rank = hvd.rank()
    x, other = tf.Variable([1.0, 1.0]), tf.Variable([1.0])
    uneven = tf.Variable(tf.ones([2 + rank]))
    sources = {"shape": [uneven], "none": [x, other], "rows": [tf.Variable(tf.ones([3, 2 + rank]))]}

    def reduce(name: str) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(sources[name][0] ** 2)
            if name == "none" and rank:
                loss += other[0]
            if name == "rows":
                loss = tf.reduce_sum(tf.gather(sources[name][0], [rank]))
        return hvd.DistributedGradientTape(tape).gradient(loss, sources[name])

    told = {}
    for name in sources:
        errors = []
        for run in (reduce, tf.function(reduce)):
            try:
                run(name)
            except tf.errors.OpError as exc:
                errors.append(type(exc).__name__)
        told[name] = [*errors, float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum))]
    return told


def get_gradients(folder: Path) -> Any:
    """A loop of the program's own, with an optimizer that computes gradients itself."""
    import tensorflow as tf

    import sparkdl.horovod.tensorflow.keras as hvd

    class Optimizer(tf.keras.optimizers.SGD):
        def get_gradients(self, loss: Any, params: Any) -> Any:
            return [tf.constant(hvd.rank() + 1.0) for _ in params]

    optimizer = hvd.DistributedOptimizer(Optimizer(1.0))
    weight = tf.Variable(0.0)
    gradients = optimizer.get_gradients(None, [weight])
    optimizer.apply_gradients(zip(gradients, [weight], strict=True))
    return float(weight)


def half_precision(folder: Path) -> Any:
    import numpy as np
    import tensorflow as tf

    import sparkdl.horovod.tensorflow.keras as hvd

    weight = tf.Variable(1.0)
    try:
        hvd.DistributedOptimizer(tf.keras.optimizers.SGD()).minimize(weight * 2.0, [weight])
    except ValueError as exc:
        without_tape = str(exc)
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), "mse")
    x = np.ones((8, 2)) * (1.0 + hvd.rank())
    x[0, 0] = np.inf if hvd.rank() else 1.0  # The first step is skipped on both ranks.
    losses = model.fit(x, x[:, 1:], batch_size=4, verbose=0, shuffle=False).history["loss"]
    return {
        "without tape": without_tape,
        "kind": type(model.optimizer).__name__,
        "digest": digest(model),
        "scale": float(model.optimizer.loss_scale),
        "steps": len(losses),
    }


def keras_3(folder: Path) -> Any:
    import sparkdl.horovod as hvd

    hvd.init()
    parts = [local_layers, uneven, alone, session_passes, once, disagreements]
    return {part.__name__: part(folder) for part in parts}


def tf_keras(folder: Path) -> Any:
    import sparkdl.horovod as hvd

    hvd.init()
    parts = [local_layers, uneven, alone, get_gradients, half_precision]
    return {part.__name__: part(folder) for part in parts}
