"""Runs on the driver. Serve the page on the loopback interface of this host."""

import functools
import html
import importlib
import logging
import os
import secrets
import socket
import threading
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import quote

from sparkdl.errors import ConfigError
from sparkdl.host.optional_packages import require
from sparkdl.runner.display.notebook_bar import is_notebook
from sparkdl.ui.live_runs import LiveRuns

if TYPE_CHECKING:
    from waitress.server import BaseWSGIServer

HOST = "127.0.0.1"
# A browser asks for six things at once, and a command waits for the answer of the driver.
THREADS = 12
# Seconds that an answer in progress has when the server ends.
ANSWER_S = 60
MAX_BODY_BYTES = 1 << 18
# Larger answers would go through a file; plotly.js has a few megabytes.
MAX_MEMORY_BYTES = 1 << 24


class Page:
    """A page that is served by a thread of this process, until `stop` or the end of the process.

    A notebook shows the page in a frame.

    Args:
        server: the server of the page.
        thread: the thread in which the server runs.
        token: the secret in the address of the page.
        run_id: the run that the page shows first; None for the list of runs.

    Attributes:
        url: the address, with the token.
    """

    def __init__(
        self,
        server: "BaseWSGIServer",
        thread: threading.Thread,
        token: str,
        run_id: str | None = None,
    ) -> None:
        self._server = server
        self._thread = thread
        self._token = token
        self._port = server.effective_port
        place = f"#/run/{quote(run_id, safe='')}" if run_id else "#/"
        # What comes after "#" is not sent to any server, and is in no log.
        self.url = f"http://{HOST}:{self._port}/{place}?token={token}"

    @property
    def is_served(self) -> bool:
        """The server answers: `stop` was not called."""
        return self._thread.is_alive()

    def at(self, run_id: str) -> "Page":
        """Return the same page, which shows a run first."""
        return Page(self._server, self._thread, self._token, run_id)

    def wait(self) -> None:
        """Wait until another thread calls `stop`."""
        self._thread.join()

    def stop(self) -> None:
        """End the server and free its port."""
        if self._thread.is_alive():
            from waitress.wasyncore import close_all

            # A thread that answers writes into the trigger at its end, which must be open then.
            self._server.task_dispatcher.shutdown(timeout=ANSWER_S)
            # The thread of the server closes its sockets itself, and its loop ends without them.
            # The lock keeps it from doing so before the trigger is pulled.
            with self._server.trigger.lock:
                self._server.trigger.thunks.append(lambda: close_all(self._server._map))
                self._server.trigger.pull_trigger()
            self._thread.join()

    def __enter__(self) -> "Page":
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<page {self.url}>"

    def _repr_html_(self) -> str:
        url = html.escape(self.url)
        style = "width:100%;height:760px;border:1px solid #8884;border-radius:6px"
        tunnel = f"ssh -L {self._port}:{HOST}:{self._port} HOST"
        return (
            f'<iframe src="{url}" style="{style}" title="sparkdl"></iframe>'
            f'<p><a href="{url}" target="_blank">Open the page in a tab</a>. If it does not load, '
            f"this kernel runs on another host: <code>{tunnel}</code> brings the page here.</p>"
        )


def serve(root: str, *, port: int = 0, control: bool = False) -> Page:
    """Serve a page that shows the runs and models below a root, while they go on.

    The server listens on 127.0.0.1 only. Its answers need the token in the address of the page,
    which is new for each server.

    Args:
        root: the directory or URL that holds the runs.
        port: the port; 0 takes a free one.
        control: let the page cancel, pause and change runs, add trials, and write tags and notes.

    Raises:
        ConfigError: if the packages of the extra `ui` are not installed, or if the port cannot be
            used.

    Example:
        >>> with serve("runs") as page:
        ...     page.url.split(":")[:2]
        ['http', '//127.0.0.1']
    """
    for package in ("waitress", "werkzeug"):
        require(package, "the page")
    from waitress import create_server

    from sparkdl.ui.application import Application

    # Plotly looks for pandas among the loaded modules, where a thread of the server could find the
    # half of pandas that another thread has imported.
    for name in ("pandas", "plotly.graph_objects"):
        importlib.import_module(name)
    # Several tabs ask for more things at once than there are threads. That is no problem.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    token = secrets.token_urlsafe(24)
    application = Application(LiveRuns(root), token, control)
    server = create_server(
        application,
        sockets=[_bind(port)],
        ident=None,
        threads=THREADS,
        asyncore_use_poll=True,  # `select` takes no descriptor above 1023.
        max_request_body_size=MAX_BODY_BYTES,
        outbuf_overflow=MAX_MEMORY_BYTES,
    )
    thread = threading.Thread(target=server.run, name="sparkdl-ui", daemon=True)
    thread.start()
    return Page(server, thread, token)


def _bind(port: int) -> socket.socket:
    """Return a socket with this port on the loopback interface.

    Raises:
        ConfigError: if the port cannot be used.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except (OSError, OverflowError, TypeError) as exc:
        listener.close()
        raise ConfigError(
            f"port is {port!r}, which cannot be used: {exc}. Pass another one, or 0 for a free one."
        ) from exc
    return listener


def show(path: str, *, port: int = 0, control: bool = False) -> Page:
    """Serve the page with a run first, print its address, and return the page.

    A notebook prints no address, as it shows the returned page. All runs of a root share a server,
    which ends with the process.

    Args:
        path: the run directory.
        port: the port; 0 takes a free one.
        control: let the page change runs, see `serve`.

    Raises:
        ConfigError: see `serve`.
    """
    root, run_id = path.rstrip("/").rsplit("/", 1)
    page = _shared_page(root, port, control, os.getpid())
    if not page.is_served:
        _shared_page.cache_clear()
        page = _shared_page(root, port, control, os.getpid())
    page = page.at(run_id)
    if not is_notebook():
        print(f"Run {run_id} is shown at {page.url} until this program ends.", flush=True)
    return page


@functools.cache
def _shared_page(root: str, port: int, control: bool, process: int) -> Page:
    """Return the page of a root. A cell of a notebook that runs again starts no other server."""
    return serve(root, port=port, control=control)
