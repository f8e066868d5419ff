"""`sparkdl tensorboard RUN` shows the address, and ends TensorBoard with Ctrl-C."""

import re
import socket
from pathlib import Path
from uuid import uuid4

import pytest

from sparkdl.board.viewer import TensorBoard
from sparkdl.cli.main import main
from tests.helpers.counting_store import CountingStore, counting_store  # noqa: F401
from tests.helpers.ports import held_port
from tests.helpers.stored_runs import ended
from tests.helpers.tensorboards import called, fake_tensorboard  # noqa: F401


@pytest.fixture(autouse=True)
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user presses Ctrl-C as soon as the command waits."""

    def interrupt(tensorboard: TensorBoard) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TensorBoard, "wait", interrupt)


def test_address_is_printed_and_ctrl_c_ends_tensorboard(
    root: str,
    fake_tensorboard: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARKDL_ROOT", root)
    ended(root, "one")
    assert main(["tensorboard", "one"]) == 130
    out = capsys.readouterr().out
    assert re.search(r"run one at\nhttp://127\.0\.0\.1:\d+/\nCtrl-C ends it\.", out)
    assert not list(fake_tensorboard.iterdir())


def test_event_files_of_a_run_on_a_store_are_copied_and_removed(
    counting_store: CountingStore,  # noqa: F811
    fake_tensorboard: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = ended(counting_store.url(uuid4().hex), "one").run
    assert main(["tensorboard", run.path, "--host", "localhost"]) == 130
    assert f"Copying the event files of 2 trials from {run.path}" in capsys.readouterr().out
    assert not list(fake_tensorboard.iterdir())


def test_host_and_port_are_those_of_the_user(
    root: str,
    fake_tensorboard: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = ended(root, "one").run
    flags = {}
    monkeypatch.setattr(TensorBoard, "wait", lambda _: flags.update(called(fake_tensorboard)))
    with held_port() as port:
        command = ["tensorboard", run.path, "--host", "0.0.0.0", "--port", str(port)]
        assert main(command) == 2  # TensorBoard has ended by itself.
    assert (flags["flags"]["host"], flags["flags"]["port"]) == ("0.0.0.0", port)
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        assert main(["tensorboard", run.path, "--port", str(port)]) == 2
    assert re.search(rf"port {port}: .*in use", capsys.readouterr().err)
    assert main(["tensorboard", "/nowhere"]) == 2
