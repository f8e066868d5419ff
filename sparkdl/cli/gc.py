"""Runs on the driver. `sparkdl gc`: delete old runs."""

import argparse
from typing import Any

from sparkdl import config, storage
from sparkdl.cli.output import add_json, print_json, size_text
from sparkdl.runs.filters import parse_age
from sparkdl.runs.housekeeping import OldRun, delete, old_runs

__all__ = ["add"]


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser(
        "gc",
        help="delete old runs",
        description="Delete the runs that are neither among the newest nor young enough. A run "
        "whose driver is alive, from which a registered model comes, or with the tag 'keep' stays.",
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
    parser.set_defaults(run=_run)


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} runs cannot be kept; expected 0 or more")
    return number


def _run(arguments: argparse.Namespace) -> int:
    root = storage.absolute(config.resolve("root", arguments.root) or "runs")
    older = parse_age(arguments.older) if arguments.older else None
    runs = old_runs(root, arguments.keep, older)
    failed = [] if arguments.dry_run else delete(root, runs)
    if arguments.json:
        reasons = {run.id: why for run, why in failed}
        print_json([_row(run, arguments.dry_run, reasons.get(run.id, "")) for run in runs])
    else:
        _print(runs, failed, "would be deleted" if arguments.dry_run else "deleted")
    return 1 if failed else 0


def _row(run: OldRun, dry_run: bool, failure: str) -> dict[str, Any]:
    return {
        "run": run.id,
        "path": run.path,
        "state": run.state,
        "started": run.started.isoformat(),
        "bytes": run.num_bytes,
        "deleted": not (run.kept or failure or dry_run),
        "kept": run.kept or failure or None,
    }


def _print(runs: list[OldRun], failed: list[tuple[OldRun, str]], word: str) -> None:
    left = [run for run, _ in failed]
    gone = [run for run in runs if not run.kept and run not in left]
    for run in gone:
        started = f"{run.started:%Y-%m-%d %H:%M}"
        print(f"{word}: {run.id} ({run.state}, {started}, {size_text(run.num_bytes)})")
    for run in runs:
        if run.kept:
            print(f"kept: {run.id}, as {run.kept}")
    for run, why in failed:
        print(f"not deleted: {run.id}: {why}")
    total = sum(run.num_bytes for run in gone)
    count = "1 run" if len(gone) == 1 else f"{len(gone)} runs"
    print(f"{count} {word}, {size_text(total)} ({total} bytes)")
