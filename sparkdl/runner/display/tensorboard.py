"""Runs on the driver. TensorBoard of a run whose verb got `tensorboard=True`."""

from collections.abc import Callable
from typing import cast

from sparkdl.board.start import start_tensorboard
from sparkdl.board.viewer import TensorBoard
from sparkdl.errors import ConfigError
from sparkdl.runner.display.notebook_bar import is_notebook
from sparkdl.runner.harmless import tolerated
from sparkdl.runs import Run

# The longest time that a run waits for the address of TensorBoard.
WAIT_S = 20.0


def open_tensorboard(run: Run) -> None:
    """Start TensorBoard for a run of this process, which goes on without it if that fails."""
    with tolerated("start TensorBoard"):
        run.attach_tensorboard(start_tensorboard(run, current=lambda: run))


def announce_tensorboard(run: Run, say: Callable[[str], None], shows_page: bool) -> None:
    """Show the address of TensorBoard, and in a notebook the page.

    Args:
        run: the run.
        say: shows a line.
        shows_page: show the page in a notebook.
    """
    with tolerated("show TensorBoard"):
        tensorboard = cast(TensorBoard, run.tensorboard())
        try:
            say(f"TensorBoard shows the run at {tensorboard.await_url(WAIT_S)}")
        except TimeoutError:
            say("TensorBoard is still starting: run.tensorboard().url is its address")
        except ConfigError as exc:
            say(f"Note: {exc}")
        else:
            if shows_page and is_notebook():
                tensorboard.display()
