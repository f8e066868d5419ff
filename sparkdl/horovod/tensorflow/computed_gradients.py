"""Runs in the training process. Reduce gradients where an optimizer computes them.

Horovod's optimizers for tf_keras and `tf.compat.v1` reduce in `compute_gradients`, which `minimize`
and `fit` call, and not in `apply_gradients`: a program may reduce with a tape, or not at all.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from sparkdl.distribute import keras_fit
from sparkdl.distribute.gradient_reducer import Reducer
from sparkdl.distribute.joint_reducer import REDUCER
from sparkdl.distribute.optimizers import with_loss_scale
from sparkdl.horovod.tensorflow.aggregation import GradientAggregation


def reduce_computed_gradients(
    optimizer: Any, reducer: Reducer, aggregation: GradientAggregation | None
) -> Any:
    """Make an optimizer reduce the gradients that it computes, and return it.

    Args:
        optimizer: an optimizer of tf_keras or `tf.compat.v1`, which is modified.
        reducer: reduces the gradients.
        aggregation: adds up the gradients of several batches first; None for one batch.
    """
    is_v1 = isinstance(optimizer, tf.compat.v1.train.Optimizer)
    if not is_v1:
        optimizer = with_loss_scale(optimizer, importlib.import_module("tf_keras"))
    reduce = aggregation.compute if aggregation else reducer.reduce_for
    # Older optimizers of tf_keras have the method with an underscore only. Programs call both.
    name = "compute_gradients" if hasattr(optimizer, "compute_gradients") else "_compute_gradients"
    compute = getattr(optimizer, name)

    def reduced(gradients: Any, variables: Any) -> list[Any]:
        with reducer.agreed_step(gradients):
            # A gradient that is not reduced must not be applied before the ranks agree, either.
            return [None if g is None else tf.identity(g) for g in reduce(gradients, variables)]

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    @functools.wraps(compute)
    def compute_and_reduce(*args: Any, **kwargs: Any) -> Any:
        gradients, variables = zip(*compute(*args, **kwargs), strict=True)
        return list(zip(reduced(gradients, variables), variables, strict=True))

    object.__setattr__(optimizer, name, compute_and_reduce)
    if is_v1:
        optimizer._optimizer = optimizer  # Programs look for the optimizer inside Horovod's.
    else:
        object.__setattr__(optimizer, "_compute_gradients", compute_and_reduce)
        if hasattr(optimizer, "get_gradients"):
            _reduce_in_get_gradients(optimizer, reduced)
        object.__setattr__(optimizer, REDUCER, reducer)
        keras_fit.extend_fit(importlib.import_module("tf_keras"))
        _apply_in_agreed_step(optimizer)
    if aggregation:
        object.__setattr__(optimizer, "_agg_helper", aggregation)
        _apply_after_last_pass(optimizer, aggregation, is_v1)
    return optimizer


def _reduce_in_get_gradients(optimizer: Any, reduced: Callable[[Any, Any], list[Any]]) -> None:
    """Reduce also in the method of older optimizers, which programs with their own loop call."""
    get = optimizer.get_gradients

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    @functools.wraps(get)
    def get_gradients(loss: Any, params: Any) -> list[Any]:
        return reduced(get(loss, params), params)

    object.__setattr__(optimizer, "get_gradients", get_gradients)


def _apply_in_agreed_step(optimizer: Any) -> None:
    """Apply gradients, and count the step, only after the vote on which the gradients depend."""
    apply = optimizer.apply_gradients

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    @functools.wraps(apply)
    def apply_after_vote(grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        gradients = [gradient for gradient, _ in pairs if gradient is not None]
        with tf.control_dependencies(gradients[-1:]):  # The gradient that is reduced first.
            return apply(pairs, *args, **kwargs)

    object.__setattr__(optimizer, "apply_gradients", apply_after_vote)


def _apply_after_last_pass(optimizer: Any, aggregation: GradientAggregation, is_v1: bool) -> None:
    apply = optimizer.apply_gradients

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    @functools.wraps(apply)
    def apply_after_last_pass(grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        if not is_v1:  # A branch cannot create variables.
            _build(optimizer, [variable for _, variable in pairs])
        step = kwargs.get("global_step") if is_v1 else optimizer.iterations

        def count() -> Any:
            return tf.no_op() if step is None else step.assign_add(1)

        gradients = [gradient for gradient, _ in pairs if gradient is not None]
        with tf.control_dependencies(gradients):
            return aggregation.apply(_updating(apply, pairs, args, kwargs), count)

    object.__setattr__(optimizer, "apply_gradients", apply_after_last_pass)


def _updating(apply: Callable[..., Any], pairs: Any, args: Any, kwargs: Any) -> Callable[[], Any]:
    return lambda: apply(pairs, *args, **kwargs)


def _build(optimizer: Any, variables: list[Any]) -> None:
    with tf.init_scope():
        if hasattr(optimizer, "build"):
            optimizer.build(variables)
        else:
            optimizer._create_all_weights(variables)
