"""Runs on the driver. A TensorBoard that follows a run, and ends with the object of the run."""

import html
import logging
import os
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparkdl.board.event_folder import EventFolder
from sparkdl.board.server import START_S, TensorBoardServer
from sparkdl.files import storage
from sparkdl.files.polling import Outages, shared_s
from sparkdl.runs.states import TrialState
from sparkdl.runs.views.figures import RunView

# Seconds between two looks for new files, on a local disk and on a remote store.
LOCAL_S = 2.0
REMOTE_S = 5.0

# Time that a look gets to end.
END_S = 2.0

# Pixels in a notebook.
HEIGHT = 760

_logger = logging.getLogger("sparkdl.board")


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
        self._frame: Any = None
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

    def _repr_html_(self) -> str:
        if not self.is_running:
            return html.escape(repr(self))
        # As for TensorBoard's own magic, an address by which a browser on another host gets here.
        proxy = os.environ.get("TENSORBOARD_PROXY_URL")
        url = html.escape(proxy.replace("%PORT%", f"{self._server.port}") if proxy else self.url)
        style = f"width:100%;height:{HEIGHT}px;border:1px solid #ccc;border-radius:6px"
        return f'<iframe src="{url}" style="{style}"></iframe><br><a href="{url}">{url}</a>'

    def display(self) -> None:
        """Show the page in a notebook as soon as there is something to see on it.

        A page that was opened before looks for data again only when the user reloads it.
        """
        from IPython.display import HTML, display

        text = "TensorBoard appears here as soon as a trial has started."
        self._frame = display(HTML(f"<em>{text}</em>"), display_id=True)

    def _fill_frame(self) -> None:
        if self._frame is not None and self._server.has_data():
            from IPython.display import HTML

            self._frame.update(HTML(self._repr_html_()))
            self._frame = None

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
            tensorboard._fill_frame()
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
