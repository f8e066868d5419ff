"""Runs on the driver. `sparkdl cancel`, `pause`, `unpause`, `set` and `enqueue`: control a run."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkdl.cli.output import find
from sparkdl.errors import ConfigError, ControlError
from sparkdl.runs import Run
from sparkdl.runs.remedies import in_shell

_WORDS = {"True": True, "False": False, "None": None}


def add_cancel(parser: argparse.ArgumentParser) -> None:
    """`sparkdl cancel RUN [TRIAL]`: cancel a run, or one of its trials."""
    _add_run(parser)
    parser.add_argument("trial", metavar="TRIAL", type=int, nargs="?", help="number of a trial")
    parser.set_defaults(run=_cancel)


def _cancel(arguments: argparse.Namespace) -> int:
    number = arguments.trial
    what = {"action": "cancel", "trial": number}
    text = "the run is being cancelled" if number is None else f"trial {number} is being cancelled"
    return _carry_out(arguments, what, lambda run: run.cancel(number), text)


def add_pause(parser: argparse.ArgumentParser) -> None:
    """`sparkdl pause RUN`: start no more trials; running trials go on."""
    _add_run(parser)
    parser.set_defaults(run=_pause)


def _pause(arguments: argparse.Namespace) -> int:
    what, text = {"action": "pause"}, "paused; running trials go on"
    return _carry_out(arguments, what, lambda run: run.pause(), text)


def add_unpause(parser: argparse.ArgumentParser) -> None:
    """`sparkdl unpause RUN`: start trials again after `sparkdl pause`."""
    _add_run(parser)
    parser.set_defaults(run=_unpause)


def _unpause(arguments: argparse.Namespace) -> int:
    return _carry_out(arguments, {"action": "unpause"}, lambda run: run.unpause(), "goes on")


def add_set(parser: argparse.ArgumentParser) -> None:
    """`sparkdl set RUN name=value ...`: change limits of a run that goes on."""
    _add_run(parser)
    parser.add_argument(
        "values",
        metavar="NAME=VALUE",
        nargs="+",
        help="parallelism=8, num_trials=40, timeout_s=3600 or stop.METRIC=0.95",
    )
    parser.set_defaults(run=_set_limits)


def _set_limits(arguments: argparse.Namespace) -> int:
    values = parse_values(arguments.values)
    what = {"action": "set", "values": values}
    return _carry_out(arguments, what, lambda run: run.set(**values), " ".join(arguments.values))


def add_enqueue(parser: argparse.ArgumentParser) -> None:
    """`sparkdl enqueue RUN name=value ...`: add a trial to a run that goes on."""
    _add_run(parser)
    parser.add_argument(
        "params", metavar="NAME=VALUE", nargs="*", help="parameters, such as lr=0.01 act=relu"
    )
    parser.set_defaults(run=_enqueue)


def _enqueue(arguments: argparse.Namespace) -> int:
    params = parse_values(arguments.params)
    what = {"action": "enqueue", "params": params}
    text = f"a trial was added: {' '.join(arguments.params)}".rstrip(": ")
    return _carry_out(arguments, what, lambda run: run.enqueue(params), text)


def _add_run(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that these verbs have in common."""
    parser.add_argument("name", metavar="RUN", help="folder of the run, or its id below the root")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def _carry_out(
    arguments: argparse.Namespace,
    what: Mapping[str, Any],
    command: Callable[[Run], None],
    text: str,
) -> int:
    """Give a command to the driver of a run, print the answer, and return the exit code.

    Args:
        arguments: the command line.
        what: the command, for the answer as JSON.
        command: gives the command to the driver.
        text: the answer if the driver has carried out the command.

    Raises:
        ControlError: if the command was not carried out and the answer is not wanted as JSON.
    """
    run = find(arguments.name)
    answer = {"run": run.id, "path": run.path, **what}
    try:
        with in_shell():
            command(run)
    except ControlError as error:
        if not arguments.json:
            raise
        print(json.dumps({**answer, "done": False, "error": str(error)}))
        return 2
    print(json.dumps({**answer, "done": True}) if arguments.json else f"{run.id}: {text}")
    return 0


def parse_values(words: Sequence[str]) -> dict[str, Any]:
    """Return the values of words such as `units=64`; a value is JSON, or else a text.

    A name with a dot makes a dict: `stop.accuracy=0.95`.

    Raises:
        ConfigError: if a word has no `=`, or a name occurs twice.

    Example:
        >>> parse_values(["lr=1e-3", "act=relu", "units=[64, 32]", "stop.accuracy=0.95"])
        {'lr': 0.001, 'act': 'relu', 'units': [64, 32], 'stop': {'accuracy': 0.95}}
    """
    values: dict[str, Any] = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not (name and sign):
            raise ConfigError(f"{word!r} is no name=value, such as parallelism=8.")
        first, _, key = name.partition(".")
        inner = values.setdefault(first, {}) if key else values
        if not isinstance(inner, dict) or (key or first) in inner:
            raise ConfigError(f"{name!r} is given twice.")
        inner[key or first] = _parse_value(text)
    return values


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return _WORDS.get(text, text)
