"""Runs on the driver (pure). The place of a class that sparkdl does not have, for TensorFlow."""

from typing import Any

from sparkdl.maggy.refusals import refuse


def __getattr__(name: str) -> Any:
    raise refuse(__name__, name, ())
