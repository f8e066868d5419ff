"""Runs on the driver (pure). The place of maggy's ablators, of which `loco` is the one."""

from typing import Any

from sparkdl.maggy.refusals import refuse


def __getattr__(name: str) -> Any:
    raise refuse(__name__, name, ())
