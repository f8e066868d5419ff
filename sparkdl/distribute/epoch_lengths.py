"""Runs in the training process. Let the epochs of a `fit` have different numbers of steps.

Where the number of batches is unknown, Keras counts those of the first epoch, and takes that number
for all epochs. In a gang that grows, a rank has fewer batches in an epoch with more ranks.
"""

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from sparkdl import context
from sparkdl.distribute.joint_reducer import joint_reducer

Catch = Callable[[Any], Any]


def let_lengths_differ(package: Any) -> None:
    """Change the context in which a package reads the rows of an epoch.

    Args:
        package: keras or tf_keras.
    """
    is_old = package.__name__ == "tf_keras"
    name = "tf_keras.src.engine.data_adapter" if is_old else "keras.src.trainers.epoch_iterator"
    module = importlib.import_module(name)
    iterator = module.DataHandler if is_old else module.EpochIterator
    wrapped = _of_tf_keras if is_old else _of_keras
    iterator.catch_stop_iteration = wrapped(iterator.catch_stop_iteration)


def _of_keras(catch: Catch) -> Catch:
    """Wrap the context in which Keras 3 reads the rows of an epoch."""

    @contextlib.contextmanager
    @functools.wraps(catch)
    def catch_stop_iteration(self: Any) -> Iterator[None]:
        if context.current().grows:
            self._num_batches = self.data_adapter.num_batches
        with catch(self):
            yield

    return catch_stop_iteration


def _of_tf_keras(catch: Catch) -> Catch:
    """Wrap the context in which tf_keras reads the rows of an epoch, whose number it knows.

    It ends `fit` if an epoch has fewer rows. If only the rows of another rank have run out, `fit`
    goes on with the next epoch.
    """

    @contextlib.contextmanager
    @functools.wraps(catch)
    def catch_stop_iteration(self: Any) -> Iterator[None]:
        from tensorflow.errors import OutOfRangeError

        if context.current().grows:
            self._inferred_steps = self._infer_steps(self._steps_per_epoch, self._dataset)
        with catch(self):
            try:
                yield
            except OutOfRangeError:
                reducer = joint_reducer(self._model)
                if self._inferred_steps is None or reducer is None or not reducer.is_over:
                    raise

    return catch_stop_iteration
