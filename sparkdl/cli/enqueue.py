"""Runs on the driver. `sparkdl enqueue RUN name=value ...`: add a trial to a run that goes on."""

import argparse
from typing import Any

from sparkdl.cli.control import add_verb, carry_out, parse_values

__all__ = ["add"]


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = add_verb(verbs, "enqueue", "add a trial to a launch or a search that goes on")
    parser.add_argument(
        "params", metavar="NAME=VALUE", nargs="*", help="parameters, such as lr=0.01 act=relu"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    params = parse_values(arguments.params)
    what = {"action": "enqueue", "params": params}
    text = f"a trial was added: {' '.join(arguments.params)}".rstrip(": ")
    return carry_out(arguments, what, lambda run: run.enqueue(params), text)
