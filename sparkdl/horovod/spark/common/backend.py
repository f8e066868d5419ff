"""Runs on the driver. The counterpart of `horovod.spark.common.backend`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkdl.cluster.spark import num_slots
from sparkdl.horovod.absent_names import absent_names
from sparkdl.horovod.spark.runner import run

__all__ = ["Backend", "SparkBackend", "default_num_proc"]


def default_num_proc() -> int:
    """Return the number of slots of Spark."""
    return num_slots(waits=True)


class Backend:
    """The base class of `SparkBackend`, for programs that refer to it; estimators take no other."""


class SparkBackend(Backend):
    """Ranks on Spark.

    Args:
        num_proc: the number of ranks; by default the number of slots.
        env: environment variables of the ranks.
        **kwargs: further arguments of `horovod.spark.run`, of which an estimator uses `verbose`,
            `stdout`, `stderr` and `prefix_output_with_timestamp`.

    Attributes:
        env, kwargs: the arguments.

    Example:
        >>> SparkBackend(num_proc=2, verbose=2).num_processes()
        2
    """

    def __init__(
        self, num_proc: int | None = None, env: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        self._num_proc = num_proc
        self.env = dict(env or {})
        self.kwargs = kwargs

    def num_processes(self) -> int:
        """Return the number of ranks."""
        return default_num_proc() if self._num_proc is None else self._num_proc

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Run a function in the ranks, and return the values of all of them.

        Args:
            fn, args, kwargs: the function and its arguments.
            env: further environment variables.
        """
        env = {**self.env, **(env or {})}
        return run(fn, args, kwargs, num_proc=self.num_processes(), env=env, **self.kwargs)


__getattr__ = absent_names(__name__, __all__)
