"""Runs on the driver. `sparkdl reproduce RUN`: run a run again, as a new run."""

import argparse
from typing import Any

from sparkdl import experiment
from sparkdl.cli import find, run_and_print

__all__ = ["add"]


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser("reproduce", help="run a run again, as a new run; say what differs")
    parser.add_argument("name", metavar="RUN", help="folder of the run, or its id below the root")
    parser.add_argument(
        "--root", help="folder of the new run; default: the folder that contains RUN"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    options = {"root": arguments.root} if arguments.root else {}
    return run_and_print(lambda: experiment.reproduce(find(arguments.name), **options))
