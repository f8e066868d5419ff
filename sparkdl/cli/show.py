"""Runs on the driver. `sparkdl show RUN`: the table of a run."""

import argparse
from pathlib import Path
from typing import Any

from sparkdl import config, experiment, storage
from sparkdl.runs import Run

__all__ = ["add", "find"]


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser("show", help="show a run's table")
    parser.add_argument("name", metavar="RUN", help="the run's folder, or its id below the root")
    parser.set_defaults(run=_run)


def find(name: str) -> Run:
    """The run of this folder, or of this id below the root.

    Raises:
        RunNotFoundError: there is none.
    """
    is_path = "/" in name or Path(name, "run.json").exists()
    root = config.resolve("root") or "runs"
    return experiment.load(name if is_path else storage.join(root, name))


def _run(chosen: argparse.Namespace) -> int:
    run = find(chosen.name)
    print(run)
    return 0 if run.state == "COMPLETE" else 1
