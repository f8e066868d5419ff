"""Runs on the driver. `sparkdl resume RUN`: finishes what a run has not finished."""

import argparse
from typing import Any

from sparkdl import experiment
from sparkdl.cli.show import find

__all__ = ["add"]


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser("resume", help="finish what a run has not finished")
    parser.add_argument("name", metavar="RUN", help="the run's folder, or its id below the root")
    parser.add_argument("--num-trials", type=int, help="of a search, how many to try in all")
    parser.add_argument("--retry-failed", action="store_true", help="run failed trials again too")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    run = experiment.resume(
        find(chosen.name), num_trials=chosen.num_trials, retry_failed=chosen.retry_failed
    )
    print(run)
    return 0 if run.state == "COMPLETE" else 1
