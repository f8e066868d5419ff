"""Runs on the driver. `sparkdl show RUN`: print the table of a run."""

import argparse
from typing import Any

from sparkdl.cli import find

__all__ = ["add"]


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser("show", help="print the table of a run")
    parser.add_argument("name", metavar="RUN", help="folder of the run, or its id below the root")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    run = find(arguments.name)
    print(run)
    return 0 if run.state == "COMPLETE" else 1
