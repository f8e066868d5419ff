"""Runs on the driver. Run a program whose verbs describe their runs in place of starting them."""

import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkdl.errors import ConfigError, SparkDLError
from sparkdl.runner.pipeline.preview import ProgramEnd, RunPreview, previewing


@dataclass(frozen=True, kw_only=True)
class ProgramPlan:
    """The runs that a program would start.

    Attributes:
        program: the path of the program.
        runs: the runs, in the order in which the program would start them.
        refused: the error with which a verb would refuse a run before it starts; empty if none.
        error: the traceback of any other error of the program; empty without one.
        exit_code: the exit code with which the program has ended by itself, None if it has not.
        ends_where: the reason for which the program was ended; empty if it ended by itself.
    """

    program: str
    runs: Sequence[RunPreview] = field(default_factory=list)
    refused: str = ""
    error: str = ""
    exit_code: int | None = None
    ends_where: str = ""

    @property
    def is_ready(self) -> bool:
        """True if nothing was refused, and the program has not failed."""
        return not (self.refused or self.error or self.exit_code)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as a dict for JSON."""
        return {**vars(self), "runs": [run.to_dict() for run in self.runs]}

    def __str__(self) -> str:
        parts = [str(run) for run in self.runs]
        if self.refused:
            parts.append(f"Refused: {self.refused}")
        elif self.error:
            parts.append(f"The program has failed:\n{self.error.rstrip()}")
        elif self.exit_code:
            parts.append(f"The program has ended with exit code {self.exit_code}.")
        elif self.ends_where:
            parts.append(
                f"The program was followed to the line where it {self.ends_where}. What it does "
                "then is not shown."
            )
        else:
            parts.append("The program was followed to its end.")
        parts.append("No trial was started, and no run directory was made.")
        return "\n".join(parts)


def plan_program(program: str, arguments: Sequence[str] = ()) -> ProgramPlan:
    """Run a program until it uses the result of a run, and return the runs that it would start.

    All that the program does besides is done: it reads files, starts Spark, and prints.

    Args:
        program: the path of a Python program.
        arguments: its command line arguments.

    Raises:
        ConfigError: if there is no such file.
    """
    path = Path(program)
    if not path.is_file():
        raise ConfigError(f"there is no program {program}. Expected the path of a Python file.")
    refused = error = ends_where = ""
    exit_code: int | None = None
    before = sys.argv, sys.path[:]
    sys.argv, sys.path = [program, *arguments], [os.path.abspath(path.parent), *sys.path]
    try:
        with previewing() as runs:
            try:
                runpy.run_path(program, run_name="__main__")
            except SystemExit as exc:
                code: Any = exc.code
                if isinstance(code, ProgramEnd):
                    ends_where = code.why
                else:
                    exit_code = _exit_code(code)
            except SparkDLError as exc:
                refused = f"{type(exc).__name__}: {exc}"
            except Exception as exc:  # noqa: BLE001 The program may raise anything.
                error = _own_traceback(exc, program)
    finally:
        sys.argv, sys.path = before
    return ProgramPlan(
        program=program,
        runs=runs,
        refused=refused,
        error=error,
        exit_code=exit_code,
        ends_where=ends_where,
    )


def _exit_code(code: Any) -> int:
    """Return what Python itself makes of the code of a `SystemExit`."""
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1


def _own_traceback(exc: Exception, program: str) -> str:
    """Return the traceback of an error from the first line of the program on."""
    frames = exc.__traceback__
    while frames and frames.tb_frame.f_code.co_filename != program:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(exc), exc, frames or exc.__traceback__))
