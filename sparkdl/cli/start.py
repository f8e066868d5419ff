"""Runs on the driver. `sparkdl resume`, `reproduce`, `plan`, `horovodrun`, `torchrun`."""

import argparse
import contextlib
import functools
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from sparkdl import experiment
from sparkdl.cli.dry_run import plan_program
from sparkdl.cli.output import add_json, find, print_json, print_remedy
from sparkdl.cli.spark_options import add_spark_options, use_spark_options
from sparkdl.errors import RunStoppedError, TrialFailedError
from sparkdl.runs import Run
from sparkdl.runs.remedies import in_shell

# Options of Horovod's own program for what Spark and sparkdl decide. The flags have no value.
_FLAGS = ("--gloo", "--mpi", "--verbose", "--disable-cache", "--no-stall-check")
_WITH_VALUE = """
    -H --hosts --hostfile --host-discovery-script -p --ssh-port --network-interfaces
    --network-interface --start-timeout --output-filename --fusion-threshold-mb --cycle-time-ms
    --cache-capacity --log-level --stall-check-warning-time-seconds
    --stall-check-shutdown-time-seconds
""".split()
# Those of torchrun.
_TORCHRUN_FLAGS = ("--standalone", "--no-python", "--run-path")
_TORCHRUN_WITH_VALUE = """
    --node-rank --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --max-restarts
    --monitor-interval --start-method --role --log-dir --log-line-prefix-template --master-addr
    --master-port --local-addr --logs-specs --event-log-handler
    -r --redirects -t --tee --local-ranks-filter
""".split()


def add_resume(parser: argparse.ArgumentParser) -> None:
    """`sparkdl resume RUN`: finish an unfinished run."""
    parser.add_argument("name", metavar="RUN", help="folder of the run, or its id below the root")
    parser.add_argument("--num-trials", type=int, help="new total number of trials of a search")
    parser.add_argument(
        "--retry",
        metavar="TRIALS",
        type=_retry_of,
        help="also run these trials again: failed, invalid, cancelled, or numbers such as 3,7",
    )
    parser.set_defaults(run=_resume)


def _retry_of(text: str) -> Any:
    return [int(word) if word.isdigit() else word for word in text.split(",")]


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
def printing_to_stderr() -> Iterator[None]:
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
    with printing_to_stderr() if arguments.json else contextlib.nullcontext():
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
        "--max-np", "--max-num-proc", type=int, help="grow to so many into idle slots (elastic)"
    )
    parser.add_argument("--timeline-filename", metavar="FILE", help="a timeline of rank 0")
    _add_script(parser, "Horovod's program", _FLAGS, _WITH_VALUE)
    parser.set_defaults(run=functools.partial(_horovodrun, parser))


def add_torchrun(parser: argparse.ArgumentParser) -> None:
    """`sparkdl torchrun -np 4 train.py`: a script of PyTorch in several ranks."""
    parser.add_argument("-np", "--num-proc", type=int, help="number of ranks")
    for option in ("nnodes", "nproc-per-node"):
        alias = f"--{option.replace('-', '_')}"
        text = "with torchrun's --nnodes or --nproc-per-node, the ranks are their product"
        parser.add_argument(f"--{option}", alias, type=_count, help=text, metavar="N")
    parser.add_argument("-m", "--module", action="store_true", help=argparse.SUPPRESS)
    options = [*_TORCHRUN_WITH_VALUE, *(_underscored(_TORCHRUN_WITH_VALUE))]
    _add_script(parser, "torchrun", (*_TORCHRUN_FLAGS, *_underscored(_TORCHRUN_FLAGS)), options)
    parser.set_defaults(run=functools.partial(_torchrun, parser))


def _count(text: str) -> int:
    """Return a number of nodes or of processes per node, of which torchrun takes words, too."""
    try:
        return int(text)
    except ValueError:
        why = "Spark chooses the hosts of the ranks, and with them their GPUs"
        if ":" in text:
            why = "a script cannot go on with fewer ranks; experiment.allreduce has elastic=True"
        raise argparse.ArgumentTypeError(f"{text!r} is no number: {why}. Pass -np 4") from None


def _underscored(options: Iterable[str]) -> list[str]:
    """Return the other spelling of long options: torchrun takes both."""
    names = [option[2:] for option in options if option.startswith("--")]
    return [f"--{name.replace('-', '_')}" for name in names if "-" in name]


def _add_script(
    parser: argparse.ArgumentParser, program: str, flags: Iterable[str], with_value: Iterable[str]
) -> None:
    """Add the arguments of a command that runs a script in several ranks.

    Args:
        parser: the parser of the command.
        program: the program whose place it takes.
        flags, with_value: options of that program that have no effect.
    """
    parser.add_argument("--name", help="name of the run; default: that of the script")
    parser.add_argument("--root", help="folder or URL of the runs")
    add_spark_options(parser)
    parser.epilog = f"The other options of {program} are accepted, and have no effect."
    hidden: dict[str, Any] = {"dest": "unused", "help": argparse.SUPPRESS}
    for flag in flags:
        parser.add_argument(flag, action="append_const", const=flag, **hidden)
    for option in with_value:
        parser.add_argument(option, action=_Unused, **hidden)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="[python] script.py, and its arguments"
    )


class _Unused(argparse.Action):
    """Note that an option was given, and drop its value."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        namespace.unused = [*(namespace.unused or ()), option]


def _horovodrun(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from sparkdl.horovod.launch import elastic_size

    least, most = arguments.min_np, arguments.max_np
    is_elastic = (least, most) != (None, None)
    num_workers: Any = arguments.num_proc
    if is_elastic:
        num_workers = elastic_size(num_workers, least, most)
    timeline = arguments.timeline_filename
    if is_elastic and timeline:
        parser.error("--timeline-filename is for runs without --min-np and --max-np")
    return _run_script(
        parser,
        arguments,
        experiment.horovod,
        num_workers=num_workers,
        elastic=is_elastic,
        env={"HOROVOD_TIMELINE": str(Path(timeline).resolve())} if timeline else {},
    )


def _torchrun(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    num_proc, by_node = arguments.num_proc, (arguments.nnodes, arguments.nproc_per_node)
    if (num_proc is None) == (by_node == (None, None)):
        parser.error("expected -np, or --nnodes and --nproc-per-node, which give the same number")
    if num_proc is None:
        num_proc = math.prod(1 if count is None else count for count in by_node)
    return _run_script(parser, arguments, experiment.allreduce, num_workers=num_proc)


def _run_script(
    parser: argparse.ArgumentParser,
    arguments: argparse.Namespace,
    verb: Callable[..., Run],
    **options: Any,
) -> int:
    """Run the script of a command line by a verb, with the lines of all ranks on the screen."""
    words = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if words and Path(words[0]).name.startswith("python") and not words[0].endswith(".py"):
        words = [word for word in words[1:2] if word != "-u"] + words[2:]
    if getattr(arguments, "module", False) or words[:1] == ["-m"]:
        name = [word for word in words if word != "-m"][:1] or ["MODULE"]
        parser.error(
            f"-m {name[0]}: a module cannot be run by its name; expected the path of its file, "
            f"such as {name[0].replace('.', '/')}.py"
        )
    if not words or not words[0].endswith(".py"):
        parser.error(f"expected python script.py, got {' '.join(arguments.command) or 'nothing'}")
    if arguments.unused:
        print(f"{', '.join(arguments.unused)}: no effect, Spark starts the ranks", file=sys.stderr)
    use_spark_options(arguments)
    options |= {"name": arguments.name, "root": arguments.root, "logs": "all"}
    return _run_and_print(lambda: verb(words[0], args=words[1:], **options))


def _run_and_print(start: Callable[[], Run]) -> int:
    """Start a run, print it as a table however it ends, and return the exit code of the command.

    Args:
        start: starts the run, and returns it when it has finished.
    """
    with in_shell():
        try:
            run = start()
        except (RunStoppedError, TrialFailedError) as error:
            print(error.run)
            print(f"sparkdl: {error}", file=sys.stderr)
            print_remedy(error.run, str(error))
            return 1
        except (KeyboardInterrupt, SystemExit) as error:
            if isinstance(stopped := getattr(error, "run", None), Run):
                print(stopped)
                print_remedy(stopped)
            raise
    print(run)
    return 0
