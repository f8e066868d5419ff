"""Runs on the driver. `sparkdl ui [ROOT]`: show runs and models in a browser."""

import argparse
from typing import Any

from sparkdl import config, storage
from sparkdl.ui import serve

__all__ = ["add"]


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser("ui", help="show runs and models in a browser")
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
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    root = storage.absolute(config.resolve("root", arguments.root) or "runs")
    with serve(root, port=arguments.port, control=arguments.control) as page:
        print(f"The runs in {root} are shown at\n{page.url}\nCtrl-C ends the page.", flush=True)
        page.wait()
    return 0
