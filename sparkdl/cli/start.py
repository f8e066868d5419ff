"""Runs on the driver. `sparkdl resume`, `reproduce`, `plan` and `horovodrun`: start runs."""

import argparse
import contextlib
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sparkdl import experiment
from sparkdl.cli.output import add_json, find, print_json
from sparkdl.cli.spark_options import add_spark_options, use_spark_options
from sparkdl.errors import RunStoppedError, TrialFailedError
from sparkdl.horovod.script import run_script
from sparkdl.runner.dry_run import plan_program
from sparkdl.runs import Run

__all__ = ["add_horovodrun", "add_plan", "add_reproduce", "add_resume"]

# Options of Horovod's own program for what Spark and sparkdl decide. The flags have no value.
_FLAGS = ("--gloo", "--mpi", "--verbose", "--disable-cache", "--no-stall-check")
_WITH_VALUE = """
    -H --hosts --hostfile --host-discovery-script -p --ssh-port --network-interfaces
    --network-interface --start-timeout --output-filename --fusion-threshold-mb --cycle-time-ms
    --cache-capacity --log-level --stall-check-warning-time-seconds
    --stall-check-shutdown-time-seconds
""".split()
_IMPORTS_TORCH = re.compile(r"^\s*(import|from) torch\b", re.MULTILINE)


def add_resume(parser: argparse.ArgumentParser) -> None:
    """`sparkdl resume RUN`: finish an unfinished run."""
    parser.add_argument("name", metavar="RUN", help="folder of the run, or its id below the root")
    parser.add_argument("--num-trials", type=int, help="new total number of trials of a search")
    parser.add_argument(
        "--retry",
        metavar="TRIALS",
        type=_retry_of,
        help="also run these trials again: failed, cancelled, or numbers such as 3,7",
    )
    parser.set_defaults(run=_resume)


def _retry_of(text: str) -> Any:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        return text


def _resume(arguments: argparse.Namespace) -> int:
    return _run_and_print(
        lambda: experiment.resume(
            find(arguments.name), num_trials=arguments.num_trials, retry=arguments.retry
        )
    )


def add_reproduce(parser: argparse.ArgumentParser) -> None:
    """`sparkdl reproduce RUN`: run a run again, as a new run."""
    parser.add_argument("name", metavar="RUN", help="folder of the run, or its id below the root")
    parser.add_argument(
        "--root", help="folder of the new run; default: the folder that contains RUN"
    )
    parser.set_defaults(run=_reproduce)


def _reproduce(arguments: argparse.Namespace) -> int:
    options = {"root": arguments.root} if arguments.root else {}
    return _run_and_print(lambda: experiment.reproduce(find(arguments.name), **options))


def add_plan(parser: argparse.ArgumentParser) -> None:
    """`sparkdl plan PROGRAM`: print the runs that a program would start."""
    parser.description = (
        "Run a program until it uses the result of a run, and print which runs it "
        "would start: their trials, how many at once, and about how long. Nothing is trained. The "
        "exit code is 1 if a run would be refused. Options of this command come before PROGRAM."
    )
    add_spark_options(parser)
    add_json(parser)
    parser.add_argument("program", metavar="PROGRAM", help="path of the Python program")
    parser.add_argument(
        "arguments",
        metavar="ARGUMENT",
        nargs=argparse.REMAINDER,
        help="command line arguments of the program",
    )
    parser.set_defaults(run=_plan)


@contextlib.contextmanager
def _printing_to_stderr() -> Iterator[None]:
    """Let this process, and the processes that it starts, print to the standard error."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def _plan(arguments: argparse.Namespace) -> int:
    use_spark_options(arguments)
    # What the program prints must not be taken for the JSON document.
    with _printing_to_stderr() if arguments.json else contextlib.nullcontext():
        plan = plan_program(arguments.program, arguments.arguments)
    if arguments.json:
        print_json(plan.to_dict())
    else:
        print(plan)
    return 0 if plan.is_ready else 1


def add_horovodrun(parser: argparse.ArgumentParser) -> None:
    """`sparkdl horovodrun -np 4 python train.py`: a script in several ranks."""
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
    hidden: dict[str, Any] = {"dest": "unused", "help": argparse.SUPPRESS}
    for flag in _FLAGS:
        parser.add_argument(flag, action="append_const", const=flag, **hidden)
    for option in _WITH_VALUE:
        parser.add_argument(option, action=_Unused, **hidden)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="python script.py, and its arguments"
    )
    parser.set_defaults(run=functools.partial(_horovodrun, parser))


class _Unused(argparse.Action):
    """Note that an option was given, and drop its value."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        namespace.unused = [*(namespace.unused or ()), option]


def _horovodrun(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
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
    return _run_and_print(
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


def _run_and_print(start: Callable[[], Run]) -> int:
    """Start a run, print it as a table however it ends, and return the exit code of the command.

    Args:
        start: starts the run, and returns it when it has finished.
    """
    try:
        run = start()
    except (RunStoppedError, TrialFailedError) as error:
        print(error.run)
        print(f"sparkdl: {error}", file=sys.stderr)
        return 1
    print(run)
    return 0
