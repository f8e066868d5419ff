"""Runs on the driver. `sparkdl cancel RUN [TRIAL]`: cancel a run, or one of its trials."""

import argparse
from typing import Any

from sparkdl.cli.control import add_verb, carry_out

__all__ = ["add"]


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = add_verb(verbs, "cancel", "cancel a run that goes on, or one of its trials")
    parser.add_argument("trial", metavar="TRIAL", type=int, nargs="?", help="number of a trial")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    number = arguments.trial
    what = {"action": "cancel", "trial": number}
    text = "the run is being cancelled" if number is None else f"trial {number} is being cancelled"
    return carry_out(arguments, what, lambda run: run.cancel(number), text)
