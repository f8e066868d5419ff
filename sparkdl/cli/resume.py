"""Runs on the driver. `sparkdl resume RUN`: finish an unfinished run."""

import argparse
from typing import Any

from sparkdl import experiment
from sparkdl.cli import find, run_and_print

__all__ = ["add"]


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser("resume", help="finish an unfinished run")
    parser.add_argument("name", metavar="RUN", help="folder of the run, or its id below the root")
    parser.add_argument("--num-trials", type=int, help="new total number of trials of a search")
    parser.add_argument(
        "--retry",
        metavar="TRIALS",
        type=_retry_of,
        help="also run these trials again: failed, cancelled, or numbers such as 3,7",
    )
    parser.set_defaults(run=_run)


def _retry_of(text: str) -> Any:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        return text


def _run(arguments: argparse.Namespace) -> int:
    return run_and_print(
        lambda: experiment.resume(
            find(arguments.name), num_trials=arguments.num_trials, retry=arguments.retry
        )
    )
