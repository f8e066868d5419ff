"""A TensorBoard process ends with the process that has started it, in whatever way that ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sparkdl.board import server as tensorboard_server
from sparkdl.board.server import TensorBoardServer
from sparkdl.errors import ConfigError
from tests.helpers.descriptors import many_open_files
from tests.helpers.processes import eventually, is_alive
from tests.helpers.tensorboards import FAKE, called, fake_tensorboard  # noqa: F401

# Starts a server as a child of a program that goes on, and prints the pid.
PROGRAM = """
import sys, time
sys.path.insert(0, {fake!r})
from sparkdl.board.server import TensorBoardServer
server = TensorBoardServer({logdir!r}, folder={folder!r})
if {begins}:
    server.begin()
    server.await_url()
print(server.pid, flush=True)
time.sleep(60)
"""


def test_server_listens_on_loopback_and_leaves_nothing(
    fake_tensorboard: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "events of a run").mkdir()
    with TensorBoardServer(str(tmp_path / "events of a run"), title="my run") as server:
        server.begin()
        url = server.await_url()
        assert url == f"http://127.0.0.1:{server.port}/"
        assert server.is_running
        flags = called(fake_tensorboard)["flags"]
        assert flags["logdir"] == str(tmp_path / "events of a run")
        assert (flags["host"], flags["port"], flags["window_title"]) == ("127.0.0.1", 0, "my run")
    assert not server.is_running
    assert not is_alive(server.pid)
    assert not list(fake_tensorboard.iterdir())
    server.stop()  # A second call does nothing.


def test_server_starts_beside_many_open_files(
    fake_tensorboard: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    with many_open_files(), TensorBoardServer(str(tmp_path)) as server:
        server.begin()
        assert server.await_url() == f"http://127.0.0.1:{server.port}/"


def test_port_that_is_in_use_is_an_error_with_the_reason(
    fake_tensorboard: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    with TensorBoardServer(str(tmp_path)) as first:
        first.begin()
        second = TensorBoardServer(str(tmp_path), port=first.port)
        second.begin()
        with pytest.raises(ConfigError, match=rf"on port {first.port}: .*in use"):
            second.await_url()
        assert len(list(fake_tensorboard.iterdir())) == 1
        assert first.is_running


def test_server_that_is_slow_is_waited_for_again(
    fake_tensorboard: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    with TensorBoardServer(str(tmp_path)) as server:
        with pytest.raises(TimeoutError, match="not started within"):
            server.await_url(0.01)
        assert not server.has_data()
        server.begin()
        assert server.await_url().startswith("http://")


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ConfigError, match=r"sparkdl-platform\[tensorboard\]"):
        TensorBoardServer("logs")


@pytest.mark.parametrize("begins", [True, False])
def test_killed_parent_takes_the_server_and_its_files_along(tmp_path: Path, begins: bool) -> None:
    folder, logdir = tmp_path / "temporary", tmp_path / "logs"
    folder.mkdir()
    logdir.mkdir()
    (logdir / "events").touch()
    (folder / "linked").symlink_to(logdir)
    program = PROGRAM.format(fake=FAKE, logdir=str(logdir), folder=str(folder), begins=begins)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    assert eventually(lambda: not is_alive(pid))
    assert eventually(lambda: not folder.exists())
    assert (logdir / "events").exists()  # What links lead to is not removed.


def test_ctrl_c_in_the_terminal_does_not_reach_the_server(
    fake_tensorboard: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    with TensorBoardServer(str(tmp_path)) as server:
        server.begin()
        server.await_url()
        # Ctrl-C is sent to all processes of the group that is in the foreground.
        assert os.getpgid(server.pid) != os.getpgid(0)


def test_server_that_ignores_its_end_is_killed(
    fake_tensorboard: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tensorboard_server, "EXIT_GRACE_S", 0.05)
    with TensorBoardServer(str(tmp_path)) as server:
        server.begin()
        server.await_url()
        os.kill(server.pid, signal.SIGSTOP)
    assert not is_alive(server.pid)
    assert not list(fake_tensorboard.iterdir())
