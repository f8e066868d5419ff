"""Runs in the training process. Let optimizers of Keras 3 see the sum of all replicas' gradients.

Keras 3 sums gradients in the innermost step of an optimizer. What is around that step uses the
gradient of one replica: gradients are clipped before they are summed, and each replica decides by
itself whether its gradient is finite, so that one of them may skip the sum for which the others
wait. Accumulation and moving averages of weights fail, because they sum inside a condition.

Here `apply` sums first. All of Keras's `apply` then runs once per worker, on the sum.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from sparkdl.distribute.keras3_names import Name

_APPLY = ("grads", "trainable_variables")
_LOSS_SCALE = "keras.src.optimizers.loss_scale_optimizer"
NAMES = (
    Name("keras.src.optimizers.base_optimizer", "BaseOptimizer.apply", _APPLY),
    Name(_LOSS_SCALE, "LossScaleOptimizer.apply", _APPLY, uses=("_tf_apply",)),
    Name(_LOSS_SCALE, "LossScaleOptimizer._tf_apply", _APPLY),
    Name(_LOSS_SCALE, "LossScaleOptimizer._common_apply", _APPLY),
    Name("keras.src.backend.tensorflow.optimizer", "TFOptimizer", uses=("maybe_merge_call",)),
    Name("tensorflow", "__internal__.distribute.interim.maybe_merge_call"),
)


def apply(has_several_replicas: Callable[[Any], bool]) -> None:
    """Patch the optimizers of Keras in this process.

    Args:
        has_several_replicas: returns True for a strategy whose optimizers are to be corrected.
    """
    import tensorflow as tf
    from keras.optimizers import LossScaleOptimizer
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    for cls in (BaseOptimizer, LossScaleOptimizer):
        cls.apply = _on_the_sum(cls.apply, has_several_replicas)
    LossScaleOptimizer._tf_apply = _in_any_context(LossScaleOptimizer._tf_apply)
    interim = tf.__internal__.distribute.interim
    interim.maybe_merge_call = _merged_once(interim.maybe_merge_call)


def _on_the_sum(
    original: Callable[..., None], has_several_replicas: Callable[[Any], bool]
) -> Callable[..., None]:
    """Wrap `apply`: sum the gradients of all replicas, and call it in cross-replica context."""
    import tensorflow as tf

    @functools.wraps(original)
    def apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        grads, replica = list(grads), tf.distribute.get_replica_context()
        places = [place for place, gradient in enumerate(grads) if gradient is not None]
        if not (places and replica and has_several_replicas(replica.strategy)):
            return original(self, grads, trainable_variables)
        variables = None if trainable_variables is None else list(trainable_variables)

        def apply_once(strategy: Any, summed: Sequence[Any]) -> None:
            results: list[Any] = [None] * len(grads)
            for place, total in zip(places, summed, strict=True):
                # The replicas of a worker have equal sums.
                results[place] = strategy.experimental_local_results(total)[0]
            original(self, results, variables)

        summed = replica.all_reduce("SUM", [grads[place] for place in places])
        replica.merge_call(apply_once, args=(summed,))
        return None

    return apply


def _in_any_context(original: Callable[..., None]) -> Callable[..., None]:
    """Wrap `_tf_apply` of LossScaleOptimizer, which is refused in cross-replica context."""
    import tensorflow as tf

    @functools.wraps(original)
    def _tf_apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        if tf.distribute.in_cross_replica_context():
            self._common_apply(grads, trainable_variables)
        else:
            original(self, grads, trainable_variables)

    return _tf_apply


def _merged_once(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `maybe_merge_call`: in cross-replica context there is nothing to merge."""
    import tensorflow as tf

    @functools.wraps(original)
    def maybe_merge_call(fn: Callable[..., Any], strategy: Any, *args: Any, **kwargs: Any) -> Any:
        if tf.distribute.in_cross_replica_context():
            # `strategy` is another one if the optimizer was created outside the scope.
            return fn(tf.distribute.get_strategy(), *args, **kwargs)
        return original(fn, strategy, *args, **kwargs)

    return maybe_merge_call
