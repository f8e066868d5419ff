"""Runs on the driver. Start a function in several ranks, as `horovod.run` does."""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkdl import experiment
from sparkdl.errors import ConfigError
from sparkdl.horovod.rank_results import call_and_keep
from sparkdl.horovod.redirected_output import redirect
from sparkdl.runs.results import values_of_ranks

__all__ = ["elastic_size", "first_given", "results_of_ranks", "run", "warn_of_unused"]

_logger = logging.getLogger("sparkdl.horovod")


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    *,
    verbose: Any = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    **unused: Any,
) -> list[Any]:
    """Run a function in several ranks, and return the values of all of them.

    The counterpart of `horovod.run`. Spark decides where the ranks run, and there is a run as of
    `experiment.horovod`, with its logs and metrics.

    Args:
        func: the function.
        args, kwargs: its arguments.
        num_proc: the number of ranks, also as `np`; by default `min_num_proc`, else
            `max_num_proc`, else 1.
        min_num_proc, max_num_proc: with one of them the run is elastic: it begins with `num_proc`
            ranks, goes on without lost ones, and grows into idle slots up to `max_num_proc` ranks,
            see `experiment.horovod`. Also as `min_np` and `max_np`.
        verbose: 0 or False to show nothing, True or a number from 2 to show what all ranks print.
        **unused: arguments for SSH, MPI, hosts and so on, which have no effect.

    Returns:
        The value of each rank, by rank, as `Trial.result` gives it back; of an elastic run, the
        values of the ranks that returned.

    Raises:
        ConfigError, FunctionError, PreflightError, TrainingFailedError, RunStoppedError: see
            `experiment.horovod`.
        NotKeptError: if the value of a rank is an object that cannot be kept, see `Trial.result`.

    Example:
        >>> import sparkdl.horovod
        >>> def train(start):
        ...     import sparkdl.horovod as hvd
        ...     hvd.init()
        ...     return start + hvd.rank()
        >>> sparkdl.horovod.run(train, args=(10,), np=2, verbose=0)
        [10, 11]
    """
    warn_of_unused("horovod.run", unused)
    num_proc = first_given(np, num_proc)
    least, most = first_given(min_np, min_num_proc), first_given(max_np, max_num_proc)
    is_elastic = (least, most) != (None, None)
    num_workers: Any = 1 if num_proc is None else num_proc
    if is_elastic:
        num_workers = elastic_size(first_given(num_proc, least, most), least, most)
    return results_of_ranks(
        func,
        args,
        kwargs,
        num_workers=num_workers,
        elastic=is_elastic,
        progress=verbose is None or bool(verbose),
        logs="all" if (verbose and verbose > 1) or verbose is True else None,
    )


def first_given(*values: int | None) -> Any:
    """Return the first value that is not None, or None."""
    return next((value for value in values if value is not None), None)


def elastic_size(num_proc: int, least: int | None, most: int | None) -> int | tuple[int, int]:
    """Return the `num_workers` of an elastic run: a number, or its bounds if the run may grow.

    Args:
        num_proc: the number of ranks at the beginning.
        least, most: the bounds of the user; None is `num_proc`.

    Raises:
        ConfigError: if the numbers are not in order.

    Example:
        >>> elastic_size(2, 1, None), elastic_size(2, 1, 4)
        (2, (2, 4))
    """
    least, most = first_given(least, num_proc), first_given(most, num_proc)
    if not 1 <= least <= num_proc <= most:
        raise ConfigError(
            f"min_num_proc is {least}, num_proc {num_proc} and max_num_proc {most}; expected "
            "1 <= min_num_proc <= num_proc <= max_num_proc."
        )
    return num_proc if num_proc == most else (num_proc, most)


def results_of_ranks(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    *,
    stdout: Any = None,
    stderr: Any = None,
    with_time: bool = False,
    **options: Any,
) -> list[Any]:
    """Run a function by `experiment.horovod`, and return the values of all ranks.

    Args:
        function, args, kwargs: the function and its arguments.
        stdout, stderr: streams to which the lines of all ranks are written, such as
            `[0]<stdout>:line`.
        with_time: begin these lines with the time.
        **options: see `experiment.horovod`.
    """
    printing = redirect(function, options, stdout, stderr, with_time)
    train = functools.partial(call_and_keep, printing, tuple(args), dict(kwargs or {}))
    options.setdefault("name", getattr(function, "__name__", None))
    return values_of_ranks(experiment.horovod(train, **options).trials[0].path)


def warn_of_unused(function: str, unused: Mapping[str, Any]) -> None:
    """Warn of arguments of Horovod that have no effect.

    Args:
        function: the name of Horovod's function.
        unused: arguments by name; those without a value are not told.
    """
    names = [name for name, value in unused.items() if value not in (None, False)]
    if names:
        _logger.warning(
            "%s of %s have no effect: Spark starts the ranks. The settings for it are in "
            "docs/horovod.md.",
            ", ".join(names),
            function,
        )
