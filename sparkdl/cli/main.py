"""Runs on the driver. `sparkdl VERB ...`: parse the command line and run the verb."""

import argparse
import os
import sys

from sparkdl._version import __version__
from sparkdl.cli import (
    cancel,
    compare,
    doctor,
    enqueue,
    gc,
    horovodrun,
    logs,
    mlflow,
    models,
    monitor,
    pause,
    plan,
    pull,
    reproduce,
    resume,
    runs,
    serve,
    set_limits,
    show,
    tensorboard,
    ui,
    unpause,
)
from sparkdl.errors import SparkDLError

__all__ = ["main", "make_parser"]


def main(words: list[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        words: the command line without the program; None takes that of this process.

    Returns:
        0; 1 if the shown or resumed run is not COMPLETE, if `doctor` finds a fault, if a run of
        `plan` would be refused, if `monitor` finds drift, or if a tracking server does not answer;
        2 after an error; 99 if an exported model is not better.

    Example:
        >>> main(["show", "/nowhere"])
        2
    """
    parser = make_parser()
    if not (sys.argv[1:] if words is None else words):
        parser.print_help()
        return 2
    arguments = parser.parse_args(words)
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


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, with all verbs."""
    parser = argparse.ArgumentParser(
        prog="sparkdl",
        description="List, show, compare, control, reproduce, copy and delete runs; run scripts "
        "for Horovod; export, serve and monitor models; check a cluster, and see what a program "
        "would run.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for verb in (
        *(runs, show, logs, compare, ui, tensorboard),
        *(cancel, set_limits, enqueue, pause, unpause),
        *(horovodrun, resume, reproduce, models, serve, monitor, mlflow, pull, gc, doctor, plan),
    ):
        verb.add(verbs)
    return parser
