"""Runs on the driver (pure). maggy's optimizers that learn from the trials before."""

from typing import Any

from sparkdl.maggy.optimizer.optimizers import GP, TPE
from sparkdl.maggy.refusals import refuse

__all__ = ["GP", "TPE"]


def __getattr__(name: str) -> Any:
    raise refuse(__name__, name, __all__)
