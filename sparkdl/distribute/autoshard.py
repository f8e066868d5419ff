"""Runs in the training process. Protect a rank's own share of the rows from being sharded again.

`MultiWorkerMirroredStrategy` assumes that a dataset yields global batches: it splits each batch
among all replicas, whatever the auto-shard policy. A dataset that holds only the rows of this rank
carries a mark, which survives `map` and similar transformations.
"""

import warnings
from typing import Any

# The beginning of the warning of Keras 3.15, in `keras/src/trainers/data_adapters/__init__.py`.
_SHUFFLE_WARNING = (
    "`shuffle=True` was passed, but will be ignored since the data `x` was provided as a tf.data"
)


def mark_share(dataset: Any) -> Any:
    """Return the dataset with a mark that makes the strategy of this rank use it unchanged.

    From then on, Keras no longer warns that the default `shuffle=True` of `fit` has no effect on
    datasets, as if their rows were in order: the argument `shuffle` of the reader has ordered them.

    The mark is the auto-shard policy HINT, which on its own shards only a dataset that requests it
    with `shard(SHARD_HINT, ...)`.

    Args:
        dataset: a `tf.data.Dataset` with the rows of this rank.
    """
    import tensorflow as tf

    warnings.filterwarnings("ignore", _SHUFFLE_WARNING, UserWarning)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.HINT
    return dataset.with_options(options)


def keep_marked_shares(strategy: Any, num_workers: int) -> None:
    """Make a strategy of several workers use datasets with the mark unchanged.

    Args:
        strategy: a `tf.distribute.MultiWorkerMirroredStrategy`, which is modified.
        num_workers: number of workers of the strategy.
    """
    import tensorflow as tf

    distribute_dataset = strategy.experimental_distribute_dataset
    num_local_replicas = strategy.num_replicas_in_sync // num_workers
    mark = tf.data.experimental.AutoShardPolicy.HINT

    def experimental_distribute_dataset(dataset: Any, options: Any = None) -> Any:
        if dataset.options().experimental_distribute.auto_shard_policy != mark:
            return distribute_dataset(dataset, options)
        is_split = num_local_replicas > 1
        share = _split_batches(dataset, num_local_replicas) if is_split else dataset
        return strategy.distribute_datasets_from_function(lambda _: share, options)

    strategy.experimental_distribute_dataset = experimental_distribute_dataset


def _split_batches(dataset: Any, num_parts: int) -> Any:
    """Return a dataset with each batch split into `num_parts` batches, for a worker's GPUs.

    The last parts of a batch may be empty: all workers must take the same number of batches.
    """
    import tensorflow as tf

    def split(*batch: Any) -> Any:
        batch = batch if len(batch) > 1 else batch[0]
        num_rows = tf.shape(tf.nest.flatten(batch)[0], out_type=tf.int64)[0]
        rows_per_part = -(-num_rows // num_parts)

        def part(number: Any) -> Any:
            begin, end = number * rows_per_part, (number + 1) * rows_per_part
            return tf.nest.map_structure(lambda values: values[begin:end], batch)

        return tf.data.Dataset.range(num_parts).map(part)

    return dataset.flat_map(split)
