"""Runs on the driver. `sparkdl runs`: list the runs below a root."""

import argparse
from typing import TYPE_CHECKING, Any

from sparkdl import experiment
from sparkdl.cli.output import add_json, print_json, rows_of
from sparkdl.runs.filters import chosen
from sparkdl.runs.summary import PARAM

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["add"]


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser("runs", help="list the runs below a root, newest first")
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
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    runs = experiment.history(arguments.root)
    table = chosen(runs, arguments.where, arguments.user, arguments.since, arguments.tag)
    _restore_whole_numbers(table)
    if arguments.json:
        print_json(rows_of(table))
    elif table.empty and len(runs):
        print(f"none of the {len(runs)} run(s) meets the conditions")
    elif table.empty:
        print("no runs found; name the folder of the runs with --root or SPARKDL_ROOT")
    else:
        table["tags"] = [", ".join(tags) or None for tags in table["tags"]]
        table["started"] = table["started"].dt.tz_convert(None).dt.floor("s")
        none = [state for state in ("FAILED", "PRUNED") if not table[state].any()]
        left_out = ["path", "name", "direction", "git_commit", *none]
        columns = table.drop(columns=left_out).dropna(axis="columns", how="all")
        whole = columns.select_dtypes("Int64").columns  # Printed with <NA> for a missing value.
        columns[whole] = columns[whole].astype(str).replace("<NA>", "")
        print(columns.to_string(index=False, na_rep="", max_colwidth=40))
    return 0


def _restore_whole_numbers(table: "pd.DataFrame") -> None:
    """Undo that pandas turns whole numbers into floats where a run has none."""
    for name in table.columns:
        if name.startswith(PARAM) and table[name].dtype.kind == "f":
            known = table[name].dropna()
            if known.size and (known % 1 == 0).all() and known.abs().max() < 2**53:
                table[name] = table[name].astype("Int64")
