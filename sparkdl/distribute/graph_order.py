"""Runs in the training process. One order of the Python functions that a `tf.function` calls.

TensorFlow runs two stateful operations of a function in the order of the program if both use the
same resource, or if neither uses any. A Python function uses none, and a loop or a call of another
function with a variable inside does. Ranks could therefore call the collectives before and inside
the loop in different orders. So each Python function is surrounded by writes to one variable, which
is then a resource of everything that encloses such a function.
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any


def call_in_order(function: Callable[..., Any], tensors: Sequence[Any], dtypes: Any) -> Any:
    """Return the results of `tf.numpy_function`; all such calls of a function keep their order.

    In a graph of `tf.compat.v1`, which has no such order, it is `tf.numpy_function` alone.

    Args:
        function: takes and returns NumPy arrays.
        tensors: its arguments.
        dtypes: a dtype, or a list of them, for which the results are a list as well.
    """
    import tensorflow as tf

    plain = tf.autograph.experimental.do_not_convert(function)
    is_eager = tf.executing_eagerly()
    if is_eager or not tf.compat.v1.executing_eagerly_outside_functions() or _is_saving():
        results = tf.numpy_function(plain, tensors, dtypes)
        # Eagerly, a single result comes alone, also for a list of dtypes.
        is_alone = isinstance(dtypes, list) and not isinstance(results, list)
        return [results] if is_alone else results
    with tf.control_dependencies([_write(_token(os.getpid()))]):
        results = tf.numpy_function(plain, tensors, dtypes)
    with tf.control_dependencies(tf.nest.flatten(results)):
        _write(_token(os.getpid()))
    return results


def _write(token: Any) -> Any:
    import tensorflow as tf

    return tf.raw_ops.AssignVariableOp(resource=token, value=tf.constant(False))


def _is_saving() -> bool:
    """Return True while TensorFlow traces functions for a SavedModel, which cannot hold a token."""
    from tensorflow.python.saved_model import save_context

    return bool(save_context.in_save_context())


# Process-wide state: the variable, which orders the collectives of all functions. It is no
# `tf.Variable`, of which a distribution strategy would make one for each replica.
@functools.lru_cache(maxsize=1)
def _token(pid: int) -> Any:
    import tensorflow as tf

    with tf.init_scope(), tf.device("CPU:0"):
        return tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=[], shared_name=f"sparkdl order {pid}")
