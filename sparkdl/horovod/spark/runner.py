"""Runs on the driver. The counterpart of `horovod.spark`: start a function in ranks on Spark."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkdl import config
from sparkdl.cluster.spark import SparkCluster, num_slots
from sparkdl.horovod.launch import elastic_size, first_given, results_of_ranks, warn_of_unused
from sparkdl.horovod.runner.common.util.timeout import TimeoutException

__all__ = ["run", "run_elastic"]

# Seconds between two looks for slots.
_LOOK_S = 0.5


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Any = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Run a function in several ranks, each in a Spark slot, and return the values of all of them.

    There is a run as of `experiment.horovod`, with its logs and metrics.

    Args:
        fn: the function.
        args, kwargs: its arguments.
        num_proc: the number of ranks; by default the number of slots.
        env: environment variables of the ranks, in addition to those of the executors.
        verbose: 0 to show nothing, 2 to show the output of all ranks.
        start_timeout: seconds to wait for slots; by default those of the variable
            `HOROVOD_SPARK_START_TIMEOUT`. Without them too few slots are an error at once. The
            ranks must then start within these seconds or within `SPARKDL_START_TIMEOUT_S`,
            whichever is longer.
        stdout, stderr: streams, such as `sys.stdout` or an open file, to which the lines of all
            ranks are written while they run, as `[0]<stdout>:line` and `[0]<stderr>:line`.
        prefix_output_with_timestamp: begin these lines with the time.
        nics: has no effect; the setting is `SPARKDL_INTERFACE`.
        use_mpi, use_gloo, extra_mpi_args, executable: have no effect.

    Returns:
        The value of each rank, by rank, see `sparkdl.horovod.run`.

    Raises:
        TimeoutException: if there are too few slots until `start_timeout`; of
            `sparkdl.horovod.runner.common.util.timeout`.
        ConfigError, FunctionError, PreflightError, TrainingFailedError, RunStoppedError: see
            `experiment.horovod`.

    Example:
        >>> import sparkdl.horovod.spark
        >>> def train(factor):
        ...     import sparkdl.horovod as hvd
        ...     hvd.init()
        ...     return factor * hvd.size()
        >>> sparkdl.horovod.spark.run(train, kwargs={"factor": 5}, num_proc=2, verbose=0)
        [10, 10]
    """
    has_lines = stdout is not None or stderr is not None
    unused = {
        "extra_mpi_args": extra_mpi_args,
        "nics": nics,
        "executable": executable,
        "prefix_output_with_timestamp": not has_lines and prefix_output_with_timestamp,
    }
    warn_of_unused("horovod.spark.run", unused)
    num_workers = num_slots(waits=True) if num_proc is None else num_proc
    start_timeout_s = _wait_for_slots(num_workers, start_timeout)
    return results_of_ranks(
        fn,
        args,
        kwargs,
        num_workers=num_workers,
        start_timeout_s=start_timeout_s,
        stdout=stdout,
        stderr=stderr,
        with_time=prefix_output_with_timestamp,
        **_display_options(env, verbose),
    )


def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Any = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Run a function in several ranks that survive the loss of some of them, see `run`.

    Args:
        fn, args, kwargs, env, start_timeout, stdout, stderr, verbose, nics,
        prefix_output_with_timestamp: see `run`.
        num_proc: the number of ranks that there must be slots for at the beginning; by default the
            number of slots, at most `max_num_proc`.
        min_num_proc: a smaller number with which the run may begin too, if there are not more
            slots; it goes on with fewer, and Spark starts lost ranks again. Also as `min_np`.
        max_num_proc: the largest number of ranks, up to which the run grows into idle slots; by
            default `num_proc`. Also as `max_np`.
        reset_limit: the number of ranks that may be lost; by default any.
        elastic_timeout: has no effect.

    Returns:
        The values of the ranks that returned.

    Example:
        >>> import sparkdl.horovod.spark
        >>> sparkdl.horovod.spark.run_elastic(lambda: 5, num_proc=1, verbose=0)
        [5]
    """
    has_lines = stdout is not None or stderr is not None
    unused = {
        "elastic_timeout": elastic_timeout,
        "nics": nics,
        "prefix_output_with_timestamp": not has_lines and prefix_output_with_timestamp,
    }
    warn_of_unused("horovod.spark.run_elastic", unused)
    num_workers, start_timeout_s = _elastic_size(
        num_proc,
        first_given(min_num_proc, min_np),
        first_given(max_num_proc, max_np),
        start_timeout,
    )
    return results_of_ranks(
        fn,
        args,
        kwargs,
        num_workers=num_workers,
        elastic=True,
        max_losses=reset_limit,
        start_timeout_s=start_timeout_s,
        stdout=stdout,
        stderr=stderr,
        with_time=prefix_output_with_timestamp,
        **_display_options(env, verbose),
    )


def _elastic_size(
    num_proc: int | None, least: int | None, most: int | None, start_timeout: float | None
) -> tuple[int | tuple[int, int], float | None]:
    """Return the number of ranks or its bounds, and the seconds within which they must start."""
    if num_proc is None:
        slots = num_slots(waits=True)
        num_proc = max(first_given(least, 1), min(first_given(most, slots), slots))
    elastic_size(num_proc, least, most)  # Checks the numbers before the wait.
    least, most = first_given(least, num_proc), first_given(most, num_proc)
    start_timeout_s = _wait_for_slots(least, start_timeout)
    return elastic_size(max(least, min(most, num_slots())), least, most), start_timeout_s


def _wait_for_slots(num_workers: int, start_timeout: float | None) -> float | None:
    """Wait for slots as long as the user has asked for; return the seconds if there are any.

    Raises:
        TimeoutException: if there are too few slots until then.
    """
    if start_timeout is None:
        text = os.environ.get("HOROVOD_SPARK_START_TIMEOUT")
        start_timeout = float(text) if text else None
    if start_timeout is None:
        return None
    ends = time.monotonic() + start_timeout
    while (slots := num_slots()) < num_workers:
        if time.monotonic() > ends:
            raise TimeoutException(
                "Timed out waiting for Spark tasks to start. Please check that you have enough "
                f"resources to run all Horovod processes: there are {slots} slots for "
                f"{num_workers} ranks. You may need to increase the start_timeout parameter to a "
                "larger value if your Spark resources are allocated on-demand. Timeout after "
                f"{start_timeout:g} seconds."
            )
        time.sleep(_LOOK_S)
    # Imports of the program count here, and not in Horovod: a short time is for the slots only.
    setting: float = config.resolve("start_timeout_s", None, SparkCluster().conf)
    return max(start_timeout, setting)


def _display_options(env: Mapping[str, str] | None, verbose: int) -> dict[str, Any]:
    return {
        "env": dict(env or {}),
        "progress": verbose > 0,
        "logs": "all" if verbose > 1 else None,
    }
