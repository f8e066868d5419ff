"""Runs on the driver. `sparkdl show [RUN]`: print the table of a run."""

import argparse
from typing import Any

from sparkdl.cli import find
from sparkdl.cli.output import add_json, print_json, run_to_dict

__all__ = ["add"]


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser("show", help="print the table of a run")
    help_text = "folder of the run, or its id below the root; default: the newest run"
    parser.add_argument("name", nargs="?", metavar="RUN", help=help_text)
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    run = find(arguments.name)
    if arguments.json:
        print_json(run_to_dict(run))
    else:
        print(run)
        known = run.annotations()
        if known.tags:
            print(f"Tags: {', '.join(known.tags)}")
        for note in known.notes:
            print(f"Note: {note}")
    return 0 if run.state == "COMPLETE" else 1
