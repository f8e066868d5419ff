"""Runs in the training process. Notice ranks whose variables differ when a loop begins."""

import weakref
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from sparkdl.distribute.ring import Ring

# The variables that were equal at their first step, and are kept so.
_equal_variables: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()


def check_equal(ring: Ring, variables: Iterable[Any]) -> None:
    """Check that the ranks have equal variables, once for each variable.

    Gradients of different models would be averaged without an error otherwise. `fit` makes the
    variables equal itself.

    Args:
        ring: the ring of all ranks, which all call this function with the same variables.
        variables: what a loop of the user's own trains; what is no variable of an eager program
            is left out.

    Raises:
        ValueError: if variables differ.
    """
    import tensorflow as tf

    with tf.init_scope():  # A function that is traced is not run yet.
        if not tf.executing_eagerly():
            return
        new = [
            v for v in variables if hasattr(v, "assign") and _equal_variables.get(id(v)) is not v
        ]
        if not new:
            return
        try:
            values = [np.ascontiguousarray(v.numpy()) for v in new]
        except tf.errors.FailedPreconditionError:
            return  # The function that is traced creates them.
    sums = np.array([zlib.crc32(value.tobytes()) for value in values], "i8")
    differ = ring.allreduce(sums, "min") != ring.allreduce(sums, "max")
    if differ.any():
        names = [getattr(new[i], "path", new[i].name) for i in differ.nonzero()[0]]
        raise ValueError(
            f"at the first step, {len(names)} of {len(new)} variables differ between the ranks: "
            f"{', '.join(names[:5])}. Call distribute.broadcast_variables([*model.weights, "
            "*optimizer.variables]) before it, so that all ranks train one model."
        )
    _equal_variables.update({id(v): v for v in new})
