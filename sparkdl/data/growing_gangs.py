"""Runs in the training process. The batches of a gang whose number of ranks changes."""

import warnings
from typing import Any

from sparkdl import context
from sparkdl.data.shard import totals
from sparkdl.errors import ConfigError


def check_growing(batches: Any, name: str, num_rows: int) -> None:
    """Validate batches of rows that are divided anew when a pass over them begins.

    Args:
        batches: how rows become batches, see `Batches`.
        name: the rows as the user would call them.
        num_rows: number of rows of all ranks.

    Raises:
        ConfigError: if they depend on the number of ranks, or an epoch of all ranks has none.
    """
    if batches.global_batch_size is not None:
        raise ConfigError(
            f"global_batch_size={batches.global_batch_size} cannot be shared by the workers of a "
            "job whose number changes (num_workers=(least, most)). Pass batch_size_per_worker."
        )
    if batches.epochs > 1:
        raise ConfigError(
            f"epochs={batches.epochs} was passed in a job whose number of workers changes "
            "(num_workers=(least, most)): the rows are divided anew before each epoch of fit. "
            "Iterate several times, or pass epochs to fit."
        )
    most = context.current().num_readers
    batch_size = batches.per_worker(most)
    if not totals(num_rows, most, batch_size, batches.last_batch)[0]:
        raise ConfigError(
            f"{name} has {num_rows} rows, which are no batch of {batch_size} for each of {most} "
            "workers, and last_batch is 'drop': the epochs of all workers would have no step. Pass "
            "last_batch='pad', smaller batches, or a smaller largest number of workers."
        )
    # Keras warns at the end of every dataset of unknown length.
    warnings.filterwarnings("ignore", "Your input ran out of data", UserWarning, "keras")


def refuse_mixing() -> None:
    """Refuse a mixture of datasets, which needs to know the rows of each rank in advance.

    Raises:
        ConfigError: in a gang whose number of ranks changes.
    """
    if context.current().grows:
        raise ConfigError(
            "data.mix was called in a job whose number of workers changes (num_workers=(least, "
            "most)), so that the rows of each rank are not known before an epoch. Pass one number "
            "of workers, or write the mixture to files."
        )
