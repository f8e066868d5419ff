"""TensorBoard follows a run, and ends with the object of the run."""

import gc
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl.board import followed_run, viewer
from sparkdl.board import server as tensorboard_server
from sparkdl.board.server import TensorBoardServer
from sparkdl.experiment import load
from sparkdl.files import storage
from sparkdl.runs.events import TrialChanged
from sparkdl.runs.opening import OpenRun
from sparkdl.runs.states import TrialState
from tests.helpers.processes import eventually, is_alive
from tests.helpers.stored_runs import ended, started
from tests.helpers.tensorboards import (
    FAKE,
    called,
    events_in,
    fake_tensorboard,  # noqa: F401
    scalars,
    session_groups,
)

EVENTS = "events.out.tfevents.0000001000.host"


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewer, "LOCAL_S", 0.05)
    monkeypatch.setattr(followed_run, "MAX_SHARE", 1e9)


def start_trial(opened: OpenRun, number: int, *values: float) -> None:
    opened.record(TrialChanged(number=number, state=TrialState.RUNNING, attempt=0))
    path = f"{opened.run.trials[number].path}/tensorboard/{EVENTS}"
    storage.write(path, scalars("loss", *values))


def end_trial(opened: OpenRun, number: int, value: float) -> None:
    end: dict[str, Any] = {"value": value, "metrics": {"accuracy": value}, "attempt": 0}
    opened.record(TrialChanged(number=number, state=TrialState.COMPLETE, **end))


def logdir_of(folder: Path) -> Path:
    (logdir,) = folder.glob("*/one")
    return logdir


def test_tensorboard_follows_a_run_of_another_driver(
    root: str,
    fake_tensorboard: Path,  # noqa: F811
) -> None:
    opened = started(root, "one")
    start_trial(opened, 0, 1.0)
    with load(opened.run.path).tensorboard() as tensorboard:
        assert repr(tensorboard) == f"<TensorBoard of run one at {tensorboard.url}>"
        found_first = called(fake_tensorboard)
        assert found_first["entries"] == ["0-lr=0.1"]
        assert found_first["flags"]["window_title"] == "nightly"
        start_trial(opened, 1, 1.0, 0.5)
        end_trial(opened, 0, 0.75)
        logdir = logdir_of(fake_tensorboard)
        assert eventually(lambda: len(events_in(logdir / "0-lr=0.1")) == 4)
        assert [value.tag for value in events_in(logdir / "1-lr=0.2")].count("loss") == 2
    assert "ended" in repr(tensorboard)
    assert not list(fake_tensorboard.iterdir())
    assert storage.exists(f"{opened.run.trials[0].path}/tensorboard/{EVENTS}")


def test_run_has_one_tensorboard_until_it_has_ended(
    root: str,
    fake_tensorboard: Path,  # noqa: F811
) -> None:
    run = load(ended(root, "one").run.path)
    first = run.tensorboard()
    assert run.tensorboard() is first
    first.stop()
    first.stop()
    second = run.tensorboard()
    assert second is not first
    assert second.is_running
    second.stop()


def test_tensorboard_ends_when_neither_it_nor_the_run_is_in_use(
    root: str,
    fake_tensorboard: Path,  # noqa: F811
) -> None:
    run = load(ended(root, "one").run.path)
    tensorboard = run.tensorboard()
    pid = tensorboard._server.pid
    assert tensorboard.url
    del run
    gc.collect()
    assert tensorboard.is_running  # `load(path).tensorboard()` in a notebook keeps only this.
    run = tensorboard._run
    del tensorboard
    gc.collect()
    assert is_alive(pid)
    del run
    # The thread that looks for new files may have it in use for a moment.
    assert eventually(lambda: gc.collect() is not None and not is_alive(pid))
    assert eventually(lambda: not list(fake_tensorboard.iterdir()))


def test_store_that_fails_for_a_while_is_read_again(
    root: str,
    fake_tensorboard: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    opened = started(root, "one")
    start_trial(opened, 0, 1.0)

    def fails(url: str) -> dict[str, int]:
        raise OSError("the store is busy")

    with monkeypatch.context() as outage:
        outage.setattr("sparkdl.files.folders.files_in", fails)
        tensorboard = load(opened.run.path).tensorboard()
        assert tensorboard.url
    logdir = logdir_of(fake_tensorboard)
    assert eventually(lambda: (logdir / "0-lr=0.1" / EVENTS).exists())
    assert "the store is busy" in caplog.text
    tensorboard.stop()


def test_run_that_is_deleted_leaves_tensorboard_as_it_is(
    root: str,
    fake_tensorboard: Path,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = load(ended(root, "one").run.path)
    with run.tensorboard() as tensorboard:
        assert tensorboard.url
        run.delete()
        tensorboard._refresh()
        assert tensorboard.is_running
    assert not caplog.text


# A program that leaves the end of TensorBoard to Python.
PROGRAM = """
import sys, time
sys.path.insert(0, {fake!r})
from sparkdl.experiment import load
run = load({path!r})
tensorboard = run.tensorboard()
tensorboard.url
print(tensorboard._server.pid, flush=True)
time.sleep({seconds})
"""


@pytest.mark.parametrize("how", ["end", "interrupt"])
def test_tensorboard_ends_with_the_program(root: str, tmp_path: Path, how: str) -> None:
    run = ended(root, "one", params=[{}, {}]).run
    seconds = 60 if how == "interrupt" else 0
    program = PROGRAM.format(fake=FAKE, path=run.path, seconds=seconds)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdout
        pid = int(process.stdout.readline())
        if how == "interrupt":
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=240)
    assert "Traceback" not in err or "KeyboardInterrupt" in err
    assert not is_alive(pid)  # It has ended before the program.
    assert not list(tmp_path.glob("sparkdl-tensorboard-*"))


def test_notebook_shows_the_page_as_soon_as_it_has_data(
    root: str,
    fake_tensorboard: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[str] = []
    answers = [False, False, True]
    monkeypatch.setattr(TensorBoardServer, "has_data", lambda server: answers.pop(0))
    output = SimpleNamespace(update=lambda html: shown.append(html.data))

    def display(html: Any, display_id: bool) -> Any:
        shown.append(html.data)
        return output

    monkeypatch.setattr("IPython.display.display", display)
    with load(ended(root, "one").run.path).tensorboard() as tensorboard:
        tensorboard.display()
        assert eventually(lambda: len(shown) == 2)
        assert "as soon as a trial has started" in shown[0]
        assert f'<iframe src="{tensorboard.url}"' in shown[1]
    assert not answers
    assert "has ended" in tensorboard._repr_html_()


def test_notebook_on_a_hub_shows_the_page_through_its_proxy(
    root: str,
    fake_tensorboard: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TENSORBOARD_PROXY_URL", "/user/ann/proxy/%PORT%/")
    with load(ended(root, "one").run.path).tensorboard() as tensorboard:
        page = tensorboard._repr_html_()
        assert f'<iframe src="/user/ann/proxy/{tensorboard._server.port}/"' in page


@pytest.mark.slow
def test_real_tensorboard_names_trials_by_their_parameters_and_follows_them(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard_server, "RELOAD_S", 1)
    opened = started(root, "one", params=[{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3}])
    start_trial(opened, 0, 1.0, 0.5)
    start_trial(opened, 1, 1.0)
    end_trial(opened, 0, 0.75)
    with load(opened.run.path).tensorboard() as tensorboard:
        groups = session_groups(tensorboard.url, 2, "SUCCESS", "UNKNOWN")
        assert [group["hparams"]["lr"] for group in groups] == [0.1, 0.2]
        end_trial(opened, 1, 0.5)
        path = f"{opened.run.trials[1].path}/tensorboard/{EVENTS}"
        storage.append(path, scalars("loss", 0.25, first=1))
        start_trial(opened, 2, 1.0)
        groups = session_groups(tensorboard.url, 3, "SUCCESS", "UNKNOWN")
        names = [group["sessions"][0]["name"] for group in groups]
        assert names == ["0-lr=0.1", "1-lr=0.2", "2-lr=0.3"]
        query = "data/plugin/scalars/scalars?tag=loss&run=1-lr%3D0.2"

        def losses() -> Any:
            with urllib.request.urlopen(tensorboard.url + query, timeout=120) as response:
                return [value for _, _, value in json.load(response)]

        assert eventually(lambda: losses() == [1.0, 0.25])
        pid = tensorboard._server.pid
    assert not is_alive(pid)
