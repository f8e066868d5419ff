"""Runs on the driver. `sparkdl runs`, `show`, `report`, `logs`, `compare`, `pull` and `gc`.

They read, copy and delete runs without Spark.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sparkdl.cli.housekeeping import OldRun, delete, old_runs
from sparkdl.cli.output import (
    add_json,
    find,
    plain,
    print_json,
    print_remedy,
    run_to_dict,
    size_text,
)
from sparkdl.cli.pulled import pull_run
from sparkdl.cluster.root import resolve_root
from sparkdl.errors import ConfigError
from sparkdl.experiment import saved_runs
from sparkdl.files import storage
from sparkdl.files.jsonl import LogTail
from sparkdl.files.layout import is_log, process_of_log
from sparkdl.runs import Run, Trial
from sparkdl.runs.filters import meets, parse_age, rows_meeting
from sparkdl.runs.foreign_folder import other_owner
from sparkdl.runs.history import columns_of, frame_of, newest_rows
from sparkdl.runs.table import cell, padded

# The longest text in a cell of the list of runs.
MAX_CELL = 40

# Seconds between two looks at logs that are followed.
POLL_S = 0.5
# A large run takes a while to read: no more than this share of the time is spent on it.
MAX_SHARE = 0.1


def add_runs(parser: argparse.ArgumentParser) -> None:
    """`sparkdl runs`: list the runs below a root."""
    parser.add_argument(
        "--root", help="folder of the runs; default: $SPARKDL_ROOT, otherwise ./runs"
    )
    parser.add_argument(
        "--where",
        metavar="CONDITION",
        help='only runs that meet a condition, such as "best > 0.9 and learning_rate < 0.01"',
    )
    parser.add_argument("--user", action="append", help="only runs of a user; may be repeated")
    parser.add_argument("--since", metavar="TIME", help="only runs since 2026-11-01, or since 7d")
    parser.add_argument("--tag", action="append", help="only runs with a tag; may be repeated")
    add_json(parser)
    parser.set_defaults(run=_runs)


def _runs(arguments: argparse.Namespace) -> int:
    root = resolve_root(arguments.root)
    rows, unreadable = newest_rows(root)
    numbers = rows_meeting(rows, arguments.user, arguments.since, arguments.tag)
    if arguments.where is not None and numbers:
        frame = frame_of(rows, unreadable).iloc[numbers]
        met = meets(frame, arguments.where)
        numbers = [number for number, is_met in zip(numbers, met, strict=True) if is_met]
    rows_to_show, columns = [rows[number] for number in numbers], columns_of(rows)
    if arguments.json:
        print_json([{name: plain(row.get(name)) for name in columns} for row in rows_to_show])
    elif not rows_to_show and rows:
        print(f"none of the {len(rows)} run(s) meets the conditions")
    elif not rows_to_show:
        found = "there are no runs in" if storage.exists(root) else "there is no folder"
        print(f"{found} {root}; name the folder of the runs with --root or SPARKDL_ROOT")
    else:
        print("\n".join(_lines(rows_to_show, columns)))
    return 0


def _lines(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[str]:
    """Return a table of runs; columns without any value are left out."""
    none = [state for state in ("FAILED", "PRUNED") if not any(row.get(state) for row in rows)]
    left_out = ("path", "name", "direction", "git_commit", *none)
    shown = {n: [_cell(row.get(n)) for row in rows] for n in columns if n not in left_out}
    return padded([(name, cells) for name, cells in shown.items() if any(cells)])


def _cell(value: Any) -> str:
    if plain(value) is None:
        return ""
    if isinstance(value, datetime):
        value = f"{value:%Y-%m-%d %H:%M:%S}"
    elif isinstance(value, list):
        value = ", ".join(value)
    return cell(" ".join(value.split()) if isinstance(value, str) else value, MAX_CELL)


def add_show(parser: argparse.ArgumentParser) -> None:
    """`sparkdl show [RUN]`: print the table of a run."""
    help_text = "folder of the run, or its id below the root; default: the newest run"
    parser.add_argument("name", nargs="?", metavar="RUN", help=help_text)
    add_json(parser)
    parser.set_defaults(run=_show)


def _show(arguments: argparse.Namespace) -> int:
    run = find(arguments.name)
    if arguments.json:
        print_json(run_to_dict(run))
    else:
        print(run)
        annotations = run.annotations()
        if annotations.tags:
            print(f"Tags: {', '.join(annotations.tags)}")
        for note in annotations.notes:
            print(f"Note: {note}")
        if run.state != "RUNNING":
            print_remedy(run)
    return 0 if run.state == "COMPLETE" else 1


def add_report(parser: argparse.ArgumentParser) -> None:
    """`sparkdl report [RUN]`: write the page about a run."""
    help_text = "folder of the run, or its id below the root; default: the newest run"
    parser.add_argument("name", nargs="?", metavar="RUN", help=help_text)
    parser.add_argument(
        "--to", metavar="FILE", help="the page; default: report.html in the folder of the run"
    )
    add_json(parser)
    parser.set_defaults(run=_report)


def _report(arguments: argparse.Namespace) -> int:
    run = find(arguments.name)
    if arguments.to is None and (owner := other_owner(run.path)):
        # A link there may lead to a file that only this user can read.
        raise ConfigError(
            f"run {run.id} belongs to user {owner}, who could read what the page has of files of "
            "yours, if there are links to them. Pass a file of your own: --to report.html."
        )
    path = run.report(arguments.to)
    if arguments.json:
        print_json({"report": path})
    else:
        print(path)
    return 0


def add_logs(parser: argparse.ArgumentParser) -> None:
    """`sparkdl logs RUN [TRIAL]`: print the logs of trials."""
    parser.add_argument("name", metavar="RUN", help="folder of the run, or its id below the root")
    parser.add_argument("trial", metavar="TRIAL", type=int, nargs="?", help="number of a trial")
    parser.add_argument("-f", "--follow", action="store_true", help="continue until the run ends")
    add_json(parser, "a JSON object per piece of a log")
    parser.set_defaults(run=_logs)


def _logs(arguments: argparse.Namespace) -> int:
    run = find(arguments.name)
    number = arguments.trial
    if number is not None and not 0 <= number < len(run.trials):
        message = f"run {run.id} has no trial {number}; it has trials 0 to {len(run.trials) - 1}"
        print(f"sparkdl: {message}", file=sys.stderr)
        return 2
    tails: dict[tuple[str, int], LogTail] = {}
    next_s = 0.0
    while True:
        _print_logs(run, number, tails, arguments.json)
        if not (arguments.follow and run.state == "RUNNING"):
            return 0
        time.sleep(POLL_S)
        if (begun_s := time.monotonic()) >= next_s:
            run = find(run.path)  # A search goes on to add trials.
            now = time.monotonic()
            next_s = now + (now - begun_s) / MAX_SHARE


def _print_logs(
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
    logs = [(t, rank, url) for t in trials for rank, url in _logs_of(t).items()]
    for trial, rank, url in logs:
        # Each attempt writes a new log.
        tail = tails.setdefault((url, max(1, trial.attempts)), LogTail(url))
        if as_json:
            for piece in tail.pieces():
                row = {"trial": trial.number, "rank": rank, "text": piece}
                print_json(row, indent=None)
        else:
            title = f"==> trial {trial.number} {rank}".rstrip()
            _print_new(f"{title}\n" if len(logs) > 1 else "", tail)
    sys.stdout.flush()


def _logs_of(trial: Trial) -> dict[str, str]:
    """Return the log of a trial, or the logs of the ranks of a gang by the name of the rank."""
    folder = trial.path
    files = filter(is_log, storage.list_names(folder))
    return {process_of_log(name): storage.join(folder, name) for name in files}


def _print_new(title: str, tail: LogTail) -> None:
    is_first = tail.offset == 0
    for piece in tail.pieces():
        sys.stdout.write(title + piece if is_first else piece)
        is_first = False


def add_compare(parser: argparse.ArgumentParser) -> None:
    """`sparkdl compare RUN RUN`: print what differs between runs."""
    parser.add_argument(
        "names", metavar="RUN", nargs="+", help="folder of a run, or its id below the root"
    )
    parser.add_argument(
        "--figure", metavar="FILE", help="also write a page with the runs over one another"
    )
    add_json(parser)
    parser.set_defaults(run=_compare)


def _compare(arguments: argparse.Namespace) -> int:
    comparison = saved_runs.compare([find(name) for name in arguments.names])
    if arguments.json:
        print_json(comparison.to_dict())
    else:
        print(comparison)
    if arguments.figure:
        comparison.figure().write_html(arguments.figure, include_plotlyjs=True)
    return 0


def add_pull(parser: argparse.ArgumentParser) -> None:
    """`sparkdl pull RUN`: copy a run from a store to a local folder."""
    parser.description = (
        "Copy a run from a store to a local folder. A copy that was interrupted goes "
        "on with the same command, which also copies what a run has written since."
    )
    parser.add_argument("name", metavar="RUN", help="folder of the run, or its id below the root")
    parser.add_argument(
        "--to", metavar="DIR", default="runs", help="folder for the run's folder; default: ./runs"
    )
    add_json(parser)
    parser.set_defaults(run=_pull)


def _pull(arguments: argparse.Namespace) -> int:
    path, num_files, num_bytes = pull_run(find(arguments.name), arguments.to)
    if arguments.json:
        print_json({"path": path, "files": num_files, "bytes": num_bytes})
    else:
        print(f"{num_files} files, {size_text(num_bytes)} were copied; the run is in {path}")
    return 0


def add_gc(parser: argparse.ArgumentParser) -> None:
    """`sparkdl gc`: delete old runs."""
    parser.description = (
        "Delete the runs that are neither among the newest nor young enough. A run "
        "whose driver is alive, from which a registered model comes, or with the tag 'keep' stays."
    )
    parser.add_argument("--keep", metavar="N", type=_count, help="keep the N newest runs")
    parser.add_argument(
        "--older", metavar="AGE", help="delete only runs that started longer ago, such as 30d"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="delete nothing, print what would be"
    )
    parser.add_argument(
        "--root", help="folder of the runs; default: $SPARKDL_ROOT, otherwise ./runs"
    )
    add_json(parser)
    parser.set_defaults(run=_gc)


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} runs cannot be kept; expected 0 or more")
    return number


def _gc(arguments: argparse.Namespace) -> int:
    root = resolve_root(arguments.root)
    older = parse_age(arguments.older) if arguments.older else None
    runs = old_runs(root, arguments.keep, older)
    failed = [] if arguments.dry_run else delete(root, runs)
    if arguments.json:
        reasons = {run.id: why for run, why in failed}
        print_json([_row(run, arguments.dry_run, reasons.get(run.id, "")) for run in runs])
    else:
        _print_deleted(runs, failed, "would be deleted" if arguments.dry_run else "deleted")
    return 1 if failed else 0


def _row(run: OldRun, dry_run: bool, failure: str) -> dict[str, Any]:
    return {
        "run": run.id,
        "path": run.path,
        "state": run.state,
        "started": run.started.isoformat(),
        "bytes": run.num_bytes,
        "deleted": not (run.reason_to_keep or failure or dry_run),
        "kept": run.reason_to_keep or failure or None,
    }


def _print_deleted(runs: list[OldRun], failed: list[tuple[OldRun, str]], word: str) -> None:
    left = [run for run, _ in failed]
    gone = [run for run in runs if not run.reason_to_keep and run not in left]
    for run in gone:
        started = f"{run.started:%Y-%m-%d %H:%M}"
        print(f"{word}: {run.id} ({run.state}, {started}, {size_text(run.num_bytes)})")
    for run in runs:
        if run.reason_to_keep:
            print(f"kept: {run.id}, as {run.reason_to_keep}")
    for run, why in failed:
        print(f"not deleted: {run.id}: {why}")
    total = sum(run.num_bytes for run in gone)
    count = "1 run" if len(gone) == 1 else f"{len(gone)} runs"
    print(f"{count} {word}, {size_text(total)} ({total} bytes)")
