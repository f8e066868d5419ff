"""Runs on the driver. A TensorBoard that follows a run, and ends with the object of the run."""

import logging
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparkdl import storage
from sparkdl.polling import Outages, shared_s
from sparkdl.runs.figures import RunView
from sparkdl.runs.states import TrialState
from sparkdl.runs.tensorboard.event_folder import EventFolder
from sparkdl.tensorboard_server import START_S, TensorBoardServer

__all__ = ["TensorBoard"]

# Seconds between two looks for new files, on a local disk and on a remote store.
LOCAL_S = 2.0
REMOTE_S = 5.0

# Time that a look gets to end.
END_S = 2.0

# Pixels in a notebook.
HEIGHT = 760

_logger = logging.getLogger("sparkdl.runs")


class TensorBoard:
    """A TensorBoard process that shows a run, and follows the run while it goes on.

    A context manager that ends TensorBoard. A notebook shows the page. Without `stop`, TensorBoard
    ends when neither this object nor its run is in use any more, and with the program.

    Args:
        run: the run.
        current: returns the run as it is now.
        host, port: see `TensorBoardServer`.
    """

    def __init__(self, run: RunView, current: Callable[[], RunView], host: str, port: int) -> None:
        self._run = run
        self._current = current
        self._outages = Outages(f"read the event files of run {run.id}")
        folder = tempfile.mkdtemp(prefix="sparkdl-tensorboard-")
        # The process removes the folder whatever becomes of this one.
        logdir = Path(folder, run.id)  # The page shows the name.
        self._server = TensorBoardServer(
            str(logdir), host=host, port=port, title=run.name, folder=folder
        )
        self._files = EventFolder(logdir)
        is_over = threading.Event()
        thread = threading.Thread(
            target=_follow, args=(weakref.ref(self), is_over), name="tensorboard", daemon=True
        )
        self._end = weakref.finalize(self, _end, self._server, self._files, thread, is_over)
        # TensorBoard shows at once what it finds at its beginning.
        self._refresh()
        self._server.begin()
        thread.start()

    def await_url(self, timeout_s: float = START_S) -> str:
        """Return the URL as soon as TensorBoard answers, see `TensorBoardServer.await_url`."""
        return self._server.await_url(timeout_s)

    @property
    def url(self) -> str:
        """The URL of TensorBoard on this host."""
        return self.await_url()

    @property
    def is_running(self) -> bool:
        """True until TensorBoard has ended."""
        return self._end.alive and self._server.is_running

    def wait(self) -> None:
        """Wait until TensorBoard ends."""
        self._server.wait()

    def stop(self) -> None:
        """End TensorBoard, and remove its temporary files."""
        self._end()

    def __enter__(self) -> "TensorBoard":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        if not self.is_running:
            return f"<TensorBoard of run {self._run.id}, which has ended>"
        return f"<TensorBoard of run {self._run.id} at {self.url}>"

    def _ipython_display_(self) -> None:
        print(repr(self))
        if self.is_running:
            self.display()

    def display(self) -> None:
        """Show the page in a notebook, through the proxy in `TENSORBOARD_PROXY_URL` if set."""
        from tensorboard import notebook

        notebook.display(self._server.port, HEIGHT)

    def _refresh(self) -> float:
        """Add new files; return the seconds until the next look."""
        run = self._run
        with self._outages.tolerated():
            run = self._current()
            self._files.refresh(run)
        if storage.is_local(run.path):
            return LOCAL_S
        return shared_s(REMOTE_S, sum(t.state == TrialState.RUNNING for t in list(run.trials)))


def _follow(reference: "weakref.ref[TensorBoard]", is_over: threading.Event) -> None:
    """Refresh the files of a TensorBoard, without keeping its object in use."""
    pause_s: float = LOCAL_S
    has_failed = False
    while not is_over.wait(pause_s):
        tensorboard = reference()
        if tensorboard is None or not tensorboard.is_running:
            return
        try:
            pause_s = tensorboard._refresh()
        except Exception as exc:  # noqa: BLE001 TensorBoard goes on with what it has.
            if not threading.main_thread().is_alive():
                return  # Python ends, and starts no more threads.
            if not has_failed:
                _logger.warning("failed to read the run for TensorBoard: %r. Trying again.", exc)
            has_failed = True
        del tensorboard


def _end(
    server: TensorBoardServer, files: EventFolder, thread: threading.Thread, is_over: Any
) -> None:
    is_over.set()
    files.close()
    # The garbage collector may have called this in any thread.
    if thread.is_alive() and thread is not threading.current_thread():
        thread.join(END_S)
    server.stop()
