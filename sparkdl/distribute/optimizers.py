"""Runs in the training process. Make optimizers and tapes average gradients over all ranks."""

import functools
import importlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from sparkdl.distribute import keras_fit
from sparkdl.distribute.elastic_ring import ElasticRing
from sparkdl.distribute.gradient_reducer import Reducer
from sparkdl.distribute.joint_reducer import REDUCER
from sparkdl.distribute.nccl import choose_group
from sparkdl.distribute.sharded_reducer import ShardedReducer
from sparkdl.distribute.sharded_state import ShardedState, check_shards, state_of
from sparkdl.distribute.strategies import uses_tf_keras
from sparkdl.distribute.world import ring
from sparkdl.errors import named_type

# The attribute of a gradient that a tape has reduced. A gradient computed from it has none.
_REDUCED = "_sparkdl_reduced"

_Function = TypeVar("_Function", bound=Callable[..., Any])


def optimizer(opt: Any, *, op: str = "mean", wire: str | None = None, shard: bool = False) -> Any:
    """Make an optimizer average its gradients over all ranks of the gang.

    Each rank runs a plain `compile` and `fit` on its share of the rows, without a strategy. `fit`
    gives all ranks the variables of rank 0 when it begins, averages the moving statistics of
    BatchNorm before each validation and at the end of each epoch, and logs loss and metrics of the
    rows of all ranks at the end of an epoch. An epoch ends on all ranks when the rows of one rank
    run out; a rank without any rows is an error. All ranks must call `evaluate`, `train_on_batch`
    and `test_on_batch` too, whose results are those of the rows of all ranks; `predict` is of each
    rank's rows. A saved model loads anywhere as plain Keras.

    If every rank has a GPU of its own, dense gradients travel from GPU to GPU by NCCL, provided
    that `strategy()` was called before any computation with TensorFlow. Otherwise they travel
    through host memory, with a warning.

    Args:
        opt: an optimizer of Keras 3 or tf_keras, or its name. It is modified and returned.
        op: `mean`, or `sum` for a loss that is already divided by the global batch size.
        wire: `bfloat16` or `float16`, the dtype in which gradients travel: half the bytes,
            and sums of that precision. For networks of less than 10 Gbit/s.
        shard: divide the state of the optimizer among the ranks (ZeRO, stage 1): each rank keeps
            and updates a part of each variable, and all ranks gather the updated weights. For
            the optimizers of Keras 3 that update each value by itself. All ranks must save the
            model at the same time, as with `sparkdl.keras.save`; the file is that of an optimizer
            without shards.

    Returns:
        The same optimizer; with a single rank, unchanged.

    Raises:
        TypeError: if `opt` is not an optimizer.
        ValueError: if an argument is invalid, or the state of the optimizer cannot be divided.
        RuntimeError: if Keras uses another backend than TensorFlow, or `shard` is used in an
            elastic gang, where the state of a lost rank would be lost.

    Example:
        >>> from sparkdl import distribute
        >>> type(distribute.optimizer("adam")).__name__
        'Adam'
    """
    if op not in ("mean", "sum"):
        raise ValueError(f"op is {op!r}; expected 'mean' or 'sum'.")
    if wire not in (None, "bfloat16", "float16"):
        raise ValueError(f"wire is {wire!r}; expected None, 'bfloat16' or 'float16'.")
    world = ring()
    # The group comes first: creating an optimizer from its name already computes.
    group = choose_group(world)
    opt, package = resolve_optimizer(opt)
    if shard:
        check_shards(opt, package)
        if isinstance(world, ElasticRing):
            raise RuntimeError(
                "shard=True does not work in an elastic gang: the part of the optimizer's state "
                "that a lost rank had would be lost. Run without elastic=True, or use shard=False."
            )
    if world.is_alone:
        return opt
    reducer = ShardedReducer if shard else Reducer
    return with_reducer(opt, package, reducer(world, op, wire, group))


def load_model(
    path: Any, *, op: str = "mean", wire: str | None = None, shard: bool = False, **kwargs: Any
) -> Any:
    """Load a model as Keras does, to train it on: its optimizer averages over all ranks.

    All ranks must call it. A model that Keras itself loads would train on each rank alone.

    Args:
        path: path of a model that was saved after `compile`.
        op, wire, shard: see `optimizer`.
        **kwargs: further arguments of `keras.models.load_model`, such as `custom_objects`.

    Returns:
        The model, with the state of its optimizer.

    Example:
        >>> import keras
        >>> from sparkdl import distribute
        >>> model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile(keras.optimizers.SGD(0.5), "mse")
        >>> model.save("model.keras")
        >>> float(distribute.load_model("model.keras").optimizer.learning_rate)
        0.5
    """
    choose_group(ring())  # Before the model computes.
    keras: Any = importlib.import_module("tf_keras" if uses_tf_keras(os.environ) else "keras")
    model = keras.models.load_model(path, **kwargs)
    if loaded := getattr(model, "optimizer", None):
        new = type(loaded).from_config(loaded.get_config()) if shard else loaded
        model.optimizer = optimizer(new, op=op, wire=wire, shard=shard)
        if shard and loaded.built:
            model.optimizer.build(model.trainable_variables)
            values = {str(i): variable.numpy() for i, variable in enumerate(loaded.variables)}
            model.optimizer.load_own_variables(values)
    return model


def gradient_tape(tape: Any, *, op: str = "mean", wire: str | None = None) -> Any:
    """Make a `tf.GradientTape` return gradients that are averaged over all ranks.

    All ranks must take the same number of steps. Call `broadcast_variables` before the first step.

    Args:
        tape: a tape, before or after its `with` block. It is modified and returned.
        op: see `optimizer`.
        wire: see `optimizer`.

    Example:
        >>> import tensorflow as tf
        >>> from sparkdl import distribute
        >>> x = tf.Variable(3.0)
        >>> with distribute.gradient_tape(tf.GradientTape()) as tape:
        ...     y = x * x
        >>> float(tape.gradient(y, x))
        6.0
    """
    world = ring()
    group = choose_group(world)
    if world.is_alone:
        return tape
    return with_reducer_on_tape(tape, Reducer(world, op, wire, group))


def resolve_optimizer(opt: Any) -> tuple[Any, Any]:
    """Return an optimizer, and the package it belongs to: keras or tf_keras.

    Args:
        opt: an optimizer, or its name.

    Raises:
        RuntimeError, TypeError, ValueError: see `optimizer`.
    """
    package = _package_of(opt)
    if package.__name__ == "keras" and package.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"Keras uses the backend {package.backend.backend()}; distribute.optimizer requires "
            "KERAS_BACKEND=tensorflow. With other backends, average the gradients with "
            "distribute.allreduce."
        )
    optimizer: Any = package.optimizers.get(opt) if isinstance(opt, str) else opt
    classes = [package.optimizers.Optimizer]
    if package.__name__ == "tf_keras":
        classes.append(package.optimizers.legacy.Optimizer)
    if not any(isinstance(optimizer, cls) for cls in classes):
        raise TypeError(
            f"distribute.optimizer got {named_type(opt)}; expected an optimizer of Keras, or "
            "its name."
        )
    if hasattr(optimizer, REDUCER):
        raise ValueError(
            f"this {optimizer.name} averages its gradients already; wrap it only once."
        )
    return optimizer, package


def with_reducer(opt: Any, package: Any, reducer: Reducer) -> Any:
    """Make an optimizer apply reduced gradients, and return it.

    Args:
        opt: an optimizer, which is modified.
        package: the package of the optimizer: keras or tf_keras.
        reducer: reduces the gradients.
    """
    opt = with_loss_scale(opt, package)
    if isinstance(reducer, ShardedReducer):
        ShardedState(opt, reducer.ring)  # It replaces `apply`, as does what follows.
    # Bypass the attributes that Keras tracks. A subclass could not be loaded elsewhere.
    object.__setattr__(opt, REDUCER, reducer)
    wrap = _wrap_apply if package.__name__ == "keras" else _wrap_apply_gradients
    wrap(opt, reducer)
    keras_fit.extend_fit(package)
    return opt


def with_loss_scale(opt: Any, package: Any) -> Any:
    """Return an optimizer, inside a LossScaleOptimizer if the policy is `mixed_float16`.

    `compile` would wrap it too, but with the reducer inside, see `keras_fit._check`.

    Args:
        opt: an optimizer.
        package: the package of the optimizer: keras or tf_keras.
    """
    loss_scale = package.mixed_precision.LossScaleOptimizer
    policy = getattr(package.mixed_precision, "global_policy", None) or package.config.dtype_policy
    is_needed = policy().name == "mixed_float16" and not isinstance(opt, loss_scale)
    return loss_scale(opt) if is_needed else opt


def with_reducer_on_tape(tape: Any, reducer: Reducer) -> Any:
    """Make a tape return reduced gradients, and return the tape.

    Args:
        tape: a `tf.GradientTape`, which is modified.
        reducer: reduces the gradients.
    """
    import tensorflow as tf

    gradient = tape.gradient

    @_not_converted
    @functools.wraps(gradient)
    def reduced_gradient(target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        gradients = gradient(target, sources, *args, **kwargs)
        flat = tf.nest.flatten(gradients, expand_composites=False)
        reduced = reducer.reduce_for(flat, tf.nest.flatten(sources))
        for result in reduced:
            if result is not None:
                setattr(result, _REDUCED, True)
        return tf.nest.pack_sequence_as(sources, reduced)

    tape.gradient = reduced_gradient
    return tape


def _package_of(opt: Any) -> Any:
    packages = {cls.__module__.partition(".")[0] for cls in type(opt).__mro__}
    if "tf_keras" in packages or (isinstance(opt, str) and uses_tf_keras(os.environ)):
        return importlib.import_module("tf_keras")
    return importlib.import_module("keras")


def _not_converted(function: _Function) -> _Function:
    """Exclude a function from AutoGraph: its Python code has no part in a graph."""
    import tensorflow as tf

    plain: _Function = tf.autograph.experimental.do_not_convert(function)
    return plain


def _wrap_apply(opt: Any, reducer: Reducer) -> None:
    """Reduce gradients in `apply`, through which every update of a Keras 3 optimizer passes."""
    apply = opt.apply

    @_not_converted
    @functools.wraps(apply)
    def reduce_and_apply(grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        state = state_of(opt)
        built = state.variables if state else opt._trainable_variables  # All that were built.
        variables = built if trainable_variables is None else trainable_variables
        return _update(
            reducer,
            list(grads),
            list(variables),
            lambda reduced: apply(reduced, trainable_variables),
        )

    object.__setattr__(opt, "apply", reduce_and_apply)


def _wrap_apply_gradients(opt: Any, reducer: Reducer) -> None:
    """Reduce gradients in `apply_gradients`, the counterpart of `apply` in tf_keras."""
    apply_gradients = opt.apply_gradients

    @_not_converted
    @functools.wraps(apply_gradients)
    def reduce_and_apply(grads_and_vars: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        gradients, variables = [gradient for gradient, _ in pairs], [v for _, v in pairs]
        return _update(
            reducer,
            gradients,
            variables,
            lambda reduced: apply_gradients(
                list(zip(reduced, variables, strict=True)), *args, **kwargs
            ),
        )

    object.__setattr__(opt, "apply_gradients", reduce_and_apply)


def _update(
    reducer: Reducer,
    gradients: list[Any],
    variables: list[Any],
    update: Callable[[list[Any]], Any],
) -> Any:
    """Reduce gradients and update variables, in a step that all ranks make."""
    if any(hasattr(gradient, _REDUCED) for gradient in gradients):
        with reducer.agreed_step(gradients):
            return update(_reduced_once(reducer, gradients, variables))
    reduce = functools.partial(reducer.reduce_for, gradients, variables)
    return reducer.agreed_update(gradients, reduce, update)


def _reduced_once(reducer: Reducer, gradients: list[Any], variables: list[Any]) -> list[Any]:
    """Reduce gradients, but for those that a tape has reduced."""
    results = [reducer.keep(g) if hasattr(g, _REDUCED) else None for g in gradients]
    places = [i for i, gradient in enumerate(gradients) if not hasattr(gradient, _REDUCED)]
    reduced = reducer.reduce_for([gradients[i] for i in places], [variables[i] for i in places])
    for i, gradient in zip(places, reduced, strict=True):
        results[i] = gradient
    return results
