"""Runs on the driver. `sparkdl unpause RUN`: start trials again after `sparkdl pause`."""

import argparse
from typing import Any

from sparkdl.cli.control import add_verb, carry_out

__all__ = ["add"]


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = add_verb(verbs, "unpause", "start trials of a paused run again")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    return carry_out(arguments, {"action": "unpause"}, lambda run: run.unpause(), "goes on")
