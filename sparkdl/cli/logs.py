"""Runs on the driver. `sparkdl logs RUN [TRIAL]`: print the logs of trials."""

import argparse
import sys
import time
from typing import Any

from sparkdl import storage
from sparkdl.cli import find
from sparkdl.cli.output import add_json, print_json
from sparkdl.jsonl import LogTail
from sparkdl.runs import Run, Trial

__all__ = ["add"]

POLL_S = 0.5

# A large run takes a while to read: no more than this share of the time is spent on it.
MAX_SHARE = 0.1


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser("logs", help="print the log of a trial, or of every trial")
    parser.add_argument("name", metavar="RUN", help="folder of the run, or its id below the root")
    parser.add_argument("trial", metavar="TRIAL", type=int, nargs="?", help="number of a trial")
    parser.add_argument("-f", "--follow", action="store_true", help="continue until the run ends")
    add_json(parser, "a JSON object per piece of a log")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    run = find(arguments.name)
    number = arguments.trial
    if number is not None and not 0 <= number < len(run.trials):
        message = f"run {run.id} has no trial {number}; it has trials 0 to {len(run.trials) - 1}"
        print(f"sparkdl: {message}", file=sys.stderr)
        return 2
    tails: dict[tuple[str, int], LogTail] = {}
    next_s = 0.0
    while True:
        _print_all(run, number, tails, arguments.json)
        if not (arguments.follow and run.state == "RUNNING"):
            return 0
        time.sleep(POLL_S)
        if (begun_s := time.monotonic()) >= next_s:
            run = find(run.path)  # A search goes on to add trials.
            now = time.monotonic()
            next_s = now + (now - begun_s) / MAX_SHARE


def _print_all(
    run: Run, number: int | None, tails: dict[tuple[str, int], LogTail], as_json: bool
) -> None:
    """Print what was added to the logs of one trial, or of all trials.

    Args:
        run: the run.
        number: the number of the trial; None for all trials.
        tails: the logs that were read before, by their URL and the number of the attempt.
        as_json: print JSON objects in place of text.
    """
    trials = run.trials if number is None else [run.trials[number]]
    logs = [(t, rank, url) for t in trials for rank, url in _logs(t).items()]
    for trial, rank, url in logs:
        # Each attempt writes a new log.
        tail = tails.setdefault((url, max(1, trial.attempts)), LogTail(url))
        if as_json:
            for piece in tail.pieces():
                row = {"trial": trial.number, "rank": rank.strip(), "text": piece}
                print_json(row, indent=None)
        else:
            _print_new(f"==> trial {trial.number}{rank}\n" if len(logs) > 1 else "", tail)
    sys.stdout.flush()


def _logs(trial: Trial) -> dict[str, str]:
    """Return the log of a trial, or the logs of the ranks of a gang by the name of the rank."""
    folder = trial.path
    files = [name for name in storage.list_names(folder) if name.startswith("log")]
    ranks = (name.removeprefix("log").removesuffix(".txt").replace("-", " ") for name in files)
    return dict(zip(ranks, (storage.join(folder, name) for name in files), strict=True))


def _print_new(title: str, tail: LogTail) -> None:
    is_first = tail.offset == 0
    for piece in tail.pieces():
        sys.stdout.write(title + piece if is_first else piece)
        is_first = False
