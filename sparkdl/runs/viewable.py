"""Runs on the driver. The part of a run that shows the run in a browser."""

from typing import TYPE_CHECKING

from sparkdl.runs.actions import Actions
from sparkdl.tensorboard_server import LOOPBACK

if TYPE_CHECKING:
    from sparkdl.runs.tensorboard.viewer import TensorBoard

__all__ = ["Viewable"]


class Viewable:
    """The base class of a run, with the methods that start a server for a browser."""

    id: str
    path: str
    _tensorboard: "TensorBoard | None"

    def tensorboard(self, *, host: str = LOOPBACK, port: int = 0) -> "TensorBoard":
        """Start TensorBoard for this run, or return the one that was started before.

        The returned object has `url` and `stop()`, is a context manager, and shows the page in a
        notebook. TensorBoard follows a run that goes on, here or elsewhere. TensorBoard ends when
        neither that object nor the run is in use any more, and with the program.

        Args:
            host: the address on which TensorBoard listens. TensorBoard asks nobody for a password.
            port: the port; with 0, TensorBoard chooses a free one.

        Raises:
            ConfigError: if TensorBoard is not installed.
        """
        if self._tensorboard is None or not self._tensorboard.is_running:
            self._tensorboard = Actions.tensorboard(self, host=host, port=port)
        return self._tensorboard

    def attach_tensorboard(self, tensorboard: "TensorBoard") -> None:
        """Set the TensorBoard that `tensorboard()` returns."""
        self._tensorboard = tensorboard
