"""`tensorboard=True` shows a run of this process in TensorBoard, and never harms the run."""

import gc
import inspect
import os
import select
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl import experiment
from sparkdl.board import server as tensorboard_server
from sparkdl.board import viewer
from sparkdl.board.viewer import TensorBoard
from sparkdl.errors import ConfigError, RunStoppedError
from sparkdl.runner.again.resume import resume_run
from sparkdl.runner.display import tensorboard as display
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runs import Run
from sparkdl.runs.retry_choice import parse_retry
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, Outcome, raised, returned
from tests.helpers.loops import request_of
from tests.helpers.processes import eventually, is_alive
from tests.helpers.tensorboards import fake_tensorboard  # noqa: F401


def run_two(root: str, run_task: Any = None, **options: Any) -> Run:
    """Run two trials of x = 0 and x = 1."""
    request = request_of(2, **{"root": root, "tensorboard": True, "progress": True, **options})
    return execute(request, InMemoryCluster(run_task or (lambda attempt: returned(1.0))))


def test_tensorboard_follows_the_run_and_ends_with_it(
    root: str,
    fake_tensorboard: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(viewer, "LOCAL_S", 0.05)

    def waits_to_be_seen(attempt: Attempt) -> Outcome:
        name = f"{attempt.number}-x={attempt.number}"
        assert eventually(lambda: list(fake_tensorboard.glob(f"*/run/{name}")))
        return returned(1.0)

    run = run_two(root, waits_to_be_seen)
    assert run.state == "COMPLETE"
    tensorboard = run.tensorboard()
    assert f"TensorBoard shows the run at {tensorboard.url}" in capsys.readouterr().out
    assert tensorboard.is_running
    pid = tensorboard._server.pid
    del tensorboard, run
    assert eventually(lambda: gc.collect() is not None and not is_alive(pid))
    # The thread that follows the run may be the one that ends it.
    assert eventually(lambda: not list(fake_tensorboard.iterdir()))


def test_notebook_shows_the_page_before_the_trials(
    root: str,
    fake_tensorboard: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(display, "is_notebook", lambda: True)
    monkeypatch.setattr(TensorBoard, "display", lambda tensorboard: shown.append("page"))

    def notes(attempt: Attempt) -> Outcome:
        shown.append("trial")
        return returned(1.0)

    run_two(root, notes).tensorboard().stop()
    assert shown == ["page", "trial", "trial"]


def test_missing_package_is_an_error_before_anything_starts(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ConfigError, match=r"sparkdl-platform\[tensorboard\]"):
        run_two(root)
    assert not os.listdir(root)


def test_run_goes_on_without_a_tensorboard_that_fails(
    root: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = SimpleNamespace(path=[], executable=sys.executable)
    monkeypatch.setattr(tensorboard_server, "sys", nothing)
    run = run_two(root)
    assert run.state == "COMPLETE"
    assert "Note: TensorBoard has not started" in capsys.readouterr().out


def test_run_goes_on_while_tensorboard_is_slow(
    root: str,
    fake_tensorboard: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(display, "WAIT_S", 0.0)
    # However long the run itself takes to begin.

    class SlowPoll:
        def __init__(self) -> None:
            self._poll = select.poll()
            self.register = self._poll.register

        def poll(self, timeout_ms: float) -> list[Any]:
            return self._poll.poll(timeout_ms) if timeout_ms else []

    slow = SimpleNamespace(poll=SlowPoll, POLLIN=select.POLLIN)
    monkeypatch.setattr(tensorboard_server, "select", slow)
    run = run_two(root)
    assert "run.tensorboard().url is its address" in capsys.readouterr().out
    assert run.tensorboard().url.startswith("http://127.0.0.1:")
    run.tensorboard().stop()


def test_run_that_has_ended_before_is_shown(
    root: str,
    fake_tensorboard: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = execute(request_of(2, root=root), InMemoryCluster(lambda attempt: returned(1.0))).path
    for again in (
        lambda: run_two(root, if_exists="resume"),
        lambda: experiment.resume(path, tensorboard=True),
    ):
        run = again()
        url = run.tensorboard().url
        assert f"TensorBoard shows the run at {url}" in capsys.readouterr().out
        run.tensorboard().stop()


def test_run_that_is_resumed_is_shown(
    root: str,
    fake_tensorboard: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(RunStoppedError) as stopped:
        run_two(
            root,
            lambda attempt: raised("no") if attempt.number else returned(1.0),
            tensorboard=False,
            max_failed_trials=0,
        )
    path = stopped.value.run.path
    cluster = InMemoryCluster(lambda attempt: returned(1.0))
    options = {"retry": "failed", "tensorboard": True}
    run = resume_run(path, None, {}, parse_retry("failed"), None, options, cluster)
    assert run.state == "COMPLETE"
    assert f"TensorBoard shows the run at {run.tensorboard().url}" in capsys.readouterr().out
    run.tensorboard().stop()


@pytest.mark.parametrize(
    "verb", ["launch", "search", "allreduce", "horovod", "mirrored", "parameter_server"]
)
def test_every_verb_takes_the_option(verb: str) -> None:
    parameter = inspect.signature(getattr(experiment, verb)).parameters["tensorboard"]
    assert parameter.default is False
