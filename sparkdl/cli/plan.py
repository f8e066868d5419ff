"""Runs on the driver. `sparkdl plan PROGRAM`: print the runs that a program would start."""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from sparkdl.cli.output import add_json, print_json
from sparkdl.cli.spark_options import add_spark_options, use_spark_options
from sparkdl.runner.dry_run import plan_program

__all__ = ["add"]


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser(
        "plan",
        help="print the runs that a program would start",
        description="Run a program until it uses the result of a run, and print which runs it "
        "would start: their trials, how many at once, and about how long. Nothing is trained. The "
        "exit code is 1 if a run would be refused. Options of this command come before PROGRAM.",
    )
    add_spark_options(parser)
    add_json(parser)
    parser.add_argument("program", metavar="PROGRAM", help="path of the Python program")
    parser.add_argument(
        "arguments",
        metavar="ARGUMENT",
        nargs=argparse.REMAINDER,
        help="command line arguments of the program",
    )
    parser.set_defaults(run=_run)


@contextlib.contextmanager
def _printing_to_stderr() -> Iterator[None]:
    """Let this process, and the processes that it starts, print to the standard error."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def _run(arguments: argparse.Namespace) -> int:
    use_spark_options(arguments)
    # What the program prints must not be taken for the JSON document.
    with _printing_to_stderr() if arguments.json else contextlib.nullcontext():
        plan = plan_program(arguments.program, arguments.arguments)
    if arguments.json:
        print_json(plan.to_dict())
    else:
        print(plan)
    return 0 if plan.is_ready else 1
