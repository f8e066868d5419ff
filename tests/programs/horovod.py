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


def values(rank: int) -> Any:
    """The tensors of a rank for all collectives: three rows, and as many rows as its number."""
    import tensorflow as tf

    return tf.range(12.0)[:, None] * (rank + 1.0) + rank, tf.fill([rank + 1, 2], float(rank))


def all_collectives(rank: int, size: int) -> Any:
    import tensorflow as tf

    import sparkdl.horovod.tensorflow as hvd

    even, ragged = values(rank)
    splits = [rank + 1] * size
    rows, counts = hvd.alltoall(even[: (rank + 1) * size], splits=splits)
    return {
        "product": hvd.allreduce(even, op=hvd.Product),
        "scaled": hvd.allreduce(even, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
        "integers": hvd.allreduce(tf.cast(even, tf.int32), op=hvd.Average),
        "gathered": hvd.allgather(ragged),
        "rows": rows,
        "counts": counts,
        "scattered": hvd.reducescatter(even, op=hvd.Sum),
        "broadcast": hvd.broadcast(even, root_rank=size - 1),
        "group": tf.add_n(hvd.grouped_allreduce([even, even], op=hvd.Sum)),
        "rank": hvd.rank_op() + hvd.local_rank_op() - hvd.local_rank(),
        "size": hvd.size_op(),
    }


def expected(rank: int, size: int) -> Any:
    import numpy as np

    even = [values(other)[0].numpy() for other in range(size)]
    ragged = [values(other)[1].numpy() for other in range(size)]
    parts = [even[o][rank * (o + 1) : (rank + 1) * (o + 1)] for o in range(size)]
    return {
        "product": np.prod(even, axis=0),
        "scaled": sum(even) * 1.5,
        "integers": (sum(part.astype(int) for part in even) / size).astype(int),
        "gathered": np.concatenate(ragged),
        "rows": np.concatenate(parts),
        "counts": [len(part) for part in parts],
        "scattered": np.array_split(sum(even), size)[rank],
        "broadcast": even[-1],
        "group": sum(even) * 2,
        "rank": rank,
        "size": size,
    }


def everywhere(folder: Path) -> Any:
    """Call all collectives eagerly, in a function, and all at once in a session of TensorFlow 1."""
    import numpy as np
    import tensorflow as tf

    import sparkdl.horovod.tensorflow as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    got = {"eager": all_collectives(rank, size)}
    got["function"] = tf.function(lambda: all_collectives(rank, size))()
    with tf.Graph().as_default():
        tensors = all_collectives(rank, size)
        options = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1)
        with tf.compat.v1.Session(config=options) as session:
            got["session"] = session.run(dict(sorted(tensors.items(), reverse=rank > 0)))
    right = expected(rank, size)
    return [
        f"{mode} {name}: {np.asarray(value).tolist()}"
        for mode, results in got.items()
        for name, value in results.items()
        if not np.allclose(value, right[name], rtol=1e-5)
    ]


def disagreements(folder: Path) -> Any:
    """Call collectives on which the ranks disagree, and one that works after each of them."""
    import tensorflow as tf

    import sparkdl.horovod.tensorflow as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    calls = {
        "shape": lambda: hvd.allreduce(tf.zeros([rank + 1])),
        "dtype": lambda: hvd.allgather(tf.zeros([2], tf.int32 if rank else tf.float32)),
        "root": lambda: hvd.broadcast(tf.zeros([2]), root_rank=rank),
        "operation": lambda: hvd.allreduce(tf.zeros([2]), op=hvd.Max if rank else hvd.Sum),
        "call": lambda: hvd.allgather(tf.zeros([2])) if rank else hvd.allreduce(tf.zeros([2])),
        "splits": lambda: hvd.alltoall(tf.zeros([size]), splits=[2 if rank else 1] * size),
        "number": lambda: hvd.reducescatter(tf.constant(1.0)),
        "adasum": lambda: hvd.reducescatter(tf.zeros([size]), op=hvd.Adasum),
    }
    objects = {
        "object": lambda: hvd.broadcast_object(1 if rank else object()),
        "object root": lambda: hvd.broadcast_object(1, root_rank=rank),
        "objects": lambda: hvd.allgather_object(object() if rank else 1),
        "process set": lambda: hvd.add_process_set([rank]),
        "process set and barrier": lambda: hvd.add_process_set([0]) if rank else hvd.barrier(),
    }
    told = {}
    for name, call in {**calls, **objects}.items():
        errors = []
        for run in (call, tf.function(call)) if name in calls else (call,):
            try:
                run()
            except (tf.errors.OpError, ValueError) as exc:
                errors.append(type(exc).__name__)
        total = float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum))
        told[name] = [*errors, total]
    return told


def process_sets(folder: Path) -> Any:
    """Three ranks: a set of two of them, added at the start, and one of one, added later."""
    import tensorflow as tf

    import sparkdl.horovod.tensorflow as hvd

    ends = hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[ends])
    middle = hvd.add_process_set([1])
    mine = ends if ends.included() else middle
    x = tf.constant([1.0]) * (hvd.rank() + 1)
    weights = tf.Variable([float(hvd.rank())])
    hvd.broadcast_variables([weights], root_rank=mine.ranks[-1], process_set=mine)
    told = {
        "sum": hvd.allreduce(x, op=hvd.Sum, process_set=mine).numpy().tolist(),
        "place": [mine.rank(), mine.size()],
        "objects": hvd.allgather_object(hvd.rank(), process_set=mine),
        "weights": weights.numpy().tolist(),
    }
    with tf.GradientTape() as tape:
        loss = weights * (hvd.rank() + 1.0) ** 2
    tape = hvd.DistributedGradientTape(tape, process_set=ends)  # The middle keeps its gradient.
    told["gradient"] = tape.gradient(loss, [weights])[0].numpy().tolist()
    try:
        hvd.init(process_sets=[[0], [0]])
    except ValueError as exc:
        told["twice"] = str(exc)
    try:
        hvd.allreduce(x, process_set=middle if mine is ends else ends)
    except tf.errors.InvalidArgumentError as exc:
        told["outside"] = str(exc)
    numbers = [ends.process_set_id, middle.process_set_id]
    told["removed"] = [hvd.remove_process_set(ends), hvd.remove_process_set(ends)]
    told["numbers"] = [*numbers, hvd.add_process_set([0, 1]).process_set_id]
    told["all"] = hvd.allreduce(x, op=hvd.Sum).numpy().tolist()
    return told


def partly(folder: Path) -> Any:
    """Train with a layer whose gradients each rank keeps, and gradients of several batches."""
    import numpy as np
    import tensorflow as tf

    import sparkdl.horovod.tensorflow.keras as hvd

    hvd.init()
    own, shared = tf.keras.layers.Dense(1, use_bias=False), tf.keras.layers.Dense(1, use_bias=False)
    model = tf.keras.Sequential([own, shared])  # It has no variables yet.
    model(np.zeros((1, 1), "f4"))
    model.set_weights([np.full((1, 1), 1.0 + hvd.rank()), np.full((1, 1), 1.0)])
    optimizer = tf.keras.optimizers.SGD(0.5)
    optimizer = hvd.PartialDistributedOptimizer(
        optimizer, local_layers=own, scale_local_gradients=False, backward_passes_per_step=2
    )
    model.compile(optimizer, lambda y, p: p)
    model.fit(np.ones((4, 1)), np.ones((4, 1)), batch_size=1, epochs=1, verbose=0)
    return [float(w.ravel()[0]) for w in model.get_weights()]


def late_variables(folder: Path) -> Any:
    """The beginners' program of Horovod: a model that gets its variables with the first batch."""
    import numpy as np
    import tensorflow as tf

    import sparkdl.horovod.tensorflow.keras as hvd

    hvd.init()
    tf.keras.utils.set_random_seed(hvd.rank())
    model = tf.keras.Sequential([tf.keras.layers.Dense(4, "relu"), tf.keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.01)), "mse")
    x = np.random.default_rng(hvd.rank()).normal(size=(32, 3))
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(x, x[:, :1], batch_size=8, epochs=1, verbose=0, callbacks=callbacks)
    return digest(model)


def eager(folder: Path) -> Any:
    """Run the programs that need no graph of their own in one gang."""
    parts = [with_keras, with_a_tape, joins, operations, disagreements, partly]
    return {part.__name__: part(folder) for part in parts}


def dies(folder: Path) -> Any:
    """Rank 1 ends without a word; the others get an error from each kind of collective."""
    import os
    import time

    import tensorflow as tf

    import sparkdl.horovod.tensorflow as hvd

    both = hvd.ProcessSet([0, 1])
    hvd.init(process_sets=[both])
    hvd.barrier()
    if hvd.rank() == 1:
        os._exit(7)
    x, begun, errors = tf.ones([hvd.size()]), time.monotonic(), []
    calls = [
        lambda: hvd.alltoall(x),
        lambda: hvd.reducescatter(x),
        lambda: hvd.grouped_allgather([x, x]),
        tf.function(lambda: hvd.allreduce(x)),
        lambda: hvd.broadcast_object(1),
    ]
    if both.included():
        calls.insert(0, lambda: hvd.allreduce(x, process_set=both))
    for call in calls:
        try:
            call()
        except (hvd.elastic.HorovodInternalError, tf.errors.OpError) as exc:
            errors.append(type(exc).__name__)
    return {"errors": errors, "after_s": time.monotonic() - begun}
