"""Runs in the training process. Divide the gradient of a loss by the number of replicas.

A loss of Keras is the mean over the rows of one replica, and optimizers sum the gradients of all
replicas. Keras 3.8 divides the loss by the number of replicas. Before it, the gradient of two
replicas is twice that of one process.

Here only the gradient is divided, so that the loss that is logged stays the mean of rows.
"""

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from sparkdl.distribute.keras3_names import Name

# Keras since 3.8. A Keras that divides in another place does not have the names below.
DIVIDES = Name("keras.src.losses.loss", "scale_loss_for_distribution")
NAMES = (
    Name("keras.src.losses.loss", "Loss.__call__", uses=("reduce_weighted_values",)),
    Name("keras.src.trainers.trainer", "Trainer.compute_loss", uses=("_compile_loss", "sum")),
)

# Process-wide state, by thread: a loss that is a part of another is divided with that one.
_is_part: ContextVar[bool] = ContextVar("_is_part", default=False)


def apply(has_several_replicas: Callable[[Any], bool]) -> None:
    """Patch the losses of Keras in this process.

    Args:
        has_several_replicas: returns True for a strategy whose gradients are to be divided.
    """
    from keras.src.losses.loss import Loss
    from keras.src.trainers.trainer import Trainer

    Loss.__call__ = _divided(Loss.__call__, has_several_replicas)
    # It adds what Loss does not have: regularizers, and `add_loss`.
    Trainer.compute_loss = _divided(Trainer.compute_loss, has_several_replicas)


def _divided(
    original: Callable[..., Any], has_several_replicas: Callable[[Any], bool]
) -> Callable[..., Any]:
    """Wrap a function that returns a loss: its gradient is divided by the number of replicas."""
    import tensorflow as tf

    @functools.wraps(original)
    def compute(self: Any, *args: Any, **kwargs: Any) -> Any:
        replica = tf.distribute.get_replica_context()
        if _is_part.get() or not (replica and has_several_replicas(replica.strategy)):
            return original(self, *args, **kwargs)
        token = _is_part.set(True)
        try:
            loss = original(self, *args, **kwargs)
        finally:
            _is_part.reset(token)
        return _with_share_of_gradient(loss, replica.num_replicas_in_sync)

    return compute


def _with_share_of_gradient(loss: Any, num_replicas: int) -> Any:
    import tensorflow as tf

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def share(value: Any) -> Any:
        return tf.identity(value), lambda upstream: upstream / num_replicas

    return share(loss)
