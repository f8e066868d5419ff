"""Runs on the driver. The `sparkdl` command: one file per verb, without logic of its own."""

import sys
from collections.abc import Callable

from sparkdl import experiment
from sparkdl.errors import RunStoppedError, TrialFailedError
from sparkdl.runs import Run

__all__ = ["find", "run_and_print"]


def find(name: str | None) -> Run:
    """Return the run in a folder, or the run with an id below the root.

    Args:
        name: the path or URL of a run directory, or the id of a run; None for the newest run.

    Raises:
        RunNotFoundError: if there is no such run.
    """
    return experiment.load(name)


def run_and_print(start: Callable[[], Run]) -> int:
    """Start a run, print it as a table however it ends, and return the exit code of the command.

    Args:
        start: starts the run, and returns it when it has finished.
    """
    try:
        run = start()
    except (RunStoppedError, TrialFailedError) as error:
        print(error.run)
        print(f"sparkdl: {error}", file=sys.stderr)
        return 1
    print(run)
    return 0
