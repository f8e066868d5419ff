"""Runs in a Spark task. The Python worker of Spark that runs the task."""

import functools
import gc


@functools.cache
def spare_collector() -> None:
    """Exclude, at the first call, the imports of this Python worker from its garbage collections.

    Spark's worker collects garbage after every task. With our imports a collection takes some
    30 ms, for which the next task waits.
    """
    gc.collect()
    gc.freeze()
