"""Programs as users wrote them for Horovod, with only their imports changed."""

from pathlib import Path
from typing import Any

from tests.programs.ring import ROWS, digest, mine, rows


def batches() -> Any:
    import tensorflow as tf

    import sparkdl.horovod as hvd

    x, y = (mine(part) for part in rows())
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(ROWS // hvd.size())


def small(seed: int) -> Any:
    import tensorflow as tf

    tf.keras.utils.set_random_seed(seed)
    layers = [tf.keras.layers.Input((8,)), tf.keras.layers.Dense(16, "relu")]
    return tf.keras.Sequential([*layers, tf.keras.layers.Dense(1)])


def weights(model: Any) -> list[float]:
    return [value for w in model.get_weights() for value in w.ravel().tolist()]


def with_keras(folder: Path) -> Any:
    import tensorflow as tf

    import sparkdl.horovod.tensorflow.keras as hvd

    hvd.init()
    model = small(hvd.rank())
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.01))
    model.compile(optimizer, "mse", metrics=["mae"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    history = model.fit(batches(), epochs=1, callbacks=callbacks, verbose=0).history
    return {"digest": digest(model), "weights": weights(model), "loss": history["loss"]}


def with_a_tape(folder: Path) -> Any:
    import tensorflow as tf

    import sparkdl.horovod.tensorflow as hvd

    hvd.init()
    model = small(hvd.rank())
    optimizer = tf.keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for number, (x, y) in enumerate(batches()):
        if number == 0:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables, root_rank=0)
        loss = step(x, y)
    model.compile(optimizer)
    last = float(hvd.allreduce(loss, op=hvd.Average))
    return {"digest": digest(model), "weights": weights(model), "last": last}


def with_a_session(folder: Path) -> Any:
    """Train with TensorFlow 1: a graph, a hook, a monitored session."""
    import tensorflow as tf

    import sparkdl.horovod.tensorflow as hvd

    v1 = tf.compat.v1
    hvd.init()
    v1.disable_eager_execution()
    x, y = (mine(part) for part in rows())
    each = ROWS // hvd.size()
    inputs, labels = v1.placeholder("float32", (None, 8)), v1.placeholder("float32", (None, 1))
    start = v1.random_normal_initializer(seed=hvd.rank())
    kernel = v1.get_variable("kernel", (8, 1), initializer=start)
    loss = tf.reduce_mean((inputs @ kernel - labels) ** 2)
    step = v1.train.get_or_create_global_step()
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.05))
    train = optimizer.minimize(loss, global_step=step)
    hooks = [hvd.BroadcastGlobalVariablesHook(0), v1.train.StopAtStepHook(last_step=20)]
    losses = []
    with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
        while not session.should_stop():
            begin = each * len(losses)
            feed = {inputs: x[begin : begin + each], labels: y[begin : begin + each]}
            losses.append(float(session.run([loss, train], feed)[0]))
            final = session.run(kernel) if len(losses) < 20 else None
            seen = final if final is not None else seen  # noqa: F821
    return {
        "kernel": seen.ravel().tolist(),
        "steps": len(losses),
        "fell": losses[-1] < losses[0] / 5,
    }


def joins(folder: Path) -> Any:
    """Train rank r for 2 + r steps; a rank without further steps contributes zeros."""
    import tensorflow as tf

    import sparkdl.horovod.tensorflow as hvd

    hvd.init()
    variable = tf.Variable([0.0, 0.0])
    for _ in range(2 + hvd.rank()):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable) * float(hvd.size())
        gradient = hvd.DistributedGradientTape(tape).gradient(loss, [variable])[0]
        variable.assign_sub(gradient)
        hvd.allreduce(tf.constant(1, tf.int64), op=hvd.Sum)
    last = hvd.join()
    hvd.broadcast_variables([variable], root_rank=last)
    return {"last": last, "variable": variable.numpy().tolist()}


def operations(folder: Path) -> Any:
    import keras
    import numpy as np
    import tensorflow as tf

    import sparkdl.horovod as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    x = tf.constant([1.0, 2.0]) * (rank + 1)
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(hvd.allreduce(x, op=hvd.Sum) * (rank + 1.0))
    slices = tf.IndexedSlices(tf.ones((1, 2)) * rank, tf.constant([rank]), tf.constant([size, 2]))
    table = keras.layers.Embedding(10, 2)
    model = keras.Sequential([keras.layers.Input((1,)), table, keras.layers.Flatten()])
    optimizer = keras.optimizers.SGD(1.0)
    options = {"sparse_as_dense": True, "backward_passes_per_step": 2}
    model.compile(hvd.DistributedOptimizer(optimizer, **options), lambda y, p: p[:, 0])
    model.set_weights([np.zeros((10, 2))])
    model.fit(np.full((4, 1), rank), np.zeros(4), batch_size=1, epochs=1, verbose=0)
    return {
        "who": [size, hvd.local_size(), hvd.cross_rank(), hvd.cross_size()],
        "is": [hvd.is_initialized(), hvd.is_homogeneous()],
        "default": hvd.allreduce(x).numpy().tolist(),
        "min": hvd.allreduce(x, op=hvd.Min).numpy().tolist(),
        "old": hvd.allreduce(x, average=False).numpy().tolist(),
        "scaled": hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5)
        .numpy()
        .tolist(),
        "half": [hvd.allreduce(x, compression=hvd.Compression.fp16).dtype.name],
        "gradient": tape.gradient(total, x).numpy().tolist(),
        "grouped": [t.numpy().tolist() for t in hvd.grouped_allreduce([x, x * 2], op=hvd.Sum)],
        "sparse": tf.convert_to_tensor(hvd.allreduce(slices, op=hvd.Sum)).numpy().tolist(),
        "gathered": hvd.allgather(tf.fill([rank + 1], rank)).numpy().tolist(),
        "broadcast": hvd.broadcast(x, root_rank=size - 1).numpy().tolist(),
        "objects": hvd.allgather_object({"rank": rank}),
        "object": hvd.broadcast_object([rank], root_rank=size - 1),
        "embedding": model.get_weights()[0][:, 0].tolist(),
    }


def eager(folder: Path) -> Any:
    """Run the programs that need no graph of their own in one gang."""
    parts = [with_keras, with_a_tape, joins, operations]
    return {part.__name__: part(folder) for part in parts}
