"""Runs on the driver. Commands as files store them: plain values, and no credentials."""

from collections.abc import Mapping
from typing import Any

from sparkdl.errors import ControlError
from sparkdl.runs.commands import Command
from sparkdl.search.space.grid import check_param_name, to_json_value
from sparkdl.secrets.masks import mask_params


def plain_command(command: Command) -> Command:
    """Return a command in the form in which its file stores it.

    Raises:
        ConfigError: if a parameter cannot be stored.
        ControlError: if a parameter looks like a credential.
    """
    if command.action != "enqueue":
        return command
    params = command.arguments["params"]
    row = {check_param_name(name): to_json_value(name, value) for name, value in params.items()}
    check_no_credentials(row)
    return Command("enqueue", {"params": row})


def check_no_credentials(params: Mapping[str, Any], secrets: tuple[str, ...] = ()) -> None:
    """Raise a ControlError if a parameter looks like a credential, or is one of the secrets."""
    if mask_params(params, secrets) != params:
        raise ControlError(
            "the parameters have values that look like credentials. Credentials are not stored, so "
            "the trial could not be resumed. Pass names of the credentials instead."
        )
