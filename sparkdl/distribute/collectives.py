"""Where it runs: P. Numbers that all ranks agree on."""

from collections.abc import Mapping
from typing import Any, overload

from sparkdl.distribute.strategies import strategy

__all__ = ["mean"]


@overload
def mean(value: float, over: Any = None) -> float: ...
@overload
def mean(value: Mapping[str, float], over: Any = None) -> dict[str, float]: ...
def mean(value: float | Mapping[str, float], over: Any = None) -> float | dict[str, float]:
    """The average over all ranks. All of them must call it, in the same order.

    Args:
        value: a number, or numbers by name, with the same names on all ranks.
        over: the strategy whose ranks are meant; by default this process's own.

    Returns:
        The same on all ranks, as a float or a dict; with a single rank, what was given.

    Example:
        >>> from sparkdl import distribute
        >>> distribute.mean(0.5), distribute.mean({"loss": 0.25})
        (0.5, {'loss': 0.25})
    """
    import tensorflow as tf

    over = strategy() if over is None else over
    numbers = dict(value) if isinstance(value, Mapping) else {"": value}
    if isinstance(over, tf.distribute.MultiWorkerMirroredStrategy):
        names = sorted(numbers)
        local = tf.constant([float(numbers[name]) for name in names], tf.float64)
        everyone = over.experimental_distribute_values_from_function(lambda replica: local)
        means = over.reduce("MEAN", everyone, axis=None).numpy().tolist()
        numbers = dict(zip(names, means, strict=True))
    return numbers if isinstance(value, Mapping) else numbers[""]
