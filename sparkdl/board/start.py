"""Runs on the driver. Start TensorBoard for a run of this process, or of any other."""

import gc
from collections.abc import Callable

from sparkdl.board.followed_run import FollowedRun
from sparkdl.board.viewer import TensorBoard
from sparkdl.host.loopback import LOOPBACK
from sparkdl.host.optional_packages import require
from sparkdl.runs.run import Run


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
        MissingPackageError: if TensorBoard is not installed.
    """
    require("tensorboard", "TensorBoard")
    # Runs that nobody uses any more end their TensorBoard only when they are collected.
    gc.collect()
    return TensorBoard(run, current or FollowedRun(run.path).now, host, port)
