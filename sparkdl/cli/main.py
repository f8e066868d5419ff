"""Runs on the driver. `sparkdl VERB ...`: parses the words and calls the verb's `run`."""

import argparse
import sys

from sparkdl._version import __version__
from sparkdl.cli import logs, resume, runs, show
from sparkdl.errors import SparkDLError

__all__ = ["main"]


def main(words: list[str] | None = None) -> int:
    """Run a command; returns its exit code: 0, 1 if what it looked at is not COMPLETE, 2 on errors.

    Example:
        >>> main(["show", "/nowhere"])
        2
    """
    parser = argparse.ArgumentParser(prog="sparkdl", description="Look at runs, and finish them.")
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for verb in (runs, show, logs, resume):
        verb.add(verbs)
    chosen = parser.parse_args(words)
    try:
        return int(chosen.run(chosen))
    except SparkDLError as error:
        print(f"sparkdl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
