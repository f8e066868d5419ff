"""Runs on the driver. `sparkdl horovodrun -np 4 python train.py`: a script in several ranks."""

import argparse
import functools
import re
import sys
from pathlib import Path
from typing import Any

from sparkdl import experiment
from sparkdl.cli import run_and_print
from sparkdl.cli.spark_options import add_spark_options, use_spark_options
from sparkdl.horovod.script import run_script

__all__ = ["add"]

# Options of Horovod's own program for what Spark and sparkdl decide. The flags have no value.
_FLAGS = ("--gloo", "--mpi", "--verbose", "--disable-cache", "--no-stall-check")
_WITH_VALUE = (
    *("-H", "--hosts", "--hostfile", "--host-discovery-script", "-p", "--ssh-port"),
    *("--network-interfaces", "--network-interface", "--start-timeout", "--output-filename"),
    *("--fusion-threshold-mb", "--cycle-time-ms", "--cache-capacity", "--log-level"),
    *("--stall-check-warning-time-seconds", "--stall-check-shutdown-time-seconds"),
)
_IMPORTS_TORCH = re.compile(r"^\s*(import|from) torch\b", re.MULTILINE)


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser("horovodrun", help="run a script for Horovod in several ranks")
    parser.add_argument("-np", "--num-proc", type=int, required=True, help="number of ranks")
    parser.add_argument(
        "--min-np", "--min-num-proc", type=int, help="go on without lost ranks (elastic)"
    )
    parser.add_argument(
        "--max-np", "--max-num-proc", type=int, help="number of ranks of an elastic run"
    )
    parser.add_argument("--timeline-filename", metavar="FILE", help="a timeline of rank 0")
    parser.add_argument("--name", help="name of the run; default: that of the script")
    parser.add_argument("--root", help="folder or URL of the runs")
    add_spark_options(parser)
    parser.epilog = "The other options of Horovod's program are accepted, and have no effect."
    hidden = {"dest": "unused", "help": argparse.SUPPRESS}
    for flag in _FLAGS:
        parser.add_argument(flag, action="append_const", const=flag, **hidden)
    for option in _WITH_VALUE:
        parser.add_argument(option, action=_Unused, **hidden)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="python script.py, and its arguments"
    )
    parser.set_defaults(run=functools.partial(_run, parser))


class _Unused(argparse.Action):
    """Note that an option was given, and drop its value."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        namespace.unused = [*(namespace.unused or ()), option]


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    words = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if words and Path(words[0]).name.startswith("python"):
        words = [word for word in words[1:2] if word != "-u"] + words[2:]
    if not words or not words[0].endswith(".py"):
        parser.error(f"expected python script.py, got {' '.join(arguments.command) or 'nothing'}")
    path = Path(words[0]).resolve()
    source = path.read_text()
    if arguments.unused:
        print(f"{', '.join(arguments.unused)}: no effect, Spark starts the ranks", file=sys.stderr)
    is_elastic = arguments.min_np is not None or arguments.max_np is not None
    timeline = arguments.timeline_filename
    if is_elastic and timeline:
        parser.error("--timeline-filename is for runs without --min-np and --max-np")
    use_spark_options(arguments)
    return run_and_print(
        lambda: experiment.horovod(
            functools.partial(run_script, str(path), source, words[1:], str(Path.cwd())),
            num_workers=arguments.num_proc if arguments.max_np is None else arguments.max_np,
            elastic=is_elastic,
            env={"HOROVOD_TIMELINE": str(Path(timeline).resolve())} if timeline else {},
            name=arguments.name or path.stem,
            framework="torch" if _IMPORTS_TORCH.search(source) else "tensorflow",
            root=arguments.root,
            logs="all",
        )
    )
