"""Runs on the driver. `sparkdl compare RUN RUN`: print what differs between runs."""

import argparse
from typing import Any

from sparkdl import experiment
from sparkdl.cli import find
from sparkdl.cli.output import add_json, print_json

__all__ = ["add"]


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser("compare", help="print what differs between runs")
    parser.add_argument(
        "names", metavar="RUN", nargs="+", help="folder of a run, or its id below the root"
    )
    parser.add_argument(
        "--figure", metavar="FILE", help="also write a page with the runs over one another"
    )
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    comparison = experiment.compare([find(name) for name in arguments.names])
    if arguments.json:
        print_json(comparison.to_dict())
    else:
        print(comparison)
    if arguments.figure:
        comparison.figure().write_html(arguments.figure, include_plotlyjs=True)
    return 0
