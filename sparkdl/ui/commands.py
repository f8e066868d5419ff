"""Runs on the driver. Carry out what a user of the page asks for, as any other process would."""

from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.runs.run import Run


def carry_out(run: Run, command: Any) -> None:
    """Give a command to the driver of a run, or write an annotation of the run.

    Args:
        run: the run.
        command: what the page sent: the name of the `action`, and what belongs to the action.

    Raises:
        ConfigError: if the command makes no sense.
        ControlError: if the driver refuses the command, or no driver answers.
    """
    match command:
        # A command with anything else is not taken for one that ends the whole run.
        case {"action": "cancel", **more} if not more:
            run.cancel()
        case {"action": "cancel", "trial": int(number), **more} if not more:
            run.cancel(number)
        case {"action": "pause"}:
            run.pause()
        case {"action": "unpause"}:
            run.unpause()
        case {"action": "set", "values": dict(values)} if "self" not in values:
            run.set(**values)
        case {"action": "enqueue", "params": dict(params)}:
            run.enqueue(params)
        case {"action": "tag", "tags": list(tags)}:
            run.tag(*tags)
        case {"action": "untag", "tags": list(tags)}:
            run.untag(*tags)
        case {"action": "note", "text": text}:
            run.note(text)
        case _:
            raise ConfigError(f"the page sent {command!r}, which is no command.")
