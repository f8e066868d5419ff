"""A run of another driver is read again when its journal has grown, and not all the time."""

import pytest

from sparkdl.board import followed_run
from sparkdl.board.followed_run import FollowedRun
from sparkdl.runs.events import ReportsReceived, TrialChanged
from sparkdl.runs.states import TrialState
from tests.helpers.stored_runs import started


def test_run_is_read_again_when_a_trial_has_changed(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_run, "MAX_SHARE", 1e9)
    opened = started(root, "one")
    followed = FollowedRun(opened.run.path)
    first = followed.now()
    assert first.trials[0].state == "WAITING"
    opened.record(ReportsReceived(reports=[]))
    assert followed.now() is first
    opened.record(TrialChanged(number=0, state=TrialState.RUNNING, attempt=0))
    assert followed.now().trials[0].state == "RUNNING"


def test_large_run_is_read_rarely(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = started(root, "one")
    followed = FollowedRun(opened.run.path)
    first = followed.now()
    monkeypatch.setattr(followed_run, "MAX_SHARE", 1e-9)
    opened.record(TrialChanged(number=0, state=TrialState.RUNNING, attempt=0))
    assert followed.now() is first
    monkeypatch.setattr(followed_run, "MAX_SHARE", 1e9)
    assert followed.now().trials[0].state == "RUNNING"  # It was not forgotten.
