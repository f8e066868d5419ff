"""Runs in the training process. Add up the gradients of several batches before ranks reduce them.

For optimizers of tf_keras and `tf.compat.v1`; those of Keras 3 have `gradient_accumulation_steps`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class GradientAggregation:
    """The sums of the gradients of some batches.

    Args:
        num_passes: number of batches that make up one update.
        reduce_for: reduces gradients over all ranks, given them and their variables.
        averages: divide the sums by the number of batches.

    Attributes:
        counter: a variable, the number of batches since the last update.
    """

    def __init__(
        self,
        num_passes: int,
        reduce_for: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
        averages: bool,
    ) -> None:
        self._num_passes = num_passes
        self._reduce_for = reduce_for
        self._factor = 1 / num_passes if averages else 1.0
        self._sums: list[Any] = []
        with tf.init_scope():
            self.counter = tf.Variable(0, trainable=False, dtype=tf.int32, name="passes")

    def compute(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Add the gradients of a batch; return the reduced sums after the last batch of an update.

        Args:
            gradients: tensors, `tf.IndexedSlices` or None.
            variables: the variables, in the same order.
        """
        places = [i for i, gradient in enumerate(gradients) if gradient is not None]
        used_variables = [variables[i] for i in places]
        if not self._sums:
            with tf.init_scope():
                zeros = [tf.zeros(variable.shape, variable.dtype) for variable in used_variables]
                self._sums = [tf.Variable(zero, trainable=False) for zero in zeros]
        pairs = zip(self._sums, places, strict=True)
        added = [total.assign_add(tf.convert_to_tensor(gradients[i])) for total, i in pairs]
        with tf.control_dependencies(added):
            number = tf.identity(self.counter.assign_add(1))

        def reduce() -> list[Any]:
            reduced = self._reduce_for([total.read_value() for total in self._sums], used_variables)
            with tf.control_dependencies(reduced):
                ends = [total.assign(tf.zeros_like(total)) for total in self._sums]
                ends.append(self.counter.assign(0))
            with tf.control_dependencies(ends):
                return [tf.identity(gradient) * self._factor for gradient in reduced]

        def keep() -> list[Any]:
            return [total.read_value() for total in self._sums]

        results = list(gradients)
        sums = tf.cond(number >= self._num_passes, reduce, keep)
        for i, result in zip(places, sums, strict=True):
            results[i] = result
        return results

    def apply(self, update: Callable[[], Any], count: Callable[[], Any]) -> Any:
        """Update the variables after the last batch of an update; otherwise only count the step.

        Args:
            update: updates the variables.
            count: counts a step.
        """

        def run(function: Callable[[], Any]) -> Callable[[], Any]:
            def call() -> Any:
                operation = function()
                # A session returns an operation, which would be left out without the dependency.
                with tf.control_dependencies([] if operation is None else [operation]):
                    return tf.constant(True)

            return call

        return tf.cond(tf.equal(self.counter, 0), run(update), run(count))
