"""Runs on the driver. Databricks' HorovodRunner over `experiment.horovod`."""

import functools
from collections.abc import Callable
from typing import Any

from sparkdl import experiment
from sparkdl.cluster.spark import num_slots
from sparkdl.databricks.local_ranks import run_locally
from sparkdl.errors import ConfigError

_VERBOSITIES = ("all", "log_callback_only")


class HorovodRunner:
    """Runs a function that was written for Horovod in several ranks.

    The function imports `sparkdl.horovod` where it imported `horovod`. Each call of `run` is a run
    of `experiment.horovod`, with a run directory.

    Args:
        np: the number of ranks. More than 0: each in a slot of Spark, at the same time. Less than
            -1: as many processes on this host, in a Spark application of their own, without the
            settings of the session here. -1: a call of the function in this process. 0: as many
            as Spark has slots, which Databricks has deprecated.
        driver_log_verbosity: `all` or `log_callback_only`. With both, the driver shows what the
            ranks print; `log_callback_only` hides what they print only on Databricks.

    Raises:
        ConfigError: if an argument is invalid.

    Example:
        >>> def train(start):
        ...     import sparkdl.horovod as hvd
        ...     hvd.init()
        ...     return start + hvd.size()
        >>> HorovodRunner(np=-1).run(train, start=10)
        11
    """

    def __init__(self, *, np: int, driver_log_verbosity: str = "log_callback_only") -> None:
        if isinstance(np, bool) or not isinstance(np, int):
            raise ConfigError(f"np is {np!r}; expected a whole number, such as 2 or -1.")
        if driver_log_verbosity not in _VERBOSITIES:
            raise ConfigError(
                f"driver_log_verbosity is {driver_log_verbosity!r}; expected one of "
                f"{', '.join(map(repr, _VERBOSITIES))}."
            )
        self.num_processor = np
        self.driver_log_verbosity = driver_log_verbosity

    def run(self, main: Callable[..., Any], **kwargs: Any) -> Any:
        """Call a function in all ranks, and return what it returns on rank 0.

        Args:
            main: the function.
            **kwargs: its arguments.

        Raises:
            FunctionError: if the function cannot be called with the arguments, or not be sent.
            SlotsError: if Spark has fewer slots than ranks. Nothing was started.
            TrainingFailedError: if a rank failed; the cause is the rank's exception, except with
                `np` less than 0.
        """
        if self.num_processor == -1:
            return experiment.try_one(main, kwargs)
        train = functools.partial(main, **kwargs)
        name = getattr(main, "__name__", None)
        if self.num_processor < 0:
            return run_locally(train, -self.num_processor, name=name)
        num_workers = self.num_processor or num_slots(waits=True)
        return experiment.horovod(train, num_workers=num_workers, logs="all", name=name).result
