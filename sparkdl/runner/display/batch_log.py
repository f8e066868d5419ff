"""Runs on the driver. The end of the log of a batch job: a table, and a line for other programs.

A program is a batch job if its standard output is neither a terminal nor replaced, as notebooks and
test runners do.
"""

import atexit
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sparkdl.files.jsonl import to_json
from sparkdl.files.layout import VERIFIED
from sparkdl.runner import sigterm
from sparkdl.runs import Run, remedies

# The last line of the log is this, and JSON.
PREFIX = "sparkdl: "


@dataclass
class _State:
    """The runs of this program, in the order in which they have started.

    Attributes:
        is_command: the command line runs them, which says how to go on itself.
    """

    runs: list[Run] = field(default_factory=list)
    is_command: bool = False


# Process-wide state, as a process has one end.
_state = _State()


def summarize_at_exit(run: Run) -> None:
    """Let a batch job end with a table of its last run and the line of `summary_line`.

    The table is left out if the program has printed it. A training that verifies a run is no run
    of the program.

    Args:
        run: a run that begins, or that ended before.
    """
    if sys.stdout is not sys.__stdout__ or sys.stdout is None or sys.stdout.isatty():
        return
    if f"/{VERIFIED}/" in run.path:
        return
    if not _state.runs:
        atexit.register(_print_summary)
    _state.is_command = remedies.is_in_shell()
    _state.runs[:] = [*(earlier for earlier in _state.runs if earlier.id != run.id), run]


def is_summarized(run: Run) -> bool:
    """Return True if the log of this program will end with what is to be done about a run."""
    return any(other is run for other in _state.runs)


def _print_summary() -> None:
    """Print to the log; without its reader, such as a spark-submit that was killed, do nothing."""
    with suppress(OSError, ValueError):
        run = _state.runs[-1]
        if not run.is_shown:
            print(run)
        for unfinished in () if _state.is_command else _state.runs:
            _print_remedy(unfinished)
        print(summary_line(run, [run.id for run in _state.runs], _exit_code()), flush=True)


def _print_remedy(run: Run) -> None:
    """Print the commands that finish a run that has ended early."""
    with remedies.in_shell():
        remedy = run.how_to_finish().strip().removesuffix(".")
    if remedy:
        print(remedy)
    if remedy and run.has_work_left:
        print(f"or run the program again with run_id={run.id!r}, if_exists='resume'")


def _exit_code() -> int:
    """Return the exit code of this program, unless the program calls `sys.exit` itself."""
    if sigterm.has_terminated():
        return sigterm.EXIT_CODE
    raised = getattr(sys, "last_value", None)  # Python sets this for an error that ends a program.
    if isinstance(raised, KeyboardInterrupt):
        return 128 + signal.SIGINT
    return int(raised is not None)


def summary_line(run: Run, runs: list[str], exit_code: int) -> str:
    """Return the last line of the log of a batch job.

    Args:
        run: the last run of the program.
        runs: the ids of all runs of the program.
        exit_code: the exit code of the program.

    Example:
        >>> run = Run(id="digits", path="/runs/digits", name="digits", kind="launch")
        >>> summary_line(run, ["digits"], 1)[:55]
        'sparkdl: {"run": "digits", "state": "RUNNING", "reason"'
    """
    best = run.top(1)
    content: dict[str, Any] = {
        "run": run.id,
        "state": str(run.state),
        "reason": run.reason,
        "root": run.path.rsplit("/", 1)[0],
        "path": run.path,
        "counts": run.counts(),
        "metric": run.metric,
        "best": {"trial": best[0].number, "value": best[0].value, "params": best[0].params}
        if best
        else None,
        "duration_s": run.duration_s,
        "runs": runs,
        "exit_code": exit_code,
    }
    return f"{PREFIX}{to_json(content)}"
