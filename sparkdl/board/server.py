"""Runs anywhere. Run TensorBoard as a process that ends with the process that started it."""

import atexit
import contextlib
import http.client
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.host.loopback import LOOPBACK
from sparkdl.host.optional_packages import require

# Time that TensorBoard gets to listen on its port, and to exit after SIGTERM.
START_S = 60.0
EXIT_GRACE_S = 5.0

# Seconds between two looks of TensorBoard at its folder.
RELOAD_S = 5

# The last lines of a log that an error shows.
MAX_LINES = 8


class TensorBoardServer:
    """A TensorBoard process, which begins with `begin`; a context manager that ends the process.

    The process also ends when the process that started it ends, even by SIGKILL. Ctrl-C in the
    terminal does not reach it.

    Args:
        logdir: the folder of the event files, or a URL that TensorBoard reads by itself.
        host: the address or name on which TensorBoard listens.
        port: the port; with 0, TensorBoard chooses a free one.
        title: the title of the page.
        folder: a temporary folder, which is removed with the process; None makes one.

    Attributes:
        pid: the process id of TensorBoard.

    Raises:
        MissingPackageError: if TensorBoard is not installed.
    """

    def __init__(
        self,
        logdir: str,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        title: str = "",
        folder: str | None = None,
    ) -> None:
        require("tensorboard", "TensorBoard")
        self._folder = folder or tempfile.mkdtemp(prefix="sparkdl-tensorboard-")
        self._url = ""
        self._port = port
        flags = {"logdir": storage.absolute(logdir), "host": host, "port": port}
        flags |= {"window_title": title, "reload_interval": RELOAD_S, "reload_multifile": True}
        # The same modules as in this process, whatever way they reached it.
        start = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from sparkdl.board.server import serve; serve({self._folder!r}, {flags!r})"
        )
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 It is closed with the process.
        self._process = subprocess.Popen(
            [sys.executable, "-c", start],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "TMPDIR": self._folder},
            start_new_session=True,
        )
        self.pid = self._process.pid

    def begin(self) -> None:
        """Let TensorBoard read its folder and listen. Until then, TensorBoard only prepares."""
        stdin: Any = self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # `await_url` tells why the process has ended.
            stdin.write(b"\n")

    def await_url(self, timeout_s: float = START_S) -> str:
        """Return the URL as soon as TensorBoard listens.

        Raises:
            ConfigError: if the process has ended, for example because the port is in use.
            TimeoutError: if TensorBoard does not listen yet after `timeout_s`.
        """
        if not self._url:
            stdout: Any = self._process.stdout
            readable = select.poll()  # `select.select` takes no descriptor above 1023.
            readable.register(stdout, select.POLLIN)
            if not readable.poll(timeout_s * 1000):
                raise TimeoutError(f"TensorBoard has not started within {timeout_s:g} s.")
            self._url = stdout.readline().decode().strip()
            stdout.close()
        if not self._url:
            self._process.wait()
            self._log.seek(0)
            lines = self._log.read().decode(errors="replace").splitlines()
            self.stop()
            raise ConfigError(
                f"TensorBoard has not started on port {self._port}: "
                + "\n".join(lines[-MAX_LINES:])
            )
        return self._url

    @property
    def port(self) -> int:
        """The port on which TensorBoard listens."""
        return urlsplit(self.await_url()).port or 0

    def has_data(self) -> bool:
        """Return True if TensorBoard listens, and has found event files."""
        address = urlsplit(self._url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=1.0)
        try:
            connection.request("GET", "/data/runs")
            return bool(json.loads(connection.getresponse().read()))
        except (OSError, ValueError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    @property
    def is_running(self) -> bool:
        """True until the process has ended."""
        return self._process.poll() is None

    def wait(self) -> None:
        """Wait until the process has ended."""
        self._process.wait()

    def stop(self) -> None:
        """End the process and remove its folder; a second call does nothing."""
        for file in (self._process.stdin, self._process.stdout, self._log):
            if file:
                file.close()
        self._process.terminate()
        try:
            self._process.wait(EXIT_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "TensorBoardServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


# ---- in the process of TensorBoard


def serve(folder: str, flags: dict[str, Any]) -> None:
    """Run TensorBoard in this process, until SIGTERM or the end of the parent process.

    The first line of stdout is the URL.

    Args:
        folder: the folder to remove at the end.
        flags: the flags of TensorBoard.
    """
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # TensorBoard's own handler of SIGTERM calls this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from tensorboard import default, program

    class Server(program.WerkzeugServer):  # type: ignore[misc]
        """A server that prints its URL and nothing else, to the parent process."""

        def print_serving_message(self) -> None:
            print(self.get_url(), flush=True)
            os.dup2(2, 1)  # The parent reads no more.

    tensorboard = program.TensorBoard(default.get_plugins(), server_class=Server)
    tensorboard.configure(**flags)
    if not os.read(0, 1):
        return  # The parent has ended before `begin`.
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    sys.exit(tensorboard.main())


def _end_with_parent(folder: str) -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(EXIT_GRACE_S)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
