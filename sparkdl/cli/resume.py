"""Runs on the driver. `sparkdl resume RUN`: finish an unfinished run."""

import argparse
from typing import Any

from sparkdl import experiment
from sparkdl.cli import find

__all__ = ["add"]


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser("resume", help="finish an unfinished run")
    parser.add_argument("name", metavar="RUN", help="folder of the run, or its id below the root")
    parser.add_argument("--num-trials", type=int, help="new total number of trials of a search")
    parser.add_argument("--retry-failed", action="store_true", help="also run failed trials again")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    run = experiment.resume(
        find(arguments.name),
        num_trials=arguments.num_trials,
        retry_failed=arguments.retry_failed,
    )
    print(run)
    return 0 if run.state == "COMPLETE" else 1
