"""Runs on the driver. `sparkdl VERB ...`: parse the command line and run the verb."""

import argparse
import importlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TextIO

from sparkdl._version import __version__
from sparkdl.errors import SparkDLError

# The verbs in the order of the help: the module that adds the arguments, and the line of the help.
_VERBS = {
    "runs": ("runs", "list the runs below a root, newest first"),
    "show": ("runs", "print the table of a run"),
    "report": ("runs", "write the page about a run, one file for any browser"),
    "logs": ("runs", "print the log of a trial, or of every trial"),
    "compare": ("runs", "print what differs between runs"),
    "ui": ("views", "show runs and models in a browser"),
    "tensorboard": ("views", "show a run in TensorBoard"),
    "cancel": ("control", "cancel a run that goes on, or one of its trials"),
    "set": ("control", "change limits of a run that goes on"),
    "enqueue": ("control", "add a trial to a launch or a search that goes on"),
    "pause": ("control", "start no more trials of a run; running trials go on"),
    "unpause": ("control", "start trials of a paused run again"),
    "horovodrun": ("start", "run a script for Horovod in several ranks"),
    "torchrun": ("start", "run a script for PyTorch in several ranks"),
    "resume": ("start", "finish an unfinished run"),
    "reproduce": ("start", "run a run again, as a new run; say what differs"),
    "verify": ("verify", "train a trial again; say whether its results are the same"),
    "card": ("verify", "write the card of a run: data, code, environment, result"),
    "models": ("models", "list, export and compare versions of models"),
    "serve": ("serve", "serve models over HTTP"),
    "monitor": ("monitor", "compare data or requests with the training data of a model"),
    "mlflow": ("views", "mirror a run in MLflow"),
    "pull": ("runs", "copy a run from a store to a local folder"),
    "gc": ("runs", "delete old runs"),
    "doctor": ("doctor", "check Java, Spark, every executor, the root and the GPUs"),
    "plan": ("start", "print the runs that a program would start"),
}

# These print what programs print, as it is, and draw progress on the terminal.
_WITH_PROGRAMS = ("logs", "horovodrun", "torchrun", "resume", "reproduce", "plan")

# Characters that a terminal obeys rather than shows, that turn the direction of what follows, or
# that are no text: halves of surrogate pairs, which JSON allows.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def main(words: list[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        words: the command line without the program; None takes that of this process.

    Returns:
        0; 1 if the shown or resumed run is not COMPLETE, if a verified trial differs, if
        `doctor` finds a fault, if a run of `plan` would be refused, if `monitor` finds drift, or if
        a tracking server does not answer; 2 after an error; 99 if an exported model is not better.

    Example:
        >>> main(["show", "/nowhere"])
        2
    """
    words = sys.argv[1:] if words is None else words
    parser = make_parser(next((word for word in words if not word.startswith("-")), ""))
    if not words:
        parser.print_help()
        return 2
    arguments = parser.parse_args(words)
    verb = next(word for word in words if not word.startswith("-"))
    # What other people have written must not command the terminal.
    with nullcontext() if verb in _WITH_PROGRAMS else plain_text():
        return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    try:
        code = int(arguments.run(arguments))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of a pipe, such as `head`, has ended. What is left to print goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (SparkDLError, OSError) as error:
        print(f"sparkdl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def make_parser(verb: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line.

    Args:
        verb: the verb that is used: the others have no arguments, so that their modules need not
            be imported. None for all verbs with their arguments.
    """
    parser = argparse.ArgumentParser(
        prog="sparkdl",
        description="List, show, compare, control, reproduce, verify, copy and delete runs; run "
        "scripts for Horovod; export, serve and monitor models; check a cluster, and see what a "
        "program would run.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for name, (module, text) in _VERBS.items():
        added = verbs.add_parser(name, help=text)
        if verb in (name, None):
            getattr(importlib.import_module(f"sparkdl.cli.{module}"), f"add_{name}")(added)
    return parser


# ---- texts of other people, such as the names of runs


def shown(text: str) -> str:
    r"""Return a text in which characters that a terminal obeys are escaped.

    Example:
        >>> shown("a\tname\x1b[2J\n")
        'a\tname\\x1b[2J\n'
    """
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


class _Shown:
    """A stream that shows texts, see `shown`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text."""
        return self._stream.write(shown(text))


@contextmanager
def plain_text() -> Iterator[None]:
    """Show what is printed in the block as plain text."""
    streams: Any = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_Shown, streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
