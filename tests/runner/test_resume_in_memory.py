"""The driver's loop without Spark: runs that were interrupted go on, and have one owner."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from sparkdl.errors import RunExistsError
from sparkdl.runner.execute import description_of
from sparkdl.runner.prepare import prepare
from sparkdl.runner.resume import continue_search
from sparkdl.runs.history import load
from sparkdl.runs.layout import RunPaths
from sparkdl.runs.opening import continue_run, open_run
from sparkdl.runs.owner import newest_claim
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Float, Space
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, Outcome, raised, returned
from tests.helpers.loops import (
    background,
    continued_loop,
    events,
    new_loop,
    packed,
    request_of,
    run_trials,
)
from tests.helpers.runs import journal_text, segments

pytestmark = pytest.mark.usefixtures("quick_polls")

SPACE = Space.of({"x": Float(0.0, 1.0)})


def same(attempt: Attempt) -> Outcome:
    return returned(attempt.task.trial.params["x"])


def killed_driver(path: str, target: Path, num_lines: int | None = None) -> str:
    """The directory as a driver leaves it that is killed when its journal has so many lines."""
    copy = target / Path(path).name
    shutil.copytree(path, copy)
    shutil.rmtree(copy / "owner")
    if num_lines is not None:
        (copy / "summary.json").unlink()
        journal = segments(copy)[-1]
        num_lines += 1  # The line that begins the session.
        lines = journal.read_text().splitlines(keepends=True)
        torn = lines[num_lines][:10] if num_lines < len(lines) else ""
        journal.write_text("".join(lines[:num_lines]) + torn)
    return str(copy)


def finished(path: str) -> dict[int, Any]:
    """The values of the trials that have completed."""
    return {t.number: t.value for t in load(path).trials if t.state == "COMPLETE"}


def test_run_killed_at_any_moment_goes_on_without_repeating_a_finished_trial(
    root: str, tmp_path: Path
) -> None:
    run = run_trials(root, InMemoryCluster(same), 4)
    num_events = len(events(run))
    assert num_events == 11  # start, trials, two for each trial, end.
    for num_lines in range(2, num_events):
        target = tmp_path / f"cut-{num_lines}"
        target.mkdir()
        path = killed_driver(run.path, target, num_lines)
        done = finished(path)
        cluster = InMemoryCluster(same)
        loop = continued_loop(path, cluster, request_of(4))
        loop.execute()
        assert not done.keys() & set(cluster.submitted)
        assert sorted({*done, *cluster.submitted}) == [0, 1, 2, 3]
        assert finished(path) == {i: float(i) for i in range(4)}
        assert load(path).state == "COMPLETE"
        completed = [e["number"] for e in events(path, "trial") if e["state"] == "COMPLETE"]
        assert sorted(completed) == [0, 1, 2, 3]  # Each once.


def test_trial_that_was_running_is_another_attempt(root: str, tmp_path: Path) -> None:
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(3, parallelism=2))) as loop:
        cluster.attempt(0).end(returned(0.0))
        cluster.attempt(1), cluster.attempt(2)
        path = killed_driver(loop.run.path, tmp_path)
        cluster.attempt(1).end(returned(1.0))
        cluster.attempt(2).end(returned(2.0))
    dead = load(path)
    assert dead.state == "FAILED"
    assert "driver ended" in (dead.reason or "")
    again = InMemoryCluster(same)
    resumed = continued_loop(path, again, request_of(3, parallelism=2))
    resumed.execute()
    assert sorted(again.started) == [(1, 1), (2, 1)]
    assert [trial.attempts for trial in resumed.run.trials] == [1, 2, 2]
    assert resumed.run.state == "COMPLETE"


def test_trials_that_were_cancelled_with_their_run_wait_again(root: str) -> None:
    cluster = InMemoryCluster(num_slots=1)
    with background(new_loop(root, cluster, request_of(3))) as loop:
        cluster.attempt(0).end(returned(0.0))
        cluster.attempt(1)
        loop.cancel(None)
    assert loop.run.counts() == {"COMPLETE": 1, "CANCELLED": 2}
    again = InMemoryCluster(same)
    resumed = continued_loop(loop.run.path, again, request_of(3))
    resumed.execute()
    assert sorted(again.submitted) == [1, 2]
    assert resumed.run.counts() == {"COMPLETE": 3}
    assert resumed.run.reason is None


def test_trial_that_was_cancelled_alone_is_not_run_again(root: str) -> None:
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(2))) as loop:
        cluster.attempt(0)
        loop.cancel(0)
        cluster.attempt(1).end(returned(1.0))
    again = InMemoryCluster(same)
    continued_loop(loop.run.path, again, request_of(2), reopen=True).execute()
    assert again.submitted == []


@pytest.mark.parametrize(("retry_failed", "submitted"), [(True, [1]), (False, [])])
def test_failed_trials_are_run_again_where_that_is_asked_for(
    root: str, retry_failed: bool, submitted: list[int]
) -> None:
    cluster = InMemoryCluster(lambda a: raised("OSError: no") if a.number == 1 else same(a))
    run = run_trials(root, cluster, 3)
    assert run.counts() == {"COMPLETE": 2, "FAILED": 1}
    again = InMemoryCluster(same)
    opened = continued_loop(run.path, again, request_of(3), reopen=True, retry_failed=retry_failed)
    opened.execute()
    assert again.submitted == submitted


def test_failures_before_the_interruption_count_for_its_limits(root: str) -> None:
    bad = InMemoryCluster(lambda a: raised("OSError: no") if a.number else same(a))
    run = run_trials(root, bad, 5, max_failed_trials=1, parallelism=1)
    assert run.counts() == {"COMPLETE": 1, "FAILED": 2, "CANCELLED": 2}
    loop = continued_loop(run.path, bad, request_of(5, max_failed_trials=2, parallelism=1))
    loop.execute()
    assert loop.run.counts() == {"COMPLETE": 1, "FAILED": 3, "CANCELLED": 1}


# ---- through the verbs


def test_resume_of_a_search_makes_the_missing_trials(root: str) -> None:
    search = SearchSettings(space=SPACE, algorithm="random", num_trials=3)
    run = run_trials(root, InMemoryCluster(same), search=search, seed=1)
    again = InMemoryCluster(same)
    more = continue_search(
        run.path, packed_train, {"num_trials": 5}, False, None, {"progress": False}, again
    )
    assert len(more.trials) == 5
    assert sorted(again.submitted) == [3, 4]
    assert len({trial.params["x"] for trial in more.trials}) == 5
    start = events(more, "start")[-1]
    assert start["changed"]["num_trials"] == [3, 5]


def packed_train(x: float) -> float:
    return x


def test_resume_of_a_complete_run_starts_nothing(root: str) -> None:
    run = run_trials(root, InMemoryCluster(same), 2)
    before = journal_text(run.path)
    cluster = InMemoryCluster(same)
    again = continue_search(run.path, packed_train, {}, False, None, {"progress": False}, cluster)
    assert again.state == "COMPLETE"
    assert cluster.submitted == []
    assert journal_text(run.path) == before


# ---- one owner


def test_run_that_a_living_driver_has_is_refused(root: str) -> None:
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(1))) as loop:
        attempt = cluster.attempt(0)
        path = loop.run.path
        with pytest.raises(RunExistsError, match="run run is being run by process"):
            continue_run(path)
        with pytest.raises(RunExistsError, match="is being run by"):
            continue_search(path, packed_train, {}, False, None, {"progress": False}, cluster)
        prepared = prepare(request_of(1), packed(), cluster)
        with pytest.raises(RunExistsError, match="is being run by"):
            open_run(root, description_of(prepared), "resume")
        assert len(events(path, "start")) == 1  # Nothing was written.
        attempt.end(returned(1.0))
    assert newest_claim(RunPaths(path)).process is None
    assert loop.run.state == "COMPLETE"


def test_run_of_the_same_id_is_refused_or_made_beside(root: str) -> None:
    run_trials(root, InMemoryCluster(same), 1)
    prepared = prepare(request_of(1), packed(), InMemoryCluster(same))
    with pytest.raises(RunExistsError, match="run run exists already"):
        open_run(root, description_of(prepared), "error")
    opened = open_run(root, description_of(prepared), "new")
    opened.owner.release()
    assert opened.run.id == "run-2"
