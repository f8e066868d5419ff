"""Runs on the driver. `sparkdl tensorboard RUN`: show a run in TensorBoard."""

import argparse
import sys
from typing import Any

from sparkdl import storage
from sparkdl.cli import find
from sparkdl.tensorboard_server import LOOPBACK

__all__ = ["add"]


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser(
        "tensorboard",
        help="show a run in TensorBoard",
        description="Show a run in TensorBoard until Ctrl-C, and follow a run that goes on. The "
        "event files of a run on a store are copied to a temporary folder.",
    )
    parser.add_argument("name", metavar="RUN", help="folder of the run, or its id below the root")
    parser.add_argument("--port", type=int, default=0, help="by default a free one")
    parser.add_argument(
        "--host",
        default=LOOPBACK,
        help="the address to listen on; TensorBoard asks nobody for a password; default: "
        "%(default)s",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    run = find(arguments.name)
    if not storage.is_local(run.path):
        print(f"Copying the event files of {len(run.trials)} trials from {run.path}", flush=True)
    with run.tensorboard(host=arguments.host, port=arguments.port) as tensorboard:
        print(f"TensorBoard shows run {run.id} at\n{tensorboard.url}\nCtrl-C ends it.", flush=True)
        tensorboard.wait()
    print("sparkdl: TensorBoard has ended", file=sys.stderr)
    return 2
