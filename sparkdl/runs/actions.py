"""Runs on the driver. Actions of runs that rooms above implement; `experiment` sets them."""

from collections.abc import Callable
from typing import Any, Protocol


class TensorBoardPage(Protocol):
    """A page in the browser, as `Run.tensorboard` returns it: a child process serves it."""

    @property
    def url(self) -> str:
        """The address of the page on this host."""

    @property
    def is_running(self) -> bool:
        """True until the server has ended."""

    def wait(self) -> None:
        """Wait until the server ends."""

    def stop(self) -> None:
        """End the server."""

    def __enter__(self) -> "TensorBoardPage":
        """Return the page, whose server ends with the block."""

    def __exit__(self, *_: object) -> None:
        """End the server."""


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
