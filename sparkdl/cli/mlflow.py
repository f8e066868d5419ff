"""Runs on the driver. `sparkdl mlflow push RUN`: mirror a run in MLflow, at any time."""

import argparse
import sys
from typing import Any

from sparkdl.callbacks import MLflow
from sparkdl.cli import find
from sparkdl.cli.output import add_json, print_json
from sparkdl.runs.history import read_description

__all__ = ["add"]


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser("mlflow", help="mirror a run in MLflow")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    pushed = actions.add_parser(
        "push",
        help="mirror a run in MLflow; what is there already is not written again",
        description="Mirror a run in MLflow: trials, parameters, metrics, tags, files and models. "
        "What is there already is not written again. Options that are not given are those of the "
        "run's own callback.",
    )
    pushed.add_argument("name", metavar="RUN", help="folder of the run, or its id below the root")
    pushed.add_argument("--uri", help="tracking URI; default: $MLFLOW_TRACKING_URI")
    pushed.add_argument(
        "--experiment", help="default: $MLFLOW_EXPERIMENT_NAME, otherwise the name of the run"
    )
    pushed.add_argument(
        "--artifacts", choices=("all", "best", "none"), help="trials whose files are copied"
    )
    add_json(pushed)
    pushed.set_defaults(run=_push)


def _push(arguments: argparse.Namespace) -> int:
    run = find(arguments.name)
    names = ("uri", "experiment", "artifacts")
    options = {name: getattr(arguments, name) for name in names}
    mirror = MLflow.of_run(read_description(run.path), **options)
    try:
        parent = mirror.push(run)
    except ConnectionError as error:
        print(f"sparkdl: run {run.id} was not pushed: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print_json({"run": run.id, "mlflow_run_id": parent, "trials": len(run.trials)})
    else:
        print(f"Run {run.id} with {run.counts_text()} is run {parent} of {mirror!r}")
    return 0
