"""Runs in a Spark task. Repeat a training process that a fault has killed during an import.

Native libraries may abort when they are loaded in another order than that of the program, or
before a fork.
"""

import signal
from dataclasses import replace
from pathlib import Path

from sparkdl.cluster.outcome import ProcessExit
from sparkdl.cluster.process.server_connection import Start
from sparkdl.cluster.process.training_process import append_remark
from sparkdl.data.dataframe.sender import RowSender


def is_repeated(end: ProcessExit, start: Start, feeder: RowSender | None, reports: Path) -> bool:
    """Return True if a process is to be started once more, without preloaded modules.

    A process that receives rows has perhaps taken some, so that no other can take its place; one
    that has reported has trained, in the import of a script.

    Args:
        end: the exit of the process.
        start: the conditions under which it was forked.
        feeder: what sends rows to the process; None without rows.
        reports: the local file of the reports of the trial.

    Example:
        >>> end, start = ProcessExit(code=-6, importing=True), Start(application="a")
        >>> is_repeated(end, start, None, Path("metrics.jsonl"))
        False
    """
    has_reported = reports.exists() and reports.stat().st_size > 0
    return end.importing and bool(start.preload) and feeder is None and not has_reported


def without_preload(end: ProcessExit, start: Start, log: Path) -> tuple[Start, str]:
    """Return the conditions of a fork without preloaded modules, and a remark on the repetition.

    Args:
        end: the exit of the process that is repeated.
        start: the conditions under which it was forked.
        log: the local log of the process, which gets the remark too.
    """
    note = (
        f"a process was killed by {signal.Signals(-end.code).name} while it imported a module, and "
        "was started once more without the modules that are imported before a fork; "
        "SPARKDL_FORK_SERVER=0 does so from the start"
    )
    append_remark(log, f"{note}.")
    return replace(start, preload=(), order=(), shared=False), note
