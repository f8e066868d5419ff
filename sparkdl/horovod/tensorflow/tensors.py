"""Runs in the training process. Call functions of NumPy arrays with tensors, eagerly or in a graph.

Errors are those of Horovod: `tf.errors.FailedPreconditionError` if ranks disagree, and
`tf.errors.InvalidArgumentError` if this rank has called a collective with a wrong argument.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from sparkdl.distribute.graph_order import call_in_order
from sparkdl.distribute.ring import Ring
from sparkdl.horovod.agreement import Disagreement, together
from sparkdl.horovod.process_sets import ProcessSet, group_of, ring_of
from sparkdl.horovod.tensorflow.session_order import call_in_session

_DISAGREEMENT = "this one: the ranks disagree about a collective, see the log of this rank"

_logger = logging.getLogger("sparkdl.horovod")


def call_on_arrays(
    function: Callable[..., Sequence[Any]],
    process_set: ProcessSet,
    tensors: Sequence[Any],
    dtypes: Sequence[Any],
    shapes: Sequence[Any],
) -> list[Any]:
    """Return the results of a function of NumPy arrays, as tensors.

    In a graph of `tf.compat.v1`, call it in a `collective_scope`.

    Args:
        function: takes a ring and an array for each tensor, and returns a list of arrays.
        process_set: the ranks that take part.
        tensors: the tensors.
        dtypes: dtypes of the results.
        shapes: static shapes of the results; None where unknown.

    Raises:
        ValueError: if the process set was not added.
    """
    group_of(process_set)
    if tf.executing_eagerly():
        try:
            values = [np.asarray(tensor) for tensor in tensors]
            with together(ring_of(process_set)) as ring:
                results = function(ring, *values)
        except Disagreement as exc:
            raise tf.errors.FailedPreconditionError(None, None, str(exc)) from exc
        except ValueError as exc:
            raise tf.errors.InvalidArgumentError(None, None, str(exc)) from exc
        return [tf.constant(r, d) for r, d in zip(results, dtypes, strict=True)]
    results = _call_in_graph(function, process_set, tensors, dtypes)
    for result, shape in zip(results, shapes, strict=True):
        result.set_shape(shape)
    return results


def _call_in_graph(
    function: Callable[..., Sequence[Any]],
    process_set: ProcessSet,
    tensors: Sequence[Any],
    dtypes: Sequence[Any],
) -> list[Any]:
    def attempt(ring: Ring, *arrays: Any) -> list[Any]:
        try:
            with together(ring):
                return [np.bool_(True), *function(ring, *arrays)]
        except Disagreement as exc:
            _logger.error("%s", exc)
            return [np.bool_(False), *(np.zeros(0, tf.as_dtype(d).as_numpy_dtype) for d in dtypes)]

    def attempt_in_order(*arrays: Any) -> list[Any]:
        return attempt(ring_of(process_set), *arrays)

    types = [tf.bool, *dtypes]
    if tf.compat.v1.executing_eagerly_outside_functions():
        return _results_or_failures(call_in_order(attempt_in_order, tensors, types), dtypes)
    with tf.name_scope("call") as scope:
        try:
            called = call_in_session(attempt, process_set, tensors, types, scope)
        except ValueError as exc:
            raise tf.errors.InvalidArgumentError(None, None, str(exc)) from exc
        return _results_or_failures(called, dtypes)


def _results_or_failures(outputs: Sequence[Any], dtypes: Sequence[Any]) -> list[Any]:
    """Return the results of a collective, or fail if the ranks have not agreed.

    Args:
        outputs: a boolean, True if the ranks have agreed, and the results.
        dtypes: dtypes of the results.
    """
    has_agreed, *results = outputs
    has_agreed.set_shape([])
    return list(
        tf.cond(
            has_agreed,
            lambda: [tf.identity(r) for r in results],
            lambda: [_failure(d) for d in dtypes],
        )
    )


def _failure(dtype: Any) -> Any:
    """Return an operation that fails with FailedPreconditionError, as no Python function can."""
    missing = tf.raw_ops.VarHandleOp(dtype=dtype, shape=[], shared_name=_DISAGREEMENT)
    return tf.raw_ops.ReadVariableOp(resource=missing, dtype=dtype)
