"""Runs in the training process.

Optimizers and tapes whose gradients are averaged over all ranks.
"""

import functools
import importlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from sparkdl.distribute import keras_fit
from sparkdl.distribute.gradient_reducer import Reducer
from sparkdl.distribute.nccl import chosen
from sparkdl.distribute.strategies import uses_tf_keras
from sparkdl.distribute.world import ring

__all__ = [
    "averaging",
    "averaging_tape",
    "gradient_tape",
    "optimizer",
    "resolved",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def optimizer(opt: Any, *, op: str = "mean", wire: str | None = None) -> Any:
    """Make an optimizer average its gradients over all ranks of the gang.

    Each rank runs a plain `compile` and `fit` on its share of the rows, without a strategy. `fit`
    then gives all ranks the variables of rank 0 when it begins, averages the moving statistics of
    BatchNorm before each validation and at the end of each epoch, and averages what is logged at
    the end of an epoch before any callback sees it. Ranks with more batches than others end their
    epoch with the first that runs out. A model that is saved loads anywhere as plain Keras.

    Where every rank has a GPU of its own, dense gradients go from GPU to GPU by NCCL, if
    `strategy()` was called before anything that computes with TensorFlow; else through host memory,
    with a warning.

    Args:
        opt: an optimizer of Keras 3 or tf_keras, or its name. It is changed, and returned.
        op: `mean`, or `sum` for a loss that is divided by the global batch already.
        wire: `bfloat16` or `float16`, in which gradients travel then; half the bytes, and sums of
            that precision. For networks of less than 10 Gbit/s.

    Returns:
        The same optimizer; with a single rank, unchanged.

    Raises:
        TypeError: it is no optimizer.
        ValueError: an argument is wrong.
        RuntimeError: Keras runs on another backend than TensorFlow.

    Example:
        >>> from sparkdl import distribute
        >>> distribute.optimizer("adam").name
        'adam'
    """
    if op not in ("mean", "sum"):
        raise ValueError(f"op is {op!r}; expected 'mean' or 'sum'.")
    if wire not in (None, "bfloat16", "float16"):
        raise ValueError(f"wire is {wire!r}; expected None, 'bfloat16' or 'float16'.")
    world = ring()
    group = chosen(world)  # Before an optimizer is made of a name: that computes already.
    found, package = resolved(opt)
    if world.is_alone:
        return found
    return averaging(found, package, Reducer(world, op, wire, group))


def gradient_tape(tape: Any, *, op: str = "mean", wire: str | None = None) -> Any:
    """Make a `tf.GradientTape` give gradients that are averaged over all ranks.

    All ranks must take the same number of steps. Call `broadcast_variables` before the first.

    Args:
        tape: before or after its `with` block. It is changed, and returned.
        op, wire: see `optimizer`.

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
    group = chosen(world)
    return tape if world.is_alone else averaging_tape(tape, Reducer(world, op, wire, group))


def resolved(opt: Any) -> tuple[Any, Any]:
    """An optimizer, by its name too, and the package that it is from: keras, or tf_keras.

    Raises:
        RuntimeError, TypeError, ValueError: see `optimizer`.
    """
    package = _package(opt)
    if package.__name__ == "keras" and package.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"Keras runs on {package.backend.backend()}; distribute.optimizer works with "
            "KERAS_BACKEND=tensorflow. Elsewhere average the gradients with distribute.allreduce."
        )
    found: Any = package.optimizers.get(opt) if isinstance(opt, str) else opt
    kinds = [package.optimizers.Optimizer]
    if package.__name__ == "tf_keras":
        kinds.append(package.optimizers.legacy.Optimizer)
    if not any(isinstance(found, kind) for kind in kinds):
        raise TypeError(
            f"distribute.optimizer got a {type(opt).__name__}; expected an optimizer of Keras, or "
            "its name."
        )
    if hasattr(found, keras_fit.REDUCER):
        raise ValueError(f"this {found.name} averages its gradients already; wrap it once.")
    return found, package


def averaging(found: Any, package: Any, reducer: Reducer) -> Any:
    """Make an optimizer of a package apply what the reducer makes of its gradients."""
    scale = package.mixed_precision.LossScaleOptimizer
    policy = getattr(package.mixed_precision, "global_policy", None) or package.config.dtype_policy
    if policy().name == "mixed_float16" and not isinstance(found, scale):
        found = scale(found)  # `compile` would do it too, with the averaging inside, see `fit`.
    # Past the attributes that Keras tracks. A class of our own could not be loaded elsewhere.
    object.__setattr__(found, keras_fit.REDUCER, reducer)
    wrap = _averaging_apply if package.__name__ == "keras" else _averaging_apply_gradients
    wrap(found, reducer)
    keras_fit.extend(package)
    return found


def averaging_tape(tape: Any, reducer: Reducer) -> Any:
    """Make a tape give what the reducer makes of its gradients."""
    import tensorflow as tf

    gradient = tape.gradient

    @_not_converted
    @functools.wraps(gradient)
    def averaged(target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        found = gradient(target, sources, *args, **kwargs)
        reduced = reducer(tf.nest.flatten(found, expand_composites=False))
        return tf.nest.pack_sequence_as(sources, reduced)

    tape.gradient = averaged
    return tape


def _package(opt: Any) -> Any:
    kinds = {kind.__module__.partition(".")[0] for kind in type(opt).__mro__}
    if "tf_keras" in kinds or (isinstance(opt, str) and uses_tf_keras(os.environ)):
        return importlib.import_module("tf_keras")
    return importlib.import_module("keras")


def _not_converted(function: _Function) -> _Function:
    """The function as it is in a `tf.function` too; there is nothing in it for a graph."""
    import tensorflow as tf

    plain: _Function = tf.autograph.experimental.do_not_convert(function)
    return plain


def _averaging_apply(found: Any, reducer: Reducer) -> None:
    """Keras 3: whatever calls an optimizer goes through `apply`."""
    apply = found.apply

    @_not_converted
    @functools.wraps(apply)
    def averaged(grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        with reducer.agreed():
            return apply(reducer(list(grads)), trainable_variables)

    object.__setattr__(found, "apply", averaged)


def _averaging_apply_gradients(found: Any, reducer: Reducer) -> None:
    """tf_keras: the same with `apply_gradients`."""
    apply_gradients = found.apply_gradients

    @_not_converted
    @functools.wraps(apply_gradients)
    def averaged(grads_and_vars: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        with reducer.agreed():
            reduced = reducer([gradient for gradient, _ in pairs])
            variables = (variable for _, variable in pairs)
            return apply_gradients(list(zip(reduced, variables, strict=True)), *args, **kwargs)

    object.__setattr__(found, "apply_gradients", averaged)
