"""Runs anywhere (pure). Scale learning rates for batches that grow with the number of workers.

From Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour"
(arXiv:1706.02677): the linear scaling rule, section 2.1, and the gradual warm-up, section 2.2.
"""

from sparkdl import context


def scale_learning_rate(rate: float, num_workers: int | None = None) -> float:
    """Scale a learning rate tuned for one worker's batch to the batch of all workers together.

    If the batch per worker is constant, the global batch grows with the number of workers; "when
    the minibatch size is multiplied by k, multiply the learning rate by k" (section 2.1). Start
    with the rate of one worker, see `sparkdl.keras.LearningRateWarmup`.

    Args:
        rate: the learning rate tuned for one worker's batch.
        num_workers: number of workers; by default the number of ranks of this run.

    Raises:
        ValueError: if `num_workers` is less than one, or missing in a run in which the number of
            ranks changes.

    Example:
        >>> scale_learning_rate(0.1, num_workers=8)
        0.8
    """
    me = context.current()
    if me.grows and num_workers is None:
        raise ValueError(
            f"the learning rate {rate:g} is to be scaled to the number of workers, which changes "
            "in this run (num_workers=(least, most)). Pass num_workers=, such as the least number."
        )
    num_workers = me.world_size if num_workers is None else num_workers
    if num_workers < 1:
        raise ValueError(f"`num_workers >= 1` must hold, but got ({num_workers=}).")
    return rate * num_workers


def warmed_up(step: int, num_steps: int, first: float, last: float) -> float:
    """Return the rate of a step: it rises linearly from `first` to `last` (section 2.2).

    Args:
        step: number of steps done, from 0.
        num_steps: number of steps after which the rate is `last`, and stays constant.
        first: the rate tuned for one worker.
        last: the scaled rate.

    Example:
        >>> [warmed_up(step, 4, 0.25, 1.0) for step in (0, 2, 4, 9)]
        [0.25, 0.625, 1.0, 1.0]
    """
    if step >= num_steps:
        return last
    return first + (last - first) * step / num_steps
