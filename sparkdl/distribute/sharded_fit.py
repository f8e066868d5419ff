"""Runs in the training process. Refuse what a `fit` cannot do with a sharded optimizer's state."""

import functools
import os
from collections.abc import Callable, Iterable
from typing import Any

from sparkdl.distribute.joint_reducer import averaging_optimizers
from sparkdl.distribute.sharded_state import state_of


def has_shards(model: Any) -> bool:
    """Return True if each rank has a part of the state of an optimizer of a model."""
    return any(state_of(optimizer) for optimizer in averaging_optimizers(model))


def check_callbacks(model: Any, callbacks: Iterable[Any]) -> None:
    """Validate that all ranks save at the same time, and read no state that others have.

    Args:
        model: the model of the `fit`.
        callbacks: the callbacks of the `fit`.

    Raises:
        ValueError: if a callback does otherwise.
    """
    for callback in callbacks if has_shards(model) else ():
        names = [cls.__name__ for cls in type(callback).__mro__]
        if "SwapEMAWeights" in names:
            raise ValueError(
                "SwapEMAWeights needs the whole moving averages, of which each rank has a part "
                "(shard=True): use shard=False."
            )
        within_epoch = getattr(callback, "save_freq", "epoch") != "epoch"
        if "ModelCheckpoint" in names and within_epoch and callback.save_best_only:
            raise ValueError(
                f"ModelCheckpoint(save_freq={callback.save_freq}, save_best_only=True) saves by "
                "the metrics of a rank's own rows, and all ranks must save at the same time "
                "(shard=True): use save_freq='epoch', or save_best_only=False."
            )


def without_legacy_files(save: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `Model.save`: the format HDF5 would get the variables of one rank."""

    @functools.wraps(save)
    def save_whole(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        if has_shards(self) and str(os.fspath(filepath)).endswith((".h5", ".hdf5")):
            raise ValueError(
                f"{filepath} would hold the part of the optimizer's state that this rank has "
                "(shard=True): save the model as a file that ends in .keras."
            )
        return save(self, filepath, *args, **kwargs)

    return save_whole
