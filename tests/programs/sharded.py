"""Trainings with a sharded optimizer and without shards. Each returns what its test compares."""

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.programs.contract import ROWS, classifier, mine, rows, weights
from tests.programs.contract_cases import optimizers

Create = Callable[[], Any]


def elementwise(keras: Any) -> dict[str, Create]:
    """Return functions that create an optimizer, by the name of what they try."""
    of = keras.optimizers

    def excluding() -> Any:
        adam = of.AdamW(0.02, weight_decay=0.1)
        adam.exclude_from_weight_decay(var_names=["bias"])
        return adam

    of_names = {
        "rmsprop": lambda: of.RMSprop(0.02, momentum=0.5, centered=True),
        "adadelta": lambda: of.Adadelta(0.5),
        "adagrad": lambda: of.Adagrad(0.05),
        "adamax": lambda: of.Adamax(0.02),
        "nadam": lambda: of.Nadam(0.02),
        "ftrl": lambda: of.Ftrl(0.05, l1_regularization_strength=0.01),
        "lion": lambda: of.Lion(0.005),
        "amsgrad": lambda: of.Adam(0.02, amsgrad=True),
        "excluding": excluding,
        "ema at the end": lambda: of.Adam(0.02, use_ema=True, ema_momentum=0.5),
        "accumulated norm": lambda: of.Adam(
            0.02, gradient_accumulation_steps=2, global_clipnorm=0.05
        ),
        "scaled norm": lambda: of.LossScaleOptimizer(
            of.SGD(0.1, momentum=0.9, clipnorm=0.01), initial_scale=2.0**10
        ),
    }
    return {**optimizers(keras), **of_names}


def fit(model: Any, *arrays: Any, **more: Any) -> None:
    from sparkdl import context

    own = mine(*arrays) if arrays else mine(*rows()[:2])
    batch = ROWS // context.world_size
    model.fit(*own, **{"batch_size": batch, "shuffle": False, "verbose": 0, **more})


def some(model: Any) -> list[float]:
    """Return the weights of a model, but for most of those of a large one."""
    values = weights(model)
    return values[:: 1 + len(values) // 2000]


def digest(model: Any) -> str:
    return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()[:16]


def train(build: Callable[[Any], Any], create: Create, shard: bool, *arrays: Any) -> Any:
    """Return a model that is trained for two epochs."""
    import keras

    from sparkdl import distribute

    model = build(keras)
    model.compile(distribute.optimizer(create(), shard=shard), "mse")
    # A function that creates variables is traced twice, which takes half the time of a fit.
    model.optimizer.build(model.trainable_variables)
    fit(model, *arrays, epochs=2)
    return model


def compare(build: Callable[[Any], Any], create: Create, *arrays: Any) -> dict[str, Any]:
    """Train with shards and without."""
    whole = train(build, create, False, *arrays)
    told: dict[str, Any] = {"whole": digest(whole), "weights": some(whole)}
    if _world_size() > 1:
        sharded = train(build, create, True, *arrays)
        told |= {"sharded": digest(sharded), "sharded weights": some(sharded)}
        told["slots"] = [num_slots(whole), num_slots(sharded)]
        told["num_slots"] = len(whole.optimizer.variables)
    return told


def num_slots(model: Any) -> int:
    """Return the number of elements of the state of the optimizer that belong to weights."""
    return int(sum(np.prod(v.shape) for v in model.optimizer.variables if len(v.shape)))


def _world_size() -> int:
    from sparkdl import context

    return context.world_size


def all_optimizers(folder: Path) -> Any:
    import keras

    return {name: compare(classifier, new) for name, new in elementwise(keras).items()}


def few_optimizers(folder: Path) -> Any:
    import keras

    names = "adam", "accumulated norm", "scaled norm"
    return {name: compare(classifier, elementwise(keras)[name]) for name in names}


def large(keras: Any) -> Any:
    """Build a model with a variable that travels alone, one that does not, and odd sizes."""
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(70_001), keras.layers.Dense(1), keras.layers.Dense(3)]
    return keras.Sequential([keras.layers.Input((4,)), *layers])


def mixed_dtypes(keras: Any) -> Any:
    """Build a model with variables of several dtypes, constraints, and weights without gradient."""
    keras.utils.set_random_seed(3)
    layers = keras.layers
    norm, own = keras.constraints.UnitNorm(axis=0), functools.partial(layers.Dense, use_bias=True)
    inputs = layers.Input((4,))
    x = own(5, kernel_constraint=norm, bias_constraint="non_neg")(inputs)
    x = own(3, dtype="float64")(x)
    x = own(2, dtype="bfloat16")(x)
    frozen = own(2, trainable=False)(inputs)
    return keras.Model(inputs, own(1)(layers.Concatenate()([x, frozen])))


def embedding(keras: Any) -> Any:
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Embedding(9, 3), keras.layers.Flatten(), keras.layers.Dense(1)]
    return keras.Sequential([keras.layers.Input((2,)), *layers])


def all_models(folder: Path) -> Any:
    return of_models("large", "large norm", "mixed dtypes", "embedding")


def few_models(folder: Path) -> Any:
    return of_models("large", "mixed norm", "embedding norm")


def of_models(*names: str) -> Any:
    import keras

    of = keras.optimizers
    tokens = np.random.default_rng(4).integers(0, 9, (len(rows()[0]), 2)), rows()[1]
    outputs = rows()[0], np.tile(rows()[1], (1, 3))
    models: dict[str, Any] = {
        "large": (large, lambda: of.Adam(1e-3), *outputs),
        "large norm": (large, lambda: of.SGD(0.1, 0.9, clipnorm=0.1), *outputs),
        "mixed dtypes": (mixed_dtypes, lambda: of.Adam(0.02)),
        "mixed norm": (mixed_dtypes, lambda: of.Adam(0.02, clipnorm=0.1)),
        "embedding": (embedding, lambda: of.SGD(0.1, 0.9), *tokens),
        "embedding norm": (embedding, lambda: of.Adam(0.05, global_clipnorm=0.1), *tokens),
    }
    return {name: compare(*models[name]) for name in names}


def ways(folder: Path) -> Any:
    """Train in other ways than `fit` of a compiled graph."""
    return {way.__name__: way() for way in (eagerly, in_steps, in_a_loop, with_a_tape, in_halves)}


def eagerly() -> Any:
    return _fitted(run_eagerly=True)


def in_steps() -> Any:
    return _fitted(steps_per_execution=3)


def _fitted(**compiled: Any) -> Any:
    import keras

    from sparkdl import distribute

    model = classifier(keras)
    model.compile(distribute.optimizer(keras.optimizers.Adam(0.02), shard=True), "mse", **compiled)
    fit(model, epochs=2)
    return weights(model)


def in_a_loop() -> Any:
    return _looped(wraps_tape=False)


def with_a_tape() -> Any:
    return _looped(wraps_tape=True)


def _looped(wraps_tape: bool) -> Any:
    """Train in a loop, whose variables are made equal as the error of unequal ones says."""
    import keras
    import tensorflow as tf

    from sparkdl import distribute

    model = classifier(keras)
    optimizer = distribute.optimizer(keras.optimizers.Adam(0.02), shard=True)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: Any, y: Any) -> None:
        tape = tf.GradientTape()
        with distribute.gradient_tape(tape) if wraps_tape else tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        optimizer.apply(tape.gradient(loss, [v.value for v in model.trainable_variables]))

    distribute.broadcast_variables([*model.weights, *optimizer.variables])
    x, y = mine(*rows()[:2])
    each = ROWS // _world_size()
    for begin in [*range(0, len(x), each)] * 2:
        step(x[begin : begin + each], y[begin : begin + each])
    return weights(model)


def in_halves() -> Any:
    """Train with a loss scale in float16; the step of one row overflows."""
    import keras

    from sparkdl import distribute

    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = classifier(keras)
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=64.0)
        model.compile(distribute.optimizer(scaled, shard=True), "mse")
        x, y, _ = rows()
        x[2 * ROWS] = 1e6
        fit(model, x, y, epochs=2)
        return [*weights(model), float(scaled.dynamic_scale)]
    finally:
        keras.config.set_dtype_policy("float32")


# ---- saving, and going on with another number of ranks


def of_all_parts() -> Any:
    """Return an optimizer with all kinds of variables."""
    import keras

    of = keras.optimizers
    adam = of.Adam(0.02, use_ema=True, ema_momentum=0.5, gradient_accumulation_steps=2)
    return of.LossScaleOptimizer(adam, initial_scale=2.0**10)


def undisturbed(folder: Path) -> Any:
    """Train for four epochs, as `begins` and `goes_on` do together."""

    model = train(classifier, of_all_parts, shard=False)
    fit(model, epochs=2)
    return weights(model)


def begins(folder: Path) -> Any:
    """Train for two epochs, and save the model and its weights."""
    from sparkdl import context
    from sparkdl.keras import save

    model = train(classifier, of_all_parts, shard=True)
    save(model, folder / "begun.keras")
    model.save_weights(folder / f"{context.rank}.weights.h5")
    return None


def goes_on(folder: Path) -> Any:
    """Load what `begins` has saved in folders beside this one, with shards and without."""
    import keras

    from sparkdl import distribute

    told = {}
    for begun in sorted(Path(folder).parent.glob("begun-*")):
        for shard in (True, False):
            model = distribute.load_model(begun / "begun.keras", shard=shard)
            fit(model, epochs=2)
            told[f"{begun.name} model {shard}"] = weights(model)
        model = classifier(keras)
        model.compile(distribute.optimizer(of_all_parts(), shard=True), "mse")
        model.optimizer.build(model.trainable_variables)
        model.load_weights(begun / "0.weights.h5")
        fit(model, epochs=2)
        told[f"{begun.name} weights"] = weights(model)
    return told


# ---- what is refused, and callbacks


def saying(function: Callable[[], Any]) -> str:
    """Return the error of a function."""
    try:
        function()
    except Exception as exc:
        return str(exc)
    return "nothing"


def compiled(create: Create, layer: Any = None) -> Any:
    import keras

    from sparkdl import distribute

    model = classifier(keras)
    model.compile(distribute.optimizer(create(), shard=True), "mse")
    return model


def refused(folder: Path) -> dict[str, str]:
    """Return the errors of what cannot be divided. The last of them breaks the ring."""
    import keras
    import tensorflow as tf

    from sparkdl import context, distribute

    of, callbacks = keras.optimizers, keras.callbacks

    class Own(of.Adam):  # type: ignore[misc]
        pass

    def sharded(create: Create) -> str:
        return saying(lambda: distribute.optimizer(create(), shard=True))

    def fitted(callback: Any) -> str:
        model = compiled(lambda: of.Adam(use_ema=True))
        return saying(lambda: fit(model, callbacks=[callback]))

    def built() -> Any:
        adam = of.Adam()
        adam.build([keras.Variable([1.0])])
        return adam

    def float8() -> None:
        scale = keras.Variable([1.0], name="scale")
        scale.overwrite_with_gradient = True
        distribute.optimizer(of.Adam(), shard=True).build([scale])

    def restored() -> None:
        model = compiled(of.Adam)
        model.optimizer.build(model.trainable_variables)
        model.optimizer.iterations.assign(0 if context.rank else 12)
        fit(model)

    def alone() -> None:
        model = compiled(of.Adam)
        fit(model)
        if context.rank:
            raise ValueError("all ranks must save the model at the same time")
        model.save(folder / "alone.keras")

    best = callbacks.ModelCheckpoint(folder / "x.keras", "loss", save_best_only=True, save_freq=2)
    whole = compiled(of.Adam)
    told = {
        "lamb": sharded(of.Lamb),
        "adafactor": sharded(of.Adafactor),
        "own": sharded(Own),
        "built": sharded(built),
        "swap": fitted(callbacks.SwapEMAWeights()),
        "best": fitted(best),
        "legacy file": saying(lambda: whole.save(folder / "x.h5")),
        "float8": saying(float8),
        "restored": saying(restored),
    }
    assert tf.executing_eagerly()
    return told | {"alone": saying(alone)}


def refused_elastic(folder: Path) -> str:
    import keras

    from sparkdl import distribute

    return saying(lambda: distribute.optimizer(keras.optimizers.Adam(), shard=True))


def refused_legacy(folder: Path) -> str:
    import tf_keras

    from sparkdl import distribute

    return saying(lambda: distribute.optimizer(tf_keras.optimizers.Adam(), shard=True))


def with_callbacks(folder: Path) -> Any:
    """Interrupt a `fit`, and go on by BackupAndRestore; load the best model of ModelCheckpoint."""
    import keras

    from sparkdl import context, distribute

    class Interrupt(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise KeyboardInterrupt

    path = folder / "best.keras"

    def trained(*more: Any) -> Any:
        model = compiled(lambda: keras.optimizers.Adam(0.02, use_ema=True, ema_momentum=0.5))
        backup = keras.callbacks.BackupAndRestore(folder / f"backup-{context.rank}")
        best = keras.callbacks.ModelCheckpoint(path, "loss", save_best_only=True)
        fit(model, epochs=4, callbacks=[backup, best, *more])
        return model

    try:
        trained(Interrupt())
    except KeyboardInterrupt:
        pass
    model = trained()
    distribute.barrier()
    best = distribute.load_model(path, shard=True)
    fit(best)
    return [*weights(model), *weights(best)]


# ---- many programs in one gang, because a start costs more than most programs


def alone(folder: Path) -> Any:
    return every(folder, few_optimizers, few_models, ways, undisturbed, with_callbacks)


def three(folder: Path) -> Any:
    return every(folder, few_optimizers, few_models, ways)


def two(folder: Path) -> Any:
    return every(folder, begins, with_callbacks, refused)


def all_kinds(folder: Path) -> Any:
    return every(folder, all_optimizers, all_models)


def every(folder: Path, *programs: Callable[[Path], Any]) -> Any:
    return {program.__name__: program(folder) for program in programs}
