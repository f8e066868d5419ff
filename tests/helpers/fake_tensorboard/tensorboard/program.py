import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any


class WerkzeugServer:
    def __init__(self, app: Any, flags: dict[str, Any]) -> None:
        self._socket = socket.create_server((flags["host"], flags["port"]))

    def get_url(self) -> str:
        host, port = self._socket.getsockname()
        return f"http://{host}:{port}/"


class TensorBoard:
    """Listens, and writes what it was called with into its temporary folder."""

    def __init__(self, plugins: Any, server_class: Any) -> None:
        self._server_class = server_class

    def configure(self, **flags: Any) -> None:
        self._flags = flags

    def main(self) -> int:
        try:
            server = self._server_class(None, self._flags)
        except OSError as exc:
            print(f"ERROR: {exc}", file=sys.stderr)
            return -1
        entries = sorted(os.listdir(self._flags["logdir"]))
        content = {"flags": self._flags, "entries": entries}
        Path(os.environ["TMPDIR"], "called.json").write_text(json.dumps(content))
        server.print_serving_message()
        signal.pause()
        return 0
