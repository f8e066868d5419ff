"""Runs in the training process. Refuse datasets for the workers of a parameter-server run.

Readers produce rows in Python, in the process that calls them. A coordinator that sent such a
dataset to its workers would send a reference to its own Python functions, and every worker would
fail with a message about a missing callback.
"""

import functools
import sys
from typing import Any

from sparkdl.context import Context
from sparkdl.errors import ConfigError


def refuse_in_graph(me: Context, reader: str) -> None:
    """Refuse a reader in the dataset function of `ClusterCoordinator.create_per_worker_dataset`.

    Args:
        me: the context of this process.
        reader: name of the reader that was called.

    Raises:
        ConfigError: if this is the coordinator, and the call is in a graph for its workers.
    """
    tf = sys.modules.get("tensorflow")
    if me.strategy == "parameter_server" and tf is not None and tf.inside_function():
        raise ConfigError(_message(reader))


def refuse_sending(me: Context) -> None:
    """Make the coordinator refuse to send a dataset of a reader to its workers.

    Args:
        me: the context of this process.
    """
    if me.strategy == "parameter_server":
        _guard_coordinator()


# Process-wide state: TensorFlow's class is patched once per process.
@functools.cache
def _guard_coordinator() -> None:
    import tensorflow as tf

    coordinator: Any = tf.distribute.coordinator.ClusterCoordinator
    create = coordinator.create_per_worker_dataset
    mark = tf.data.experimental.AutoShardPolicy.HINT

    @functools.wraps(create)
    def create_per_worker_dataset(self: Any, dataset_fn: Any) -> Any:
        dataset = getattr(dataset_fn, "_original_dataset", dataset_fn)
        if isinstance(dataset, tf.data.Dataset):
            policy = dataset.options().experimental_distribute.auto_shard_policy
            if policy == mark:
                raise ConfigError(_message("a reader of sparkdl.data"))
        return create(self, dataset_fn)

    coordinator.create_per_worker_dataset = create_per_worker_dataset


def _message(reader: str) -> str:
    return (
        f"ClusterCoordinator.create_per_worker_dataset was given rows of {reader}. These rows are "
        "produced in the coordinator's process and cannot be read by its workers. Read the rows on "
        "the coordinator and pass batches to schedule(), use operations of TensorFlow such as "
        "tf.data.TFRecordDataset in the dataset function, or train with experiment.allreduce."
    )
