"""The driver's loop without Spark: runs that were interrupted go on, and have one owner."""

import dataclasses
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.samplers import RandomSampler

from sparkdl import experiment
from sparkdl.errors import (
    AllTrialsFailedError,
    ConfigError,
    RunExistsError,
    RunNotFoundError,
    RunStoppedError,
)
from sparkdl.files import storage
from sparkdl.files.layout import RunPaths
from sparkdl.options import Options
from sparkdl.runner.again.resume import resume_run
from sparkdl.runner.control.loaded_run import LoadedRunHandle
from sparkdl.runner.pipeline.execute import description_of, execute
from sparkdl.runner.pipeline.prepare import prepare
from sparkdl.runs import Run, RunState, journal, owner
from sparkdl.runs.history import load
from sparkdl.runs.opening import continue_run, open_run
from sparkdl.runs.owner import newest_claim
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Float, Int, Space
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, Outcome, raised, returned
from tests.helpers.loops import (
    background,
    continued_loop,
    events,
    journal_states,
    new_loop,
    packed,
    request_of,
    run_trials,
)
from tests.helpers.processes import eventually
from tests.helpers.runs import journal_text, segments

pytestmark = pytest.mark.usefixtures("quick_polls")

SPACE = Space.of({"x": Float(0.0, 1.0)})


def same(attempt: Attempt) -> Outcome:
    return returned(attempt.task.trial.params["x"])


def killed_driver(path: str, target: Path, num_lines: int | None = None) -> str:
    """Copy a run as if its driver had been killed at a number of lines of the journal."""
    copy = target / Path(path).name
    # A living driver replaces its heartbeat now and then.
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("owner"))
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
        # The driver writes nothing while its directory is copied.
        states = [["RUNNING", "COMPLETE"], ["RUNNING"], ["RUNNING"]]
        assert eventually(lambda: [journal_states(loop.run, n) for n in range(3)] == states)
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


@pytest.mark.parametrize(
    ("retry", "submitted"), [({"failed"}, [1]), ({1}, [1]), (set(), []), ({"cancelled"}, [])]
)
def test_failed_trials_are_run_again_where_that_is_asked_for(
    root: str, retry: set[str | int], submitted: list[int]
) -> None:
    cluster = InMemoryCluster(lambda a: raised("OSError: no") if a.number == 1 else same(a))
    run = run_trials(root, cluster, 3)
    assert run.counts() == {"COMPLETE": 2, "FAILED": 1}
    again = InMemoryCluster(same)
    opened = continued_loop(run.path, again, request_of(3), reopen=True, retry=frozenset(retry))
    opened.execute()
    assert again.submitted == submitted


def test_failures_before_the_interruption_count_for_its_limits(root: str) -> None:
    bad = InMemoryCluster(lambda a: raised("OSError: no") if a.number else same(a))
    run = run_trials(root, bad, 5, max_failed_trials=1, parallelism=1)
    assert run.counts() == {"COMPLETE": 1, "FAILED": 2, "CANCELLED": 2}
    loop = continued_loop(run.path, bad, request_of(5, max_failed_trials=2, parallelism=1))
    with pytest.raises(RunStoppedError, match=r"more than max_failed_trials=2.*retry='failed'"):
        loop.execute()
    assert loop.run.counts() == {"COMPLETE": 1, "FAILED": 3, "CANCELLED": 1}


# ---- through the verbs


def test_resume_of_a_search_makes_the_missing_trials(root: str) -> None:
    search = SearchSettings(space=SPACE, algorithm="random", num_trials=3)
    run = run_trials(root, InMemoryCluster(same), search=search, seed=1)
    again = InMemoryCluster(same)
    more = resume_run(
        run.path, packed_train, {"num_trials": 5}, frozenset(), None, {"progress": False}, again
    )
    assert len(more.trials) == 5
    assert sorted(again.submitted) == [3, 4]
    assert len({trial.params["x"] for trial in more.trials}) == 5
    start = events(more, "start")[-1]
    assert start["changed"]["num_trials"] == [3, 5]


def packed_train(x: float) -> float:
    return x


def resumed(path: str, cluster: InMemoryCluster, **given: Any) -> Any:
    """Resume a run by the code of the verb."""
    options = {"progress": False, **given.pop("options", {})}
    retry = frozenset(given.pop("retry", ()))
    return resume_run(path, given.pop("train", None), given, retry, None, options, cluster)


def test_resume_journals_a_new_algorithm_and_pruner_and_keeps_them(root: str) -> None:
    search = SearchSettings(space=SPACE, algorithm="random", num_trials=2)
    run = run_trials(root, InMemoryCluster(same), search=search, seed=1)
    cluster = InMemoryCluster(same)
    resumed(run.path, cluster, num_trials=3, algorithm="qmc", pruner="median", train=packed_train)
    changed = events(run, "start")[-1]["changed"]
    assert changed["algorithm"] == ["random", "qmc"]
    assert changed["pruner"] == [None, "median"]
    resumed(run.path, cluster, num_trials=4, algorithm=RandomSampler(seed=1), train=packed_train)
    assert events(run, "start")[-1]["changed"]["algorithm"] == ["qmc", "RandomSampler object"]
    with pytest.raises(ConfigError, match="Pass algorithm="):
        resumed(run.path, cluster, num_trials=5, train=packed_train)


def test_resume_with_other_constraints_tries_what_they_allow(root: str) -> None:
    space = Space.of({"x": Int(0, 4), "y": Int(0, 4)})
    options: dict[str, Any] = {"space": space, "algorithm": "random"}
    search = SearchSettings(constraints=["x + y < 4"], num_trials=50, **options)

    def points(run: Run) -> list[tuple[int, int]]:
        return sorted((trial.params["x"], trial.params["y"]) for trial in run.trials)

    def pairs(allows: Callable[[int, int], bool]) -> list[tuple[int, int]]:
        return [(x, y) for x in range(5) for y in range(5) if allows(x, y)]

    def train(x: int, y: int) -> int:
        return x + y

    def more(**changes: Any) -> list[tuple[int, int]]:
        cluster = InMemoryCluster(lambda attempt: returned(1.0))
        return points(resumed(run.path, cluster, train=train, **changes))

    run = run_trials(root, InMemoryCluster(lambda attempt: returned(1.0)), search=search, seed=1)
    assert points(run) == pairs(lambda x, y: x + y < 4)
    # Points that were tried count only if the new constraints allow them.
    assert more(constraints=["x + y > 2", "x != 0"], num_trials=60) == pairs(
        lambda x, y: x + y < 4 or x != 0
    )
    changed = events(run, "start")[-1]["changed"]
    assert changed["constraints"] == [["x + y < 4"], ["x + y > 2", "x != 0"]]
    assert more(num_trials=70) == pairs(lambda x, y: x + y < 4 or x != 0)
    assert more(constraints=[], num_trials=80) == pairs(lambda x, y: True)
    with pytest.raises(ConfigError, match="no parameters in the space satisfy"):
        more(constraints=["x > 9"], num_trials=90)


def test_resume_with_fewer_trials_than_there_are_says_so(root: str, capsys: Any) -> None:
    search = SearchSettings(space=SPACE, algorithm="random", num_trials=15)
    run = run_trials(root, InMemoryCluster(same), search=search)
    idle = InMemoryCluster(same)
    again = resumed(run.path, idle, num_trials=10, options={"progress": True})
    assert (len(again.trials), idle.submitted) == (15, [])
    out = capsys.readouterr().out
    assert "num_trials=10 is the total number of configurations" in out
    assert "For 10 more pass num_trials=25." in out
    assert "Nothing was run." in out


def test_resume_of_a_complete_run_with_failures_says_so(root: str, capsys: Any) -> None:
    bad = InMemoryCluster(lambda a: raised("OSError: no") if a.number == 1 else same(a))
    run = run_trials(root, bad, 3)
    idle = InMemoryCluster(same)
    assert resumed(run.path, idle, options={"progress": True}).state == "COMPLETE"
    assert "1 failed trial is not run again; retry='failed' does so." in capsys.readouterr().out
    assert idle.submitted == []
    again = InMemoryCluster(same)
    assert resumed(run.path, again, retry={"failed"}, train=packed_train).counts() == {
        "COMPLETE": 3
    }
    assert again.submitted == [1]


def test_resume_refuses_to_repeat_a_result(root: str) -> None:
    run = run_trials(root, InMemoryCluster(same), 2)
    before = events(run)
    for number, reason in ((1, "trial 1 is COMPLETE"), (7, "has the trials 0 to 1")):
        with pytest.raises(ConfigError, match=reason):
            resumed(run.path, InMemoryCluster(same), retry={number})
    assert events(run) == before


def test_resume_after_too_many_failures_says_how_to_go_on(root: str) -> None:
    bad = InMemoryCluster(lambda a: raised("OSError: no") if a.number in (1, 2) else same(a))
    request = request_of(5, root=root, max_failed_trials=1, parallelism=1)
    with pytest.raises(RunStoppedError, match="retry='failed'"):
        execute(request, bad)
    before = events(f"{root}/run")
    with pytest.raises(
        ConfigError, match=r"2 trials .* have failed, more than max_failed_trials=1"
    ):
        resumed(f"{root}/run", bad)
    nightly = dataclasses.replace(request.options, if_exists="resume")
    with pytest.raises(ConfigError, match="Pass retry='failed'"):
        execute(dataclasses.replace(request, options=nightly), bad)
    assert events(f"{root}/run") == before
    again = InMemoryCluster(same)
    assert resumed(f"{root}/run", again, retry={"failed"}).counts() == {"COMPLETE": 5}
    assert sorted(again.submitted) == [1, 2, 3, 4]


def test_dead_driver_on_another_host_is_waited_for_once(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(owner, "BEAT_S", 0.02)
    bad = InMemoryCluster(lambda a: raised("OSError: no") if a.number in (1, 2) else same(a))
    request = request_of(5, parallelism=1)
    path = killed_driver(run_trials(root, bad, 5, parallelism=1).path, tmp_path, 9)
    assert load(path).counts() == {"COMPLETE": 1, "FAILED": 2, "LOST": 1, "WAITING": 1}
    storage.write(f"{path}/owner/1.json", '{"host": "elsewhere", "pid": 1, "started": 1}')
    storage.write(f"{path}/owner/1.beat", '{"beat": 0, "time": 1}')
    options = {"root": str(tmp_path), "if_exists": "resume", "run_id": "run", "progress": False}

    def again(max_failed_trials: int) -> Run:
        given = {**options, "max_failed_trials": max_failed_trials}
        return execute(dataclasses.replace(request, options=Options.parse(given)), one())

    # The failures before the driver died count.
    with pytest.raises(ConfigError, match=r"2 trials .* have failed"):
        again(1)
    caplog.clear()
    assert again(2).counts() == {"COMPLETE": 3, "FAILED": 2}
    assert sum("looking for" in record.getMessage() for record in caplog.records) == 1


def test_verb_that_finds_nothing_to_run_says_so_and_raises_the_old_error(
    root: str, capsys: Any
) -> None:
    bad = InMemoryCluster(lambda a: raised("OSError: the store is down"))
    options = {"root": root, "if_exists": "resume", "progress": True}
    with pytest.raises(AllTrialsFailedError):
        execute(request_of(2, **options), bad)
    idle = InMemoryCluster(same)
    capsys.readouterr()
    with pytest.raises(
        AllTrialsFailedError, match=r"Nothing was run\. 2 failed trials are not run"
    ):
        execute(request_of(2, **options), idle)
    assert idle.submitted == []
    assert "ended before, FAILED: 0 of 2 trials complete" in capsys.readouterr().out
    # Without a cluster, Spark would be asked for one first.
    no_cluster: Any = object()
    with pytest.raises(AllTrialsFailedError, match="Nothing was run"):
        resume_run(f"{root}/run", None, {}, frozenset(), None, {}, no_cluster)
    again = InMemoryCluster(same)
    run = execute(request_of(2, retry="failed", **options), again)
    assert run.counts() == {"COMPLETE": 2}
    with pytest.raises(ConfigError, match="if_exists='resume'"):
        execute(request_of(2, root=root, retry="failed", if_exists="new"), again)


def test_verb_that_resumes_journals_how_the_code_has_changed(root: str) -> None:
    def train(x: float) -> float:
        return x

    before = train

    def train(x: float) -> float:  # type: ignore[no-redef]
        return x + 1

    search = SearchSettings(space=SPACE, algorithm="random", num_trials=1)
    options = {"root": root, "if_exists": "resume"}
    execute(dataclasses.replace(request_of(search=search, **options), train=before), one())
    search = dataclasses.replace(search, num_trials=2)
    execute(dataclasses.replace(request_of(search=search, **options), train=train), one())
    changed = events(f"{root}/run", "start")[-1]["changed"]["train"]
    assert "+        return x + 1" in changed
    search = dataclasses.replace(search, num_trials=3)
    execute(dataclasses.replace(request_of(search=search, **options), train=train), one())
    assert "changed" not in events(f"{root}/run", "start")[-1]


def resumed_by_verb(root: str, num_trials: int, train: Any) -> dict[str, Any]:
    """The event that starts a run, or continues the run with a larger number of trials."""
    search = SearchSettings(space=SPACE, algorithm="random", num_trials=num_trials)
    request = request_of(search=search, root=root, if_exists="resume")
    execute(dataclasses.replace(request, train=train), one())
    return events(f"{root}/run", "start")[-1]


def test_unchanged_code_with_a_variable_called_key_is_no_change(root: str) -> None:
    def train(x: float, key1: str = "") -> Any:
        def connect(api_key: str) -> float:
            return x

        return connect(api_key=key1)

    for num_trials in (1, 2):
        assert "changed" not in resumed_by_verb(root, num_trials, train)


def test_function_without_source_is_journaled(root: str) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def train(x):\n    return x", names)  # noqa: S102
    source = Path(root, "run", "source", "function.py")
    resumed_by_verb(root, 1, same)
    assert source.exists()
    for num_trials in (2, 3):
        start = resumed_by_verb(root, num_trials, names["train"])
        assert start["changed"]["train"] == ["(no source)"]
        assert not source.exists()  # That of another function.


def one() -> InMemoryCluster:
    return InMemoryCluster(same)


def test_run_that_failed_before_its_first_trial_is_resumed(root: str) -> None:
    prepared = prepare(request_of(2), packed(), one())
    opened = open_run(root, description_of(prepared), "error")
    with pytest.raises(ZeroDivisionError), opened.failing():
        raise ZeroDivisionError
    assert load(opened.run.path).counts() == {"WAITING": 2}
    cluster = one()
    run = resumed(opened.run.path, cluster, train=packed_train)
    assert run.counts() == {"COMPLETE": 2}
    assert sorted(cluster.submitted) == [0, 1]


def test_loaded_run_is_waited_for(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkdl.runner.control.loaded_run.LOOK_S", 0.01)
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(2))) as loop:
        attempts = [cluster.attempt(0), cluster.attempt(1)]
        loaded = experiment.load(loop.run.path)
        with pytest.raises(ConfigError, match="has no trial 99"):
            loaded.cancel(99)
        threading.Timer(0.2, lambda: [attempt.end(returned(1.0)) for attempt in attempts]).start()
        assert loaded.wait() is loaded
        assert (loaded.state, loaded.counts()) == ("COMPLETE", {"COMPLETE": 2})
    failed = run_trials(root, InMemoryCluster(lambda a: raised("E: no")), 1, run_id="failed")
    with pytest.raises(AllTrialsFailedError, match="E: no") as caught:
        experiment.load(failed.path).wait()
    assert caught.value.run.id == "failed"


def test_wait_of_a_loaded_run_outlasts_a_store_that_fails(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = run_trials(root, InMemoryCluster(same), 1)
    looks = [OSError("the store is busy"), ended, RunNotFoundError("removed")]

    def look(_: str) -> Run:
        seen = looks.pop(0)
        if isinstance(seen, Exception):
            raise seen
        return seen

    monkeypatch.setattr("sparkdl.runner.control.loaded_run.LOOK_S", 0.01)
    monkeypatch.setattr("sparkdl.runner.control.loaded_run.load", look)
    monkeypatch.setattr("sparkdl.files.polling.pause_s", lambda _: 0.01)
    run = dataclasses.replace(ended, state=RunState.RUNNING)
    LoadedRunHandle(run).wait()
    assert run.state == "COMPLETE"
    run.state = RunState.RUNNING
    with pytest.raises(RunNotFoundError):
        LoadedRunHandle(run).wait()


def test_resume_of_a_complete_run_starts_nothing(root: str) -> None:
    run = run_trials(root, InMemoryCluster(same), 2)
    before = journal_text(run.path)
    cluster = InMemoryCluster(same)
    again = resume_run(run.path, packed_train, {}, frozenset(), None, {"progress": False}, cluster)
    assert again.state == "COMPLETE"
    assert cluster.submitted == []
    assert journal_text(run.path) == before


def test_resume_parses_no_reports_that_it_does_not_use(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_trials(root, InMemoryCluster(lambda a: raised("E: no")), 1)
    with_reports, read = [], journal._read_sessions

    def record(folder: str, parses_reports: bool) -> Any:
        with_reports.append(parses_reports)
        return read(folder, parses_reports)

    monkeypatch.setattr(journal, "_read_sessions", record)
    cluster, failed = InMemoryCluster(same), frozenset({"failed"})
    resume_run(run.path, packed_train, {}, failed, None, {"progress": False}, cluster)
    assert cluster.submitted
    assert not any(with_reports)


# ---- one owner


def test_run_that_a_living_driver_has_is_refused(root: str) -> None:
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(1))) as loop:
        attempt = cluster.attempt(0)
        path = loop.run.path
        with pytest.raises(RunExistsError, match="run run is being run by process"):
            continue_run(path)
        with pytest.raises(RunExistsError, match="is being run by"):
            resume_run(path, packed_train, {}, frozenset(), None, {"progress": False}, cluster)
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
