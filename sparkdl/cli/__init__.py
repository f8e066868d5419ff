"""Runs on the driver. The `sparkdl` command: one file per verb, without logic of its own."""

from sparkdl import experiment
from sparkdl.runs import Run

__all__ = ["find"]


def find(name: str | None) -> Run:
    """Return the run in a folder, or the run with an id below the root.

    Args:
        name: the path or URL of a run directory, or the id of a run; None for the newest run.

    Raises:
        RunNotFoundError: if there is no such run.
    """
    return experiment.load(name)
