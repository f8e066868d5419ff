"""Runs on the driver. Actions of runs that rooms above implement; `experiment` sets them."""

from collections.abc import Callable
from typing import Any

__all__ = ["Actions"]


class Actions:
    """Functions behind methods of runs and trials, which this room must not import.

    Attributes:
        debug: implements `Trial.debug`.
        tensorboard: implements `Run.tensorboard`.
        ui: implements `Run.ui`.
    """

    debug: Callable[..., Any]
    tensorboard: Callable[..., Any]
    ui: Callable[..., Any]
