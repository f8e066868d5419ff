"""Runs on the driver. Keep failures of the display, and of other observers, away from the run."""

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

P = ParamSpec("P")

_logger = logging.getLogger("sparkdl.runner")


@contextmanager
def tolerated(activity: str) -> Iterator[None]:
    """Log an exception of the block in place of raising the exception.

    Args:
        activity: the operation that may fail, for the log.
    """
    try:
        yield
    except Exception as exc:  # noqa: BLE001 The run goes on, whatever has failed.
        _logger.warning("failed to %s: %s: %s. The run goes on.", activity, type(exc).__name__, exc)


def harmless(method: Callable[P, None]) -> Callable[P, None]:
    """Decorate a method that shows something: an exception is logged, and the run goes on.

    The first failure of each method of an object is a warning; further failures are for debugging
    only, as a disk or a terminal that fails does so several times a second.
    """

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception as exc:  # noqa: BLE001 Results are worth more than their display.
            failed: set[str] = vars(args[0]).setdefault("_failed_methods", set())
            level = logging.DEBUG if method.__name__ in failed else logging.WARNING
            failed.add(method.__name__)
            text = "the display of the run failed in %s: %s: %s. The run goes on."
            _logger.log(level, text, method.__name__, type(exc).__name__, exc)

    return call
