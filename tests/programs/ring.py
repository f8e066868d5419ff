"""Programs for the ranks of a ring. Each returns the values that its test checks, as JSON.

They use `tf.keras`, which is Keras 3, or tf_keras where TF_USE_LEGACY_KERAS is set.
"""

import functools
import hashlib
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

STEPS, ROWS = 20, 24  # Rows of a step of all ranks together, for 1 to 4 ranks.


def digest(model: Any) -> str:
    """Return a text that is equal for models and optimizers with equal bits."""
    found = model.optimizer.variables
    variables = [*model.weights, *(found() if callable(found) else found)]
    return hashlib.sha256(b"".join(v.numpy().tobytes() for v in variables)).hexdigest()[:16]


def mine(array: Any) -> Any:
    """Return this rank's rows of each step."""
    from sparkdl import context

    each = ROWS // context.world_size
    begin = context.rank * each
    steps = array.reshape(STEPS, ROWS, *array.shape[1:])
    return steps[:, begin : begin + each].reshape(STEPS * each, *array.shape[1:])


def rows() -> tuple[Any, Any]:
    import numpy as np

    random = np.random.default_rng(0)
    x = random.normal(size=(STEPS * ROWS, 8)).astype("float32")
    return x, (x @ random.normal(size=(8, 1))).astype("float32")


def build(optimizer: Any, norm: bool = False, **compiled: Any) -> Any:
    """Build a small model with different weights on each rank."""
    import tensorflow as tf

    from sparkdl import context, distribute

    keras = tf.keras
    keras.utils.set_random_seed(context.rank)
    layers = [keras.layers.Input((8,)), keras.layers.Dense(16, "relu")]
    layers += [keras.layers.BatchNormalization(momentum=0.5)] if norm else []
    model = keras.Sequential([*layers, keras.layers.Dense(1, dtype="float32")])
    model.compile(distribute.optimizer(optimizer), "mse", **compiled)
    return model


def fit(model: Any, **more: Any) -> Any:
    from sparkdl import context

    x, y = rows()
    return model.fit(
        *(mine(x), mine(y)),
        batch_size=ROWS // context.world_size,
        **{"shuffle": False, "verbose": 0, **more},
    )


def trained(model: Any, **more: Any) -> dict[str, Any]:
    losses = fit(model, **more).history["loss"]
    weights = [value for w in model.get_weights() for value in w.ravel().tolist()]
    return {"digest": digest(model), "loss": losses, "weights": weights}


def adam(folder: Path) -> Any:
    import tensorflow as tf

    return trained(build(tf.keras.optimizers.Adam(0.01)))


def loop(folder: Path) -> Any:
    """Train as `adam` does, in a custom loop."""
    import tensorflow as tf

    from sparkdl import context, distribute

    model = build("adam")
    optimizer = tf.keras.optimizers.Adam(0.01)
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)
    state = optimizer.variables
    distribute.broadcast_variables([*model.weights, *(state() if callable(state) else state)])

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with distribute.gradient_tape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return distribute.allreduce(loss)

    x, y = (mine(part) for part in rows())
    each = ROWS // context.world_size
    losses = [float(step(x[i : i + each], y[i : i + each])) for i in range(0, len(x), each)]
    weights = [value for w in model.get_weights() for value in w.ravel().tolist()]
    loss = [sum(losses) / len(losses)]
    return {"digest": digest(model), "loss": loss, "weights": weights}


def variants(folder: Path) -> Any:
    """Train with the usual ways to compile a model."""
    import keras

    def optimizers(**more: Any) -> Any:
        return keras.optimizers.Adam(0.01, **more)

    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "name": ("adam", {}),
        "several steps": (optimizers(), {"steps_per_execution": 4}),
        "eager": (optimizers(), {"run_eagerly": True}),
        "accumulation": (optimizers(gradient_accumulation_steps=2), {}),
        "clipping": (optimizers(global_clipnorm=0.5), {}),
        "average": (optimizers(use_ema=True, ema_overwrite_frequency=5), {}),
        "loss scale": (keras.optimizers.LossScaleOptimizer(optimizers()), {}),
        "lion": (keras.optimizers.Lion(0.001), {}),
    }
    return {name: trained(build(opt, **more)) for name, (opt, more) in cases.items()}


def everything(folder: Path) -> Any:
    """Run many programs in one gang, because a start costs more than most programs."""
    parts = [adam, loop, variants, statistics, uneven, stops, embeds, saves, refuses, mixed]
    parts += [arrays, collectives, halves, lone_tensors, different]
    return {part.__name__: part(folder) for part in parts}


def statistics(folder: Path) -> Any:
    """Return the statistics of BatchNorm, and the logs that callbacks see."""
    import keras
    import numpy as np

    from sparkdl import context

    seen: list[dict[str, float]] = []

    class See(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(dict(logs))
            moving = self.model.layers[1].moving_mean.numpy().sum()
            seen[-1]["moving"] = float(moving)

    model = build("sgd", norm=True, metrics=["mae"])
    own = np.full((4, 8), context.rank, "float32"), np.full((4, 1), context.rank, "float32")
    history = fit(model, epochs=2, callbacks=[See()], validation_data=own).history
    return {
        "digest": digest(model),
        "seen": seen,
        "history": history,
        "val": float(model.evaluate(*own, verbose=0)[0]),
    }


def arrays(folder: Path) -> Any:
    """Return the logs of a metric with a value per class."""
    import keras
    import numpy as np

    from sparkdl import distribute

    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(2, "softmax")])
    score = keras.metrics.F1Score(name="score")
    model.compile(distribute.optimizer("sgd"), "categorical_crossentropy", metrics=[score])
    history = model.fit(np.ones((4, 1)), np.eye(2)[[0, 1, 0, 1]], verbose=0).history
    return [np.asarray(value).shape for value in history["score"]]


def uneven(folder: Path) -> Any:
    """Train with 3 + r batches on rank r: all ranks make three steps per epoch."""
    import tensorflow as tf

    from sparkdl import context

    model = build("sgd")
    x, y = rows()
    count = 4 * (3 + context.rank)
    data = tf.data.Dataset.from_tensor_slices((x[:count], y[:count])).batch(4)
    model.fit(data, epochs=2, verbose=0)
    spread = build("sgd", steps_per_execution=2)
    spread.fit(data, epochs=2, verbose=0)
    return {
        "digests": [digest(model), digest(spread)],
        "steps": [int(m.optimizer.iterations.numpy()) for m in (model, spread)],
        "epochs": len(model.history.epoch),
    }


def stops(folder: Path) -> Any:
    """Stop on one rank only, by a metric that is bad on one rank only."""
    import keras

    from sparkdl import context

    class Stop(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if context.rank == context.world_size - 1 and epoch == 1:
                self.model.stop_training = True

    return len(fit(build("sgd"), epochs=5, callbacks=[Stop()]).epoch)


def embeds(folder: Path) -> Any:
    """Train an embedding, whose gradient is sparse and stays sparse."""
    import keras
    import numpy as np
    import tensorflow as tf

    from sparkdl import context, distribute

    keras.utils.set_random_seed(context.rank)
    layers = [keras.layers.Input((3,)), keras.layers.Embedding(50, 4), keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(distribute.optimizer(keras.optimizers.Adam(0.05)), "mse")
    x = np.random.default_rng(1).integers(0, 50, (STEPS * ROWS, 3))
    y = (x.sum(axis=1, keepdims=True) / 75).astype("float32")
    each = ROWS // context.world_size
    model.fit(mine(x), mine(y), batch_size=each, shuffle=False, verbose=0)
    with distribute.gradient_tape(tf.GradientTape()) as tape:
        table = model.layers[0].trainable_variables
        loss = tf.reduce_sum(model(x[:2]))
    kind = type(tape.gradient(loss, [v.value for v in table])[0]).__name__
    weights = [value for w in model.get_weights() for value in w.ravel().tolist()]
    return {"digest": digest(model), "weights": weights, "kind": kind}


def saves(folder: Path) -> Any:
    """Save a model, and load it as plain Keras."""
    import keras

    from sparkdl import context

    model = build(keras.optimizers.Adam(0.01))
    fit(model)
    path = str(folder / f"model-{context.rank}.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    kind = type(loaded.optimizer)
    same = digest(loaded) == digest(model)
    return [kind is keras.optimizers.Adam, hasattr(loaded.optimizer, "_sparkdl_reducer"), same]


def refuses(folder: Path) -> Any:
    import keras

    from sparkdl import distribute

    def said(call: Any) -> str:
        try:
            call()
        except (ValueError, TypeError) as exc:
            return f"{type(exc).__name__}: {exc}"
        return "nothing"

    wrapped = keras.optimizers.LossScaleOptimizer(distribute.optimizer("sgd"))
    model = build("sgd")
    model.compile(wrapped, "mse")
    return {
        "xla": said(lambda: fit(build("sgd", jit_compile=True))),
        "twice": said(lambda: distribute.optimizer(distribute.optimizer("sgd"))),
        "no optimizer": said(lambda: distribute.optimizer(3)),
        "op": said(lambda: distribute.optimizer("sgd", op="max")),
        "wire": said(lambda: distribute.optimizer("sgd", wire="int8")),
        "inside": said(lambda: fit(model)),
    }


def mixed(folder: Path) -> Any:
    """Train in half precision; gradients of one rank overflow, and all ranks skip the step."""
    import keras
    import numpy as np

    from sparkdl import context

    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = build("sgd")
        x, y = rows()
        if context.rank == 0:
            x = np.where(np.arange(len(x))[:, None] < 3, 1e30, x).astype("float32")
        each = ROWS // context.world_size
        model.fit(mine(x), mine(y), batch_size=each, shuffle=False, verbose=0)
        finite = bool(np.isfinite(np.concatenate([w.ravel() for w in model.get_weights()])).all())
        return {"digest": digest(model), "finite": finite, "kind": type(model.optimizer).__name__}
    finally:
        keras.config.set_dtype_policy("float32")


def halves(folder: Path) -> Any:
    """Train with gradients that travel in 16 bits."""
    import keras

    from sparkdl import context, distribute

    found = {}
    for wire_dtype in ("bfloat16", "float16"):
        model = build("sgd")
        keras.utils.set_random_seed(context.rank)
        model.compile(distribute.optimizer(keras.optimizers.Adam(0.01), wire=wire_dtype), "mse")
        found[wire_dtype] = trained(model)
    return found


def lone_tensors(folder: Path) -> Any:
    """Return gradients of an eager step: each travels alone, for its size or its dtype."""
    import tensorflow as tf

    from sparkdl import context, distribute

    variables = [tf.Variable(tf.ones(1 << 18)), tf.Variable(tf.ones([2, 3], tf.float64))]
    with distribute.gradient_tape(tf.GradientTape()) as tape:
        large, wide = (tf.reduce_sum(variable * float(context.rank)) for variable in variables)
        loss = large + tf.cast(wide, tf.float32)
    gradients = tape.gradient(loss, variables)
    return [[g.shape.as_list(), g.dtype.name, float(g[0].numpy().max())] for g in gradients]


def different(folder: Path) -> Any:
    """Return what loops say whose variables differ at the first step, and how they end then."""
    import keras
    import tensorflow as tf

    from sparkdl import context, distribute

    def by_tape(variables: Any) -> None:
        with distribute.gradient_tape(tf.GradientTape()) as tape:
            loss = variables[0] * variables[1]
        for variable, found in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.5 * found)

    answers = []
    for compiles in (False, True):
        optimizer = distribute.optimizer(keras.optimizers.SGD(0.5))
        kept = [
            keras.Variable(v, name=n) for v, n in ((1.0, "even"), (1.0 * context.rank, "uneven"))
        ]
        optimizer.build(kept)
        loops: list[tuple[Any, Any]] = [
            (by_tape, [tf.Variable(1.0, name=n) for n in ("same", "own")]),
            (lambda kept, opt=optimizer: opt.apply([tf.constant(1.0)] * 2, kept), kept),
        ]
        loops[0][1][1].assign_add(context.rank)
        for loop, variables in loops:
            said, step = [], functools.partial(loop, variables)
            step = tf.function(step) if compiles else step
            try:
                step()
            except ValueError as exc:
                pattern = r"(\d of \d) variables differ between the ranks: (\w+)"
                said = [found.groups() for found in re.finditer(pattern, str(exc))]
            distribute.broadcast_variables(variables)
            step()
            step()
            answers.append([*said, [float(v.numpy()) for v in variables]])
    return answers


def collectives(folder: Path) -> Any:
    """Return the results of each collective, for each kind of array."""
    import jax
    import ml_dtypes
    import numpy as np
    import tensorflow as tf

    from sparkdl import context, distribute

    rank, size = context.rank, context.world_size
    dtypes = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16"]
    dtypes += ["float32", "float64", "complex64", "complex128", ml_dtypes.bfloat16]
    sums = {}
    for dtype in dtypes:
        array = np.arange(5).astype(dtype) + np.asarray(rank).astype(dtype)
        total = distribute.allreduce(array, "sum")
        expected = (np.arange(5) * size + sum(range(size))).astype(dtype)
        sums[np.dtype(dtype).name] = bool((total == expected).all() and total.dtype == array.dtype)

    @tf.function
    def graph(x: Any) -> Any:
        largest, all_of_them = distribute.allreduce(x, "max"), distribute.allgather(x)
        return largest, all_of_them, distribute.broadcast(x, size - 1)

    tensors = [t.numpy().tolist() for t in graph(tf.constant([[rank, 1.0]]))]
    jitted = distribute.allreduce(jax.numpy.array([rank, 2.0]), "min")
    return {
        "sums": sums,
        "booleans": distribute.allreduce(np.array([rank == 0, False]), "max").tolist(),
        "mean": float(distribute.allreduce(float(rank))),
        "floor": distribute.allreduce(np.array([rank * 2 + 1])).tolist(),
        "tensors": tensors,
        "jax": [type(jitted).__module__.partition(".")[0], np.asarray(jitted).tolist()],
        "scattered": distribute.reduce_scatter(np.arange(7.0)[:, None], "sum").ravel().tolist(),
        "gathered": distribute.allgather(np.full((rank, 2), rank)).tolist(),
        "empty": distribute.allreduce(np.zeros((0, 3))).shape,
        "objects": distribute.allgather_object({"rank": rank, "text": "é"}),
        "object": distribute.broadcast_object([rank, None], root=size - 1),
        "means": distribute.mean({"a": rank, "b": 1}),
        "large": float(distribute.allreduce(np.full(3_000_001, 1.0, "float32"), "sum").sum()),
    }


def breaks(folder: Path) -> Any:
    """Kill one rank in a step, and return the error on the other ranks and its delay."""
    import keras

    from sparkdl import context

    class Die(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 7 and context.rank == context.world_size - 1:
                die(folder)

    return lost_peer(folder, callbacks=[Die()])


def die(folder: Path) -> None:
    """Kill this process, and leave the time of its death."""
    (folder / "died").write_text(str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)


def lost_peer(folder: Path, **kwargs: Any) -> Any:
    """Fit until a rank dies, and return the error on this rank and its delay."""
    from sparkdl.errors import PeerLostError

    try:
        fit(build("sgd"), **kwargs)
    except PeerLostError as exc:
        return {"error": str(exc), "after_s": time.time() - float((folder / "died").read_text())}
    return {}


def reuses(folder: Path) -> Any:
    """Return the memory in which a graph passes arrays to Python and receives results."""
    import numpy as np
    import tensorflow as tf

    from sparkdl.distribute.gradient_reducer import Pool

    pool, given, made, came = Pool(), [], [], []

    def where(array: Any) -> int:
        return int(array.__array_interface__["data"][0])

    def double(array: Any) -> Any:
        out = pool.take(array.size, array.dtype)
        np.multiply(array, 2, out=out)
        given.append(where(array))
        made.append(where(out))
        return out

    def look(array: Any) -> Any:
        came.append(where(array))
        return array[:1].copy()

    @tf.function
    def step(x: Any) -> Any:
        doubled = tf.numpy_function(double, [x * 3.0], tf.float32)
        return tf.numpy_function(look, [doubled], tf.float32)

    for _ in range(5):
        step(tf.ones(100_000))
    held = [
        tf.function(lambda x: tf.numpy_function(double, [x], tf.float32))(tf.fill([1000], v))
        for v in (1.0, 2.0)
    ]
    return {
        "not copied": made[:5] == came,
        "used again": len(set(made[:5])),
        "kept": [float(one[0]) for one in held],
    }
