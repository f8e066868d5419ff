"""Runs on the driver. `sparkdl pull RUN`: copy a run from a store to a local folder."""

import argparse
from typing import Any

from sparkdl.cli import find
from sparkdl.cli.output import add_json, print_json, size_text
from sparkdl.runs.pulled import pull_run

__all__ = ["add"]


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser(
        "pull",
        help="copy a run from a store to a local folder",
        description="Copy a run from a store to a local folder. A copy that was interrupted goes "
        "on with the same command, which also copies what a run has written since.",
    )
    parser.add_argument("name", metavar="RUN", help="folder of the run, or its id below the root")
    parser.add_argument(
        "--to", metavar="DIR", default="runs", help="folder for the run's folder; default: ./runs"
    )
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    path, num_files, num_bytes = pull_run(find(arguments.name), arguments.to)
    if arguments.json:
        print_json({"path": path, "files": num_files, "bytes": num_bytes})
    else:
        print(f"{num_files} files, {size_text(num_bytes)} were copied; the run is in {path}")
    return 0
