"""Runs on the driver. `sparkdl runs`: list the runs below a root."""

import argparse
from typing import Any

from sparkdl import experiment

__all__ = ["add"]


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser("runs", help="list the runs below a root, newest first")
    parser.add_argument(
        "--root", help="folder of the runs; default: $SPARKDL_ROOT, otherwise ./runs"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    table = experiment.history(arguments.root)
    if table.empty:
        print("no runs found; name the folder of the runs with --root or SPARKDL_ROOT")
    else:
        columns = table.drop(columns="path").dropna(axis="columns", how="all")
        print(columns.to_string(index=False))
    return 0
