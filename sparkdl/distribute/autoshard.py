"""Runs in the training process.

Datasets that hold one rank's share already, and are not to be divided again.

`MultiWorkerMirroredStrategy` takes the batch of a dataset for that of all workers: it cuts each
into as many as there are replicas, whatever the policy of auto-sharding. A dataset of this rank's
share carries a mark, which stays on it through `map` and the like.
"""

from typing import Any

__all__ = ["leave_shares", "mark_share"]


def mark_share(dataset: Any) -> Any:
    """The dataset, to be taken as it is by the strategy of its rank.

    The mark is the policy HINT, which by itself shards nothing but a dataset that asks for it with
    `shard(SHARD_HINT, ...)`.
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.HINT
    return dataset.with_options(options)


def leave_shares(strategy: Any, num_workers: int) -> None:
    """Let a strategy of several workers take datasets with the mark as they are."""
    import tensorflow as tf

    divide = strategy.experimental_distribute_dataset
    local = strategy.num_replicas_in_sync // num_workers
    mark = tf.data.experimental.AutoShardPolicy.HINT

    def experimental_distribute_dataset(dataset: Any, options: Any = None) -> Any:
        if dataset.options().experimental_distribute.auto_shard_policy != mark:
            return divide(dataset, options)
        share = _divided(dataset, local) if local > 1 else dataset
        return strategy.distribute_datasets_from_function(lambda _: share, options)

    strategy.experimental_distribute_dataset = experimental_distribute_dataset


def _divided(dataset: Any, parts: int) -> Any:
    """Each batch as exactly so many smaller ones, for the GPUs of one worker.

    The last ones may be of no row: then all workers still take equally many.
    """
    import tensorflow as tf

    def slices(*batch: Any) -> Any:
        batch = batch if len(batch) > 1 else batch[0]
        rows = tf.shape(tf.nest.flatten(batch)[0], out_type=tf.int64)[0]
        each = -(-rows // parts)

        def part(place: Any) -> Any:
            begin, end = place * each, (place + 1) * each
            return tf.nest.map_structure(lambda values: values[begin:end], batch)

        return tf.data.Dataset.range(parts).map(part)

    return dataset.flat_map(slices)
