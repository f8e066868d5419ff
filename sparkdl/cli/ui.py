"""Runs on the driver. `sparkdl ui [ROOT]`: show the runs in a browser."""

import argparse
import webbrowser
from typing import Any

from sparkdl import config, experiment, storage
from sparkdl.runs.ui import serve

__all__ = ["add"]


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser("ui", help="show the runs below a root in a browser")
    parser.add_argument("root", metavar="ROOT", nargs="?", help="the directory or URL of the runs")
    parser.add_argument("--port", type=int, default=0, help="by default a free one")
    parser.add_argument("--control", action="store_true", help="let the page cancel and pause runs")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    root = storage.absolute(config.resolve("root", arguments.root) or "runs")
    with serve(root, port=arguments.port, control=arguments.control, load=experiment.load) as page:
        print(f"The runs in {root} are shown at\n{page.url}\nCtrl-C ends the page.", flush=True)
        if not arguments.no_browser:
            webbrowser.open(page.url)
        page.wait()
    return 0
