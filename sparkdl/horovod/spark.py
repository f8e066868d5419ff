"""Runs on the driver. The counterpart of `horovod.spark`: start a function in ranks on Spark."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkdl.cluster.plan import Resources
from sparkdl.cluster.spark import SparkCluster
from sparkdl.horovod.launch import results_of_ranks, warn_of_unused

__all__ = ["run", "run_elastic"]


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
        start_timeout, nics: have no effect; the settings are `SPARKDL_START_TIMEOUT_S` and
            `SPARKDL_INTERFACE`.
        use_mpi, use_gloo, extra_mpi_args, executable: have no effect.
        stdout, stderr, prefix_output_with_timestamp: have no effect: `sparkdl logs` shows what each
            rank has printed.

    Returns:
        The value of each rank, by rank, see `sparkdl.horovod.run`.

    Raises:
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
    unused = {
        "start_timeout": start_timeout,
        "extra_mpi_args": extra_mpi_args,
        "stdout": stdout,
        "stderr": stderr,
        "nics": nics,
        "prefix_output_with_timestamp": prefix_output_with_timestamp,
        "executable": executable,
    }
    warn_of_unused("horovod.spark.run", unused)
    return results_of_ranks(
        fn,
        args,
        kwargs,
        num_workers=_num_slots() if num_proc is None else num_proc,
        **_shown(env, verbose),
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
        fn, args, kwargs, num_proc, env, verbose: see `run`.
        max_num_proc: the number of ranks; by default `num_proc`. Also as `max_np`.
        reset_limit: the number of ranks that may be lost; by default any.
        min_num_proc, min_np, elastic_timeout: have no effect: the run goes on with one rank, and
            Spark starts lost ranks again.
        start_timeout, stdout, stderr, nics, prefix_output_with_timestamp: have no effect, see
            `run`.

    Returns:
        The values of the ranks that returned.

    Example:
        >>> import sparkdl.horovod.spark
        >>> sparkdl.horovod.spark.run_elastic(lambda: 5, num_proc=1, verbose=0)
        [5]
    """
    unused = {
        "min_num_proc": min_num_proc or min_np,
        "start_timeout": start_timeout,
        "elastic_timeout": elastic_timeout,
        "stdout": stdout,
        "stderr": stderr,
        "nics": nics,
        "prefix_output_with_timestamp": prefix_output_with_timestamp,
    }
    warn_of_unused("horovod.spark.run_elastic", unused)
    num_workers = max_num_proc or max_np or (_num_slots() if num_proc is None else num_proc)
    shown = _shown(env, verbose)
    return results_of_ranks(
        fn, args, kwargs, num_workers=num_workers, elastic=True, max_losses=reset_limit, **shown
    )


def _shown(env: Mapping[str, str] | None, verbose: int) -> dict[str, Any]:
    return {
        "env": dict(env or {}),
        "progress": verbose > 0,
        "logs": "all" if verbose > 1 else None,
    }


def _num_slots() -> int:
    return SparkCluster().slots(Resources(num_cpus=None, num_gpus=None)).count
