"""Runs on the driver. Start TensorBoard for a run of this process, or of any other."""

import gc
from collections.abc import Callable

from sparkdl.runs.run import Run
from sparkdl.runs.tensorboard.followed_run import FollowedRun
from sparkdl.runs.tensorboard.viewer import TensorBoard
from sparkdl.tensorboard_server import LOOPBACK, check_installed

__all__ = ["start_tensorboard"]


def start_tensorboard(
    run: Run,
    *,
    host: str = LOOPBACK,
    port: int = 0,
    current: Callable[[], Run] | None = None,
) -> TensorBoard:
    """Start TensorBoard for a run, without waiting until TensorBoard answers.

    Args:
        run: the run.
        host: the address or name on which TensorBoard listens.
        port: the port; with 0, TensorBoard chooses a free one.
        current: returns the run as it is now; by default it is read from the run directory.

    Raises:
        ConfigError: if TensorBoard is not installed.
    """
    check_installed()
    # Runs that nobody uses any more end their TensorBoard only when they are collected.
    gc.collect()
    return TensorBoard(run, current or FollowedRun(run.path).now, host, port)
