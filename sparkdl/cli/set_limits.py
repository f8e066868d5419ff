"""Runs on the driver. `sparkdl set RUN name=value ...`: change limits of a run that goes on."""

import argparse
from typing import Any

from sparkdl.cli.control import add_verb, carry_out, parse_values

__all__ = ["add"]


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = add_verb(verbs, "set", "change limits of a run that goes on")
    parser.add_argument(
        "values",
        metavar="NAME=VALUE",
        nargs="+",
        help="parallelism=8, num_trials=40, timeout_s=3600 or stop.METRIC=0.95",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    values = parse_values(arguments.values)
    what = {"action": "set", "values": values}
    return carry_out(arguments, what, lambda run: run.set(**values), " ".join(arguments.values))
