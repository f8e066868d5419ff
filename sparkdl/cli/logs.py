"""Runs on the driver. `sparkdl logs RUN [TRIAL]`: print the logs of trials."""

import argparse
import sys
import time
from typing import Any

from sparkdl import storage
from sparkdl.cli import find
from sparkdl.jsonl import LogTail
from sparkdl.runs import Run

__all__ = ["add"]

POLL_S = 0.5


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser("logs", help="print the log of a trial, or of every trial")
    parser.add_argument("name", metavar="RUN", help="folder of the run, or its id below the root")
    parser.add_argument("trial", metavar="TRIAL", type=int, nargs="?", help="number of a trial")
    parser.add_argument("-f", "--follow", action="store_true", help="continue until the run ends")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    run = find(arguments.name)
    numbers = [t.number for t in run.trials] if arguments.trial is None else [arguments.trial]
    unknown = [number for number in numbers if not 0 <= number < len(run.trials)]
    if unknown:
        message = (
            f"run {run.id} has no trial {unknown[0]}; it has trials 0 to {len(run.trials) - 1}"
        )
        print(f"sparkdl: {message}", file=sys.stderr)
        return 2
    tails: dict[str, LogTail] = {}
    while True:
        is_live = arguments.follow and find(run.path).state == "RUNNING"
        logs = {f"trial {n}{rank}": url for n in numbers for rank, url in _logs(run, n).items()}
        for title, url in logs.items():
            tail = tails.setdefault(url, LogTail(url))
            _print_new(f"==> {title}\n" if len(logs) > 1 else "", tail)
        sys.stdout.flush()
        if not is_live:
            return 0
        time.sleep(POLL_S)


def _logs(run: Run, number: int) -> dict[str, str]:
    """Return the log of a trial, or the logs of the ranks of a gang by the name of the rank."""
    folder = run.trials[number].path
    files = [name for name in storage.list_names(folder) if name.startswith("log")]
    ranks = (name.removeprefix("log").removesuffix(".txt").replace("-", " ") for name in files)
    return dict(zip(ranks, (storage.join(folder, name) for name in files), strict=True))


def _print_new(title: str, tail: LogTail) -> None:
    is_first = tail.offset == 0
    for piece in tail.pieces():
        sys.stdout.write(title + piece if is_first else piece)
        is_first = False
