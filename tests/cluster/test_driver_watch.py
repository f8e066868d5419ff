"""Tasks of Spark Connect, which Spark does not end when the client has gone."""

from types import SimpleNamespace

import pytest

from sparkdl.cluster import driver_watch
from sparkdl.cluster.driver_watch import LOOK_S, DriverWatch
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.files.layout import RunPaths
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runs.owner import Owner
from tests.helpers.in_memory_cluster import InMemoryCluster, returned
from tests.helpers.loops import request_of, run_trials

SILENCE_S = 300.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(driver_watch, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def owner(root: str, monkeypatch: pytest.MonkeyPatch) -> Owner:
    """A driver that owns a run, and writes a heartbeat only when the test asks for one."""
    monkeypatch.setattr(Owner, "_keep", lambda self: None)
    owner = Owner(RunPaths(root))
    owner.claim(1)
    return owner


def test_silent_driver_has_gone(root: str, owner: Owner, clock: SimpleNamespace) -> None:
    watch = DriverWatch(RunPaths(root), 1, SILENCE_S)
    for _ in range(3):  # It lives.
        clock.now += SILENCE_S - 1
        owner._write_beat(1)
        assert watch() is None
    clock.now += SILENCE_S / 2
    assert watch() is None
    clock.now += SILENCE_S / 2
    assert "has been silent for 300 s" in (watch() or "")


def test_driver_that_has_released_the_run_has_ended(
    root: str, owner: Owner, clock: SimpleNamespace
) -> None:
    watch = DriverWatch(RunPaths(root), 1, SILENCE_S)
    assert watch() is None
    owner.release()
    assert watch() is None  # The store is asked rarely.
    clock.now += LOOK_S
    assert watch() == "the driver that started this attempt has ended"


def test_store_that_fails_says_nothing_about_the_driver(
    root: str, owner: Owner, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> bytes:
        raise OSError("the store is busy")

    watch = DriverWatch(RunPaths(root), 1, SILENCE_S)
    assert watch() is None
    with monkeypatch.context() as patch:
        patch.setattr(storage, "read", fails)
        clock.now += 2 * SILENCE_S
        assert watch() is None
    clock.now += LOOK_S
    assert watch() is None


@pytest.mark.parametrize("outlives", [True, False])
def test_only_tasks_that_outlive_their_driver_watch_it(root: str, outlives: bool) -> None:
    cluster = InMemoryCluster(lambda attempt: returned(1.0))
    cluster.tasks_outlive_driver = outlives
    run_trials(root, cluster)
    task = cluster.attempt(0).task
    assert task.run.owner == int(outlives)
    # The driver has ended by now.
    assert (task.driver_watch()() is not None) is outlives


@pytest.mark.parametrize("value", ["5", "nan", "soon"])
def test_silence_that_is_too_short_is_refused_before_any_job(
    root: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = InMemoryCluster(lambda attempt: returned(1.0))
    monkeypatch.setenv("SPARKDL_CLIENT_SILENCE_S", value)
    with pytest.raises(ConfigError, match=f"CLIENT_SILENCE_S is '{value}'; expected at least 20"):
        execute(request_of(1, root=root), cluster)
    assert cluster.submitted == []


def test_tasks_know_the_silence_that_the_user_has_set(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKDL_CLIENT_SILENCE_S", "25")
    cluster = InMemoryCluster(lambda attempt: returned(1.0))
    execute(request_of(1, root=root), cluster)
    assert cluster.attempt(0).task.plan.client_silence_s == 25
