"""Runs in the training process. Notice ranks of a gang that train a model each, on their own.

A loaded model is plain Keras, and so is one that was never wrapped: each rank then trains its own,
and the chief's becomes the result.
"""

import functools
import logging
from typing import Any

from sparkdl.context import Context
from sparkdl.distribute.joint_reducer import joint_reducer
from sparkdl.host.late_imports import after_import

_logger = logging.getLogger("sparkdl.distribute")


def note_lone_training(me: Context) -> list[str]:
    """Let Keras say that a model trains on each rank alone; return the list of what it has said.

    Args:
        me: context of this process; without other ranks nothing is noted.
    """
    said: list[str] = []
    if me.ring is not None and me.world_size > 1:
        for name in ("keras", "tf_keras"):
            after_import(name, functools.partial(_watch, said, me.world_size))
    return said


def _watch(said: list[str], world_size: int, package: Any) -> None:
    """Look at each model of a package when `fit` or `train_on_batch` makes its training step."""
    if package.__name__ == "keras" and package.backend.backend() != "tensorflow":
        return  # Other backends average by other means.
    make = package.Model.make_train_function
    train_step = package.Model.train_step

    @functools.wraps(make)
    def make_train_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = getattr(self, "distribute_strategy", None)
        num_workers = 1 if strategy is None else strategy.num_replicas_in_sync
        # A training step of the program may average by itself.
        is_plain = type(self).train_step is train_step
        if is_plain and num_workers == 1 and joint_reducer(self) is None and not said:
            said.append(
                f"each of the {world_size} ranks trains a model {self.name!r} of its own, as its "
                f"{type(self.optimizer).__name__} averages no gradients. If it is meant to be one "
                "model, compile it with distribute.optimizer(...), load it with "
                "distribute.load_model, or build it in distribute.strategy().scope()."
            )
            _logger.warning(said[0])
        return make(self, *args, **kwargs)

    package.Model.make_train_function = make_train_function
