"""Runs on the driver. `sparkdl doctor`: check this host and every executor of Spark."""

import argparse
import sys

from sparkdl.cli.output import add_json, print_json
from sparkdl.cli.spark_options import add_spark_options, use_spark_options
from sparkdl.doctor import examine


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `sparkdl doctor`."""
    parser.description = (
        "Start Spark as a program would, ask every executor, and print what was found, "
        "each fault with its remedy. The exit code is 0 without a fault, otherwise 1."
    )
    parser.add_argument(
        "--root", help="folder of the runs; default: the one that experiment.launch uses"
    )
    add_spark_options(parser)
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    use_spark_options(arguments)
    report = examine(arguments.root, say=lambda line: print(line, file=sys.stderr, flush=True))
    if arguments.json:
        print_json(report.to_dict())
    else:
        print(report)
    return 0 if report.is_healthy else 1
