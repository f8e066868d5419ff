"""Runs on the driver. `sparkdl logs RUN [TRIAL]`: what trials printed."""

import argparse
import sys
import time
from typing import Any

from sparkdl import storage
from sparkdl.cli.show import find
from sparkdl.jsonl import LogTail
from sparkdl.runs import Run

__all__ = ["add"]

LOOK_S = 0.5


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser("logs", help="print what a trial, or every trial, printed")
    parser.add_argument("name", metavar="RUN", help="the run's folder, or its id below the root")
    parser.add_argument("trial", metavar="TRIAL", type=int, nargs="?", help="a trial's number")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    run = find(chosen.name)
    numbers = [t.number for t in run.trials] if chosen.trial is None else [chosen.trial]
    unknown = [number for number in numbers if not 0 <= number < len(run.trials)]
    if unknown:
        print(f"sparkdl: {run.id} has trials 0 to {len(run.trials) - 1}", file=sys.stderr)
        return 2
    tails: dict[str, LogTail] = {}
    while True:
        live = chosen.follow and find(run.path).state == "RUNNING"
        logs = {f"trial {n}{rank}": url for n in numbers for rank, url in _logs(run, n).items()}
        for title, url in logs.items():
            tail = tails.setdefault(url, LogTail(url))
            _print_new(f"==> {title}\n" if len(logs) > 1 else "", tail)
        sys.stdout.flush()
        if not live:
            return 0
        time.sleep(LOOK_S)


def _logs(run: Run, number: int) -> dict[str, str]:
    """The log of a trial, or those of the ranks of a gang, by the rank's name."""
    folder = run.trials[number].path
    files = [name for name in storage.names(folder) if name.startswith("log")]
    ranks = (name.removeprefix("log").removesuffix(".txt").replace("-", " ") for name in files)
    return dict(zip(ranks, (storage.join(folder, name) for name in files), strict=True))


def _print_new(title: str, tail: LogTail) -> None:
    is_first = tail.offset == 0
    for piece in tail.pieces():
        sys.stdout.write(title + piece if is_first else piece)
        is_first = False
