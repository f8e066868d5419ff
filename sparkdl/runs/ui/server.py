"""Runs on the driver. Serve the page on the loopback interface of this host."""

import html
import secrets
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from sparkdl.errors import ConfigError
from sparkdl.runs.history import load as _load
from sparkdl.runs.run import Run
from sparkdl.runs.ui.live_runs import LiveRuns

if TYPE_CHECKING:
    from waitress.server import BaseWSGIServer

__all__ = ["Page", "serve"]

HOST = "127.0.0.1"
THREADS = 8


class Page:
    """A page that is served by a thread of this process, until `stop` or the end of the process.

    Args:
        server: the server of the page.
        token: the secret in the address of the page.
        run_id: the run that the page shows first; None for the list of runs.

    Attributes:
        url: the address, with the token.
    """

    def __init__(self, server: "BaseWSGIServer", token: str, run_id: str | None) -> None:
        self._server = server
        place = f"#/run/{run_id}" if run_id else "#/"
        # What comes after "#" is not sent to any server, and is in no log.
        self.url = f"http://{HOST}:{server.effective_port}/{place}?token={token}"
        self._thread = threading.Thread(target=server.run, name="sparkdl-ui", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until another thread calls `stop`."""
        self._thread.join()

    def stop(self) -> None:
        """End the server and free its port."""
        if self._thread.is_alive():
            from waitress.wasyncore import close_all

            # The thread of the server closes its sockets itself, and its loop ends without them.
            self._server.trigger.pull_trigger(lambda: close_all(self._server._map))
            self._thread.join()
            self._server.task_dispatcher.shutdown()

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
        style = "width:100%;height:760px;border:1px solid #ccc;border-radius:6px"
        return f'<iframe src="{url}" style="{style}"></iframe><br><a href="{url}">{url}</a>'


def serve(
    root: str,
    *,
    port: int = 0,
    control: bool = False,
    run_id: str | None = None,
    load: Callable[[str], Run] = _load,
) -> Page:
    """Serve a page that shows the runs below a root, while they go on.

    The server listens on 127.0.0.1 only. Its answers need the token in the address of the page,
    which is new for each server.

    Args:
        root: the directory or URL that holds the runs.
        port: the port; 0 takes a free one.
        control: let the page cancel, pause and continue runs.
        run_id: the run that the page shows first; None for the list of runs.
        load: reads a run from its directory.

    Raises:
        ConfigError: if the packages of `sparkdl[ui]` are not installed, or if the port cannot be
            used.

    Example:
        >>> with serve("runs") as page:
        ...     page.url.split(":")[:2]
        ['http', '//127.0.0.1']
    """
    try:
        from waitress import create_server

        from sparkdl.runs.ui.application import Application
    except ImportError as exc:
        raise ConfigError(
            f"the page needs packages that are not installed ({exc}): pip install 'sparkdl[ui]'."
        ) from exc
    token = secrets.token_urlsafe(24)
    application = Application(LiveRuns(root, load), token, control)
    try:
        # Threads are for the answers; an address in a log would hold no token.
        server = create_server(application, host=HOST, port=port, threads=THREADS, ident=None)
    except OSError as exc:
        raise ConfigError(
            f"port is {port}, which cannot be used: {exc.strerror}. Pass another one, or 0 for a "
            "free one."
        ) from exc
    return Page(server, token, run_id)
