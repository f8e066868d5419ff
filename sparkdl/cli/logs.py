"""Where it runs: D. `sparkdl logs RUN [TRIAL]`: what trials printed."""

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

from sparkdl import storage
from sparkdl.cli.show import find
from sparkdl.runs import Run
from sparkdl.runs.layout import TrialPaths

__all__ = ["add"]

PIECE_BYTES = 1 << 20
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
    offsets = dict.fromkeys(numbers, 0)
    while True:
        live = chosen.follow and find(run.path).state == "RUNNING"
        for number in numbers:
            for piece in _new(run, number, offsets):
                sys.stdout.write(piece)
        sys.stdout.flush()
        if not live:
            return 0
        time.sleep(LOOK_S)


def _new(run: Run, number: int, offsets: dict[int, int]) -> Iterator[str]:
    url = TrialPaths(run.trials[number].path).log
    while storage.exists(url) and (data := storage.read(url, offsets[number], PIECE_BYTES)):
        if offsets[number] == 0 and len(offsets) > 1:
            yield f"==> trial {number}\n"
        offsets[number] += len(data)
        yield data.decode(errors="replace")
