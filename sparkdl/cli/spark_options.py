"""Runs on the driver. The options of commands that start Spark: `--master` and `--conf`."""

import argparse
import os
import shlex

_VARIABLE = "PYSPARK_SUBMIT_ARGS"


def add_spark_options(parser: argparse.ArgumentParser) -> None:
    """Add the options by which a user chooses the Spark to start."""
    parser.add_argument(
        "--master", help="master URL of Spark; default: that of its configuration, or local[*]"
    )
    parser.add_argument(
        "--conf",
        metavar="KEY=VALUE",
        action="append",
        type=_setting,
        default=[],
        help="a setting of Spark; may be repeated",
    )


def _setting(text: str) -> str:
    name, separator, _ = text.partition("=")
    if not (name and separator):
        raise argparse.ArgumentTypeError(f"{text!r} is no setting; expected KEY=VALUE")
    return text


def use_spark_options(arguments: argparse.Namespace) -> None:
    """Let the next Spark session of this process start with the options.

    Settings that the program itself passes to its session have priority.

    Example:
        >>> use_spark_options(argparse.Namespace(master="local[2]", conf=["spark.task.cpus=2"]))
        >>> os.environ.pop("PYSPARK_SUBMIT_ARGS")
        "--master 'local[2]' --conf spark.task.cpus=2 pyspark-shell"
    """
    words = ["--master", arguments.master] if arguments.master else []
    for setting in arguments.conf:
        words += ["--conf", setting]
    if words:
        earlier = os.environ.get(_VARIABLE, "pyspark-shell").rstrip().removesuffix("pyspark-shell")
        os.environ[_VARIABLE] = f"{earlier}{shlex.join(words)} pyspark-shell"
