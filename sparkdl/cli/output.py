"""Runs on the driver. Find the run of a command, and print results: as JSON for `--json`."""

import argparse
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sparkdl.experiment.saved_runs import load
from sparkdl.files.jsonl import to_json
from sparkdl.runs import Run, Trial

if TYPE_CHECKING:
    import pandas as pd


def find(name: str | None) -> Run:
    """Return the run in a folder, or the run with an id below the root.

    Args:
        name: the path or URL of a run directory, or the id of a run; None for the newest run.

    Raises:
        RunNotFoundError: if there is no such run.
    """
    return load(name)


def add_json(parser: argparse.ArgumentParser, what: str = "one JSON document") -> None:
    """Add the option `--json` to a reader."""
    parser.add_argument("--json", action="store_true", help=f"print {what}")


def print_json(value: Any, indent: int | None = 1) -> None:
    """Print a value as JSON."""
    sys.stdout.write(to_json(value, indent) + "\n")


def print_remedy(run: Run, error: str = "") -> None:
    """Print the command that finishes a run that has ended early, unless its error has said so."""
    if run.state == "COMPLETE":
        return
    from sparkdl.runs.remedies import in_shell  # Few runs need it.

    with in_shell():
        remedy = run.how_to_finish().strip()
    if remedy and remedy not in error:
        print(remedy.removesuffix("."), flush=True)


def fact_lines(facts: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Return a line for each fact that has a value; what belongs to a fact stands below it.

    Example:
        >>> list(fact_lines({"user": "ann", "in": {"x": {"dtype": "int8", "shape": [None, 2]}}}))
        ['user         ann', 'in', '  x            dtype=int8 shape=[null, 2]']
    """
    for name, value in facts.items():
        if isinstance(value, dict) and any(isinstance(inner, dict) for inner in value.values()):
            yield f"{indent}{name}"
            yield from fact_lines(value, f"{indent}  ")
        elif value not in (None, {}, []):
            yield f"{indent}{name:12} {_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={_text(inner)}" for name, inner in value.items())
    return value if isinstance(value, str) else to_json(value)


def rows_of(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return the rows of a table as JSON objects; missing values are null, and times are text."""
    return [
        {str(name): plain(value) for name, value in row.items()}
        for row in frame.to_dict(orient="records")
    ]


def plain(value: Any) -> Any:
    """Return a value for JSON: None for a missing value, and the text of a time."""
    if hasattr(value, "isoformat"):
        return value.isoformat() if value == value else None
    # A missing value differs from itself.
    return None if isinstance(value, float) and value != value else value


def run_to_dict(run: Run) -> dict[str, Any]:
    """Return a run with its trials, tags and notes as a JSON object."""
    best = run.top(1)
    annotations = run.annotations()
    return {
        "id": run.id,
        "path": run.path,
        "name": run.name,
        "kind": run.kind,
        "state": str(run.state),
        "reason": run.reason,
        "metric": run.metric,
        "directions": run.directions,
        "duration_s": run.duration_s,
        "counts": run.counts(),
        "tags": annotations.tags,
        "notes": [vars(note) for note in annotations.notes],
        "best": best[0].number if best else None,
        "pareto": [trial.number for trial in run.pareto] if run.objectives else [],
        "slow_ranks": run.slow_ranks,
        "resizes": run.resizes,
        "trials": [_trial_to_dict(trial) for trial in run.trials],
    }


def _trial_to_dict(trial: Trial) -> dict[str, Any]:
    names = ("number", "params", "seed", "configuration", "value", "metrics", "outputs")
    more = ("error", "note", "failure", "attempts", "duration_s", "path")
    fields = {name: getattr(trial, name) for name in (*names, *more)}
    return {**fields, "state": str(trial.state), "usage": vars(trial.usage)}


def size_text(num_bytes: float) -> str:
    """Return a size in words.

    Example:
        >>> size_text(512), size_text(3_400_000_000)
        ('512 B', '3.4 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"
