"""Runs on the driver. `sparkdl pause RUN`: start no more trials; running trials go on."""

import argparse
from typing import Any

from sparkdl.cli.control import add_verb, carry_out

__all__ = ["add"]


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = add_verb(verbs, "pause", "start no more trials of a run; running trials go on")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    what, text = {"action": "pause"}, "paused; running trials go on"
    return carry_out(arguments, what, lambda run: run.pause(), text)
