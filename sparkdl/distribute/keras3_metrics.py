"""Runs in the training process. Let each replica count in its own variables of a metric.

From 3.10 on, Keras creates the variables of metrics so that each replica has its own, and their sum
is read. Before it, all replicas write to one, and a mean counts earlier rows several times, or the
rows of one replica only.
"""

import functools
from collections.abc import Callable
from typing import Any

from sparkdl.distribute.keras3_names import Name

_CORE = "keras.src.backend.tensorflow.core"
# Keras since 3.10.
SYNCHRONIZES = Name(_CORE, "Variable._map_synchronization")
NAMES = (
    Name(_CORE, "Variable._initialize", ("value",), uses=("Variable",)),
    Name(_CORE, "Variable._initialize_with_initializer", ("initializer",)),
    Name("keras.src.metrics.metric", "Metric.add_variable", ("aggregation",)),
)


def apply() -> None:
    """Patch the variables of Keras in this process."""
    from keras.src.backend.tensorflow.core import Variable

    for name in ("_initialize", "_initialize_with_initializer"):
        setattr(Variable, name, _with_own_sums(getattr(Variable, name)))


def _with_own_sums(original: Callable[..., None]) -> Callable[..., None]:
    """Wrap a function that creates a variable: if sums are to be read, each replica has one."""
    import tensorflow as tf

    def create(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        kwargs["aggregation"] = tf.VariableAggregation.SUM
        kwargs["synchronization"] = tf.VariableSynchronization.ON_READ
        return next_creator(**kwargs)

    @functools.wraps(original)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.aggregation != "sum":  # That of metrics.
            return original(self, *args, **kwargs)
        with tf.variable_creator_scope(create):
            return original(self, *args, **kwargs)

    return initialize
