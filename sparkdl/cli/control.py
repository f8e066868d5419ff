"""Runs on the driver. Common parts of the verbs that control a run of another process."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkdl.cli import find
from sparkdl.errors import ConfigError, ControlError
from sparkdl.runs import Run

__all__ = ["add_verb", "carry_out", "parse_values"]

_WORDS = {"True": True, "False": False, "None": None}


def add_verb(verbs: Any, name: str, text: str) -> Any:
    """Add a verb with the arguments RUN and --json to the parser, and return its parser."""
    parser = verbs.add_parser(name, help=text)
    parser.add_argument("name", metavar="RUN", help="folder of the run, or its id below the root")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    return parser


def carry_out(
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
