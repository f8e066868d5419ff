"""Runs on the driver. Commands to the driver of a run, as files in the run directory.

A process gives a command by creating one file, `control/<time>-<token>.json`, which it writes once.
The driver answers with an event of the journal, `CommandHandled`, which has the name of the file.
The order of the names is that of the clocks of the processes. It decides only in which order the
driver handles commands that it finds together: commands are recognised by their names alone.
"""

import os
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkdl.files import storage
from sparkdl.files.jsonl import from_json, to_json
from sparkdl.files.layout import RunPaths
from sparkdl.runs.events import CommandHandled, Event
from sparkdl.runs.provenance import who

ACTIONS = ("cancel", "set", "enqueue", "pause", "unpause")

_SUFFIX = ".json"


@dataclass(frozen=True)
class Command:
    """A command to the driver of a run.

    Attributes:
        action: `cancel`, `set`, `enqueue`, `pause` or `unpause`.
        arguments: for `cancel` the number of a `trial`, for `set` the new values by name, for
            `enqueue` the `params` of a trial. An argument that is left out is not in the dict.

    Example:
        >>> print(Command("set", {"num_trials": 40}))
        set(num_trials=40)
    """

    action: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.action}({arguments})"


@dataclass(frozen=True)
class GivenCommand:
    """A command, with the process that gave it.

    Attributes:
        command: the command.
        by: the user and the host, such as `ann@laptop`.
        pid: the process.
        asked: seconds since 1970, by the clock of that host.
        id: the name of its file without the suffix; None for a command without a file.
    """

    command: Command
    by: str
    pid: int
    asked: float
    id: str | None = None

    @classmethod
    def here(cls, command: Command) -> "GivenCommand":
        """Return a command that this process gives now."""
        me = who()
        return cls(command, f"{me['user']}@{me['host']}", os.getpid(), round(time.time(), 3))

    def handled_event(self, refusal: str | None = None) -> CommandHandled:
        """Return the event of this command.

        Args:
            refusal: the reason for which the command is refused.
        """
        return CommandHandled(
            action=self.command.action,
            arguments=dict(self.command.arguments),
            by=self.by,
            pid=self.pid,
            id=self.id,
            asked=self.asked,
            refused=refusal,
        )


def write_command(paths: RunPaths, user_command: GivenCommand) -> str:
    """Write the file of a command, and return the id of the command.

    Raises:
        OSError: if the run directory cannot be written.
    """
    command_id = f"{time.time_ns() // 1000:017d}-{secrets.token_hex(4)}"
    content = {
        "action": user_command.command.action,
        "arguments": dict(user_command.command.arguments),
        "by": user_command.by,
        "pid": user_command.pid,
        "asked": user_command.asked,
    }
    # The name is unique, so that the store need not decide between several writers.
    storage.write(command_url(paths, command_id), to_json(content))
    return command_id


def command_url(paths: RunPaths, command_id: str) -> str:
    """Return the file of a command."""
    return storage.join(paths.control, f"{command_id}{_SUFFIX}")


def command_names(paths: RunPaths) -> list[str]:
    """Return the ids of all commands that were given, in the order of their names."""
    names = storage.list_names(paths.control)
    return [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]


def parse_command(command_id: str, data: bytes) -> GivenCommand | None:
    """Return the command in a file; None if the file is damaged or not complete yet."""
    try:
        content = from_json(data)
        return GivenCommand(
            Command(str(content["action"]), dict(content["arguments"])),
            str(content["by"]),
            int(content["pid"]),
            float(content["asked"]),
            command_id,
        )
    except (ValueError, KeyError, TypeError):
        return None


def enqueued_params(events: Iterable[Event]) -> dict[int, dict[str, Any]]:
    """Return the parameters of the trials that `enqueue` has added, by the number of the trial.

    Of the repeats of a configuration, only the first is in the dict.
    """
    handled_event = [event for event in events if isinstance(event, CommandHandled)]
    return {e.number: dict(e.arguments["params"]) for e in handled_event if e.number is not None}
