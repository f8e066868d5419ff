"""Runs on the driver. `sparkdl ui`, `tensorboard` and `mlflow`: look at runs in other programs."""

import argparse
import sys

from sparkdl.callbacks import MLflow
from sparkdl.cli.output import add_json, find, print_json
from sparkdl.cluster.root import resolve_root
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.host.loopback import LOOPBACK
from sparkdl.runs.foreign_folder import other_owner
from sparkdl.runs.history import read_description
from sparkdl.ui import serve


def add_ui(parser: argparse.ArgumentParser) -> None:
    """`sparkdl ui [ROOT]`: show runs and models in a browser."""
    parser.add_argument(
        "root",
        metavar="ROOT",
        nargs="?",
        help="folder of the runs; default: $SPARKDL_ROOT, otherwise ./runs",
    )
    parser.add_argument("--port", type=int, default=0, help="by default a free one")
    parser.add_argument(
        "--control",
        action="store_true",
        help="let the page cancel, pause and change runs, add trials, and write tags and notes",
    )
    parser.set_defaults(run=_ui)


def _ui(arguments: argparse.Namespace) -> int:
    root = resolve_root(arguments.root)
    with serve(root, port=arguments.port, control=arguments.control) as page:
        print(f"The runs in {root} are shown at\n{page.url}\nCtrl-C ends the page.", flush=True)
        page.wait()
    return 0


def add_tensorboard(parser: argparse.ArgumentParser) -> None:
    """`sparkdl tensorboard RUN`: show a run in TensorBoard."""
    parser.description = (
        "Show a run in TensorBoard until Ctrl-C, and follow a run that goes on. The "
        "event files of a run on a store are copied to a temporary folder."
    )
    parser.add_argument("name", metavar="RUN", help="folder of the run, or its id below the root")
    parser.add_argument("--port", type=int, default=0, help="by default a free one")
    parser.add_argument(
        "--host",
        default=LOOPBACK,
        help="the address to listen on; TensorBoard asks nobody for a password; default: "
        "%(default)s",
    )
    parser.set_defaults(run=_tensorboard)


def _tensorboard(arguments: argparse.Namespace) -> int:
    run = find(arguments.name)
    if not storage.is_local(run.path):
        print(f"Copying the event files of {len(run.trials)} trials from {run.path}", flush=True)
    with run.tensorboard(host=arguments.host, port=arguments.port) as tensorboard:
        print(f"TensorBoard shows run {run.id} at\n{tensorboard.url}\nCtrl-C ends it.", flush=True)
        tensorboard.wait()
    print("sparkdl: TensorBoard has ended", file=sys.stderr)
    return 2


def add_mlflow(parser: argparse.ArgumentParser) -> None:
    """`sparkdl mlflow push RUN`: mirror a run in MLflow, at any time."""
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
    if arguments.uri is None and (owner := other_owner(run.path)):
        # The server gets the credentials of this user.
        raise ConfigError(
            f"run {run.id} belongs to user {owner}, who has chosen its tracking server. Pass the "
            "server that you trust: --uri http://mlflow:5000."
        )
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
