"""Runs in a Spark task. Learn which executor of Spark runs this task.

Spark does not tell a Python task the id of its executor. The Java process of the executor, from
which the Python worker descends, has the id in its command line, on every cluster manager.
"""

import os
from collections.abc import Callable
from pathlib import Path

from sparkdl.host.os_processes import parent

_OPTION = "--executor-id"

# A Python worker is a child of pyspark's daemon, and the daemon is a child of the executor.
MAX_DISTANCE = 5


def _arguments(pid: int) -> list[str]:
    """Return the command line of a process; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


def this_executor(
    arguments_of: Callable[[int], list[str]] = _arguments,
    parent_of: Callable[[int], int | None] = parent,
) -> str | None:
    """Return the id of the executor above this process; None for embedded Spark.

    Args:
        arguments_of: returns the command line of a process.
        parent_of: returns the parent of a process.

    Example:
        >>> this_executor(lambda pid: ["java", "--executor-id", "7", "--cores", "2"])
        '7'
        >>> this_executor() is None
        True
    """
    pid: int | None = os.getpid()
    for _ in range(MAX_DISTANCE):
        if not pid:
            return None
        arguments = arguments_of(pid)
        if _OPTION in arguments[:-1]:
            return arguments[arguments.index(_OPTION) + 1]
        pid = parent_of(pid)
    return None
