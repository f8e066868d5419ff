"""`sparkdl serve` without a model; tests/serving has servers with models."""

import os
import re
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkdl.cli import serve
from sparkdl.cli.main import main

TOKEN = "0123456789abcdefghijklmn"


class FakeServer:
    """A server that gets SIGTERM as soon as it runs, and notes what was printed."""

    url, grpc_address, models, token = "http://0.0.0.0:1", None, ["m"], TOKEN

    def __init__(self, capsys: Any) -> None:
        self._capsys = capsys
        self.printed = self.found = ""
        self.mode = 0

    def __enter__(self) -> "FakeServer":
        signal.raise_signal(signal.SIGTERM)
        return self

    def __exit__(self, *exc: object) -> None:
        self.printed = "".join(self._capsys.readouterr())
        if match := re.search(r"The token is in (\S+)", self.printed):
            path = Path(match[1])
            self.found, self.mode = path.read_text(), stat.S_IMODE(os.stat(path.parent).st_mode)


@pytest.fixture
def server(monkeypatch: Any, capsys: Any) -> Iterator[FakeServer]:
    before = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]
    server = FakeServer(capsys)
    monkeypatch.setattr(serve, "start", lambda *_, **__: server)
    yield server
    for number, handler in before:
        signal.signal(number, handler)


def test_a_token_that_was_made_is_in_a_file_of_the_user_and_not_in_the_output(
    server: FakeServer,
) -> None:
    assert main(["serve", "m", "--host", "0.0.0.0"]) == 0
    assert TOKEN not in server.printed and server.found == TOKEN
    assert server.mode == 0o700
    path = re.search(r"The token is in (\S+)", server.printed)
    assert path and not os.path.exists(path[1])


def test_a_token_of_the_user_is_not_written(server: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    assert main(["serve", "m", "--token-file", str(tmp_path / "token")]) == 0
    assert "Bearer" not in server.printed
