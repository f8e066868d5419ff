"""Users control a run: through its object, and from other processes through files."""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest

from sparkdl import experiment
from sparkdl.errors import ConfigError, ControlError, RunStoppedError
from sparkdl.files import storage
from sparkdl.files.layout import RunPaths
from sparkdl.runner.again.resume import resume_run
from sparkdl.runner.control import remote_driver as asking
from sparkdl.runner.control.loaded_run import LoadedRunHandle
from sparkdl.runner.control.run_handle import RunHandle
from sparkdl.runner.loop import trial_loop
from sparkdl.runner.loop.command_inbox import CommandInbox
from sparkdl.runner.loop.trial_loop import TrialLoop
from sparkdl.runner.pipeline.execute import description_of, execute
from sparkdl.runner.pipeline.prepare import prepare
from sparkdl.runs import Run, Trial, owner
from sparkdl.runs.commands import Command, GivenCommand, command_names, write_command
from sparkdl.runs.opening import open_run
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Float, Space
from tests.helpers.counting_store import CountingStore, counting_store  # noqa: F401
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, Outcome, raised, returned
from tests.helpers.loops import (
    background,
    continued_loop,
    events,
    new_loop,
    packed,
    request_of,
    train,
)
from tests.helpers.processes import eventually
from tests.helpers.runs import end_soon

pytestmark = pytest.mark.usefixtures("quick_polls", "quick_answers")

SPACE = Space.of({"x": Float(0.0, 1.0)})
GRID = Space.of({"x": [0.0, 0.25, 0.5]})


@pytest.fixture
def quick_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let those who ask look for the answer every few milliseconds."""
    monkeypatch.setattr(asking, "LOOK_S", (0.005, 0.005))


def suggested_x(trial: optuna.Trial) -> dict[str, Any]:
    return {"x": trial.suggest_float("x", 0.0, 1.0)}


def same(attempt: Attempt) -> Outcome:
    return returned(attempt.task.trial.params["x"])


def reach(loop: TrialLoop, how: str) -> Run:
    """The run as the program has it that runs it, or as any other process loads it."""
    if how == "loaded":
        return experiment.load(loop.run.path)
    loop.run.attach(RunHandle(loop))
    return loop.run


both = pytest.mark.parametrize("how", ["loaded", "own"])


@contextmanager
def searched(root: str, cluster: InMemoryCluster, **settings: Any) -> Iterator[TrialLoop]:
    settings = {"space": SPACE, "algorithm": "random", "num_trials": 3, **settings}
    request = request_of(search=SearchSettings(**settings), parallelism=1, metric="score")
    with background(new_loop(root, cluster, request)) as loop:
        yield loop


def controls(run: Run | str) -> list[dict[str, Any]]:
    return events(run, "control")


def give(path: str, action: str, **arguments: Any) -> str:
    """Write the file of a command, without waiting for the answer."""
    return write_command(RunPaths(path), GivenCommand.here(Command(action, arguments)))


def refused(call: Any, match: str) -> None:
    with pytest.raises(ControlError, match=match) as caught:
        call()
    assert caught.value.run is not None


# ---- each command


@both
def test_pause_starts_no_trial_until_unpause(root: str, how: str) -> None:
    cluster = InMemoryCluster(num_slots=1)
    with background(new_loop(root, cluster, request_of(4))) as loop:
        first = cluster.attempt(0)
        cluster.await_submitted(2)  # Trial 1 waits for the slot inside Spark.
        run = reach(loop, how)
        run.pause()
        assert run.is_paused
        assert "RUNNING (paused)" in repr(experiment.load(run.path))
        assert eventually(lambda: cluster.cancelled)  # Trial 1 has left the queue.
        first.end(returned(0.0))
        assert eventually(lambda: loop.run.trials[0].state == "COMPLETE")
        time.sleep(0.1)
        assert cluster.started == [(0, 0)]
        assert loop.run.state == "RUNNING"
        run.unpause()
        for number in (1, 2, 3):
            cluster.attempt(number).end(returned(1.0))
    assert loop.run.counts() == {"COMPLETE": 4}
    assert [trial.attempts for trial in loop.run.trials] == [1, 1, 1, 1]
    assert [event["action"] for event in controls(loop.run)] == ["pause", "unpause"]
    assert cluster.started == [(number, 0) for number in range(4)]
    assert not experiment.load(loop.run.path).is_paused


@both
def test_set_changes_the_number_of_trials_at_once(root: str, how: str) -> None:
    cluster = InMemoryCluster(num_slots=4)
    with background(new_loop(root, cluster, request_of(8, parallelism=1))) as loop:
        cluster.attempt(0)
        run = reach(loop, how)
        run.set(parallelism=3)
        attempts = [cluster.attempt(number) for number in range(3)]
        run.set(parallelism=1)
        for attempt in attempts[:2]:
            attempt.end(returned(1.0))
        assert eventually(lambda: loop.run.counts().get("COMPLETE") == 2)
        time.sleep(0.05)
        assert cluster.num_running == 1
        run.set(parallelism=4)
        cluster.attempt(5)  # The fourth of those that run now.
        for number in range(2, 8):
            cluster.attempt(number).end(returned(1.0))
    assert cluster.max_running == 4
    assert [e["arguments"] for e in controls(loop.run)] == [{"parallelism": n} for n in (3, 1, 4)]


@both
def test_enqueue_adds_a_trial_to_a_launch(root: str, how: str) -> None:
    cluster = InMemoryCluster(same, num_slots=1)
    gate = threading.Event()
    cluster._run_task = lambda attempt: (gate.wait(120), same(attempt))[1]
    with background(new_loop(root, cluster, request_of(2))) as loop:
        run = reach(loop, how)
        run.enqueue({"x": 7.5})
        assert [trial.params for trial in experiment.load(run.path).trials][2] == {"x": 7.5}
        refused(lambda: run.enqueue({"y": 1}), r"params contains 'y', which train\(x\) does not")
        gate.set()
    assert [trial.value for trial in loop.run.trials] == [0.0, 1.0, 7.5]
    done, not_done = controls(loop.run)
    assert (done["number"], done.get("refused")) == (2, None)
    assert "does not take" in not_done["refused"]


@both
def test_enqueue_adds_a_trial_to_a_search(root: str, how: str) -> None:
    cluster = InMemoryCluster()
    with searched(root, cluster, num_trials=2) as loop:
        first = cluster.attempt(0)
        run = reach(loop, how)
        run.enqueue({"x": 0.125})
        refused(lambda: run.enqueue({"x": 2.0}), "x=2.0 is not a value of")
        refused(lambda: run.enqueue({"y": 0.5}), "unknown parameter 'y'")
        first.end(returned(score=0.1))
        for number in (1, 2):
            cluster.attempt(number).end(returned(score=0.2))
    assert loop.run.trials[1].params == {"x": 0.125}  # Before what the sampler proposes.
    assert loop.run.counts() == {"COMPLETE": 3}


@both
def test_set_changes_the_number_of_configurations_of_a_search(root: str, how: str) -> None:
    cluster = InMemoryCluster()
    with searched(root, cluster, num_trials=2) as loop:
        cluster.attempt(0).end(returned(score=0.1))
        second = cluster.attempt(1)
        run = reach(loop, how)
        refused(lambda: run.set(num_trials=1), "num_trials=1 is below 2")
        run.set(num_trials=4)
        second.end(returned(score=0.1))
        for number in (2, 3):
            cluster.attempt(number).end(returned(score=0.2))
    assert loop.run.counts() == {"COMPLETE": 4}


def test_set_extends_a_grid_and_enqueue_chooses_its_next_point(root: str) -> None:
    cluster = InMemoryCluster()
    with searched(root, cluster, space=GRID, algorithm="grid", num_trials=1) as loop:
        first = cluster.attempt(0)
        run = reach(loop, "loaded")
        run.enqueue({"x": 0.5})
        run.set(num_trials=9)
        first.end(returned(score=0.1))
        cluster.attempt(1).end(returned(score=0.2))
        cluster.attempt(2).end(returned(score=0.2))
    assert [trial.params["x"] for trial in loop.run.trials] == [0.0, 0.5, 0.25]


def test_enqueue_adds_all_repeats_of_a_configuration(root: str) -> None:
    cluster = InMemoryCluster()
    with searched(root, cluster, num_trials=2, repeats=2) as loop:
        first = cluster.attempt(0)
        reach(loop, "loaded").enqueue({"x": 0.5})
        first.end(returned(score=0.1))
        for number in range(1, 6):
            cluster.attempt(number).end(returned(score=0.2))
    assert [trial.configuration for trial in loop.run.trials] == [0, 0, 1, 1, 2, 2]
    assert [trial.params["x"] for trial in loop.run.trials][2:4] == [0.5, 0.5]
    assert controls(loop.run)[0]["number"] == 2


def test_enqueue_that_is_refused_leaves_no_repeat_behind(root: str) -> None:
    """The repeats that the newest configuration lacks are created by `enqueue`, or run later."""
    cluster = InMemoryCluster(num_slots=1)
    space = {"space": suggested_x, "num_trials": 1, "repeats": 3}
    with searched(root, cluster, **space) as loop:
        cluster.attempt(0)
        run = reach(loop, "loaded")
        refused(lambda: run.enqueue({"x": "high"}), "float-castable")
        for number in range(3):
            cluster.attempt(number).end(returned(score=0.2))
    assert loop.run.counts() == {"COMPLETE": 3}


@both
def test_function_that_raises_for_enqueued_parameters_does_not_end_the_run(
    root: str, how: str
) -> None:
    def space(trial: optuna.Trial) -> dict[str, Any]:
        return {"x": {0: 0.25, 1: 0.75}[trial.suggest_int("index", 0, 9)]}

    cluster = InMemoryCluster(num_slots=1)
    with searched(root, cluster, space=space, num_trials=1, initial_params=[{"index": 0}]) as loop:
        first = cluster.attempt(0)
        run = reach(loop, how)
        refused(lambda: run.enqueue({"index": 7}), "KeyError: 7")
        run.enqueue({"index": 1})
        first.end(returned(score=0.1))
        cluster.attempt(1).end(returned(score=0.2))
    assert loop.run.counts() == {"COMPLETE": 2}
    assert [event.get("refused") for event in controls(loop.run)] == ["KeyError: 7", None]


@both
def test_set_ends_a_search_that_has_reached_the_new_target(root: str, how: str) -> None:
    cluster = InMemoryCluster()
    with searched(root, cluster) as loop:
        cluster.attempt(0).end(returned(score=0.5))
        cluster.attempt(1)
        run = reach(loop, how)
        refused(lambda: run.set(stop={"loss": 1}), "stop has 'loss', whose direction is unknown")
        refused(lambda: run.set(stop={"loss": 1}, num_trials=9), "whose direction is unknown")
        run.set(stop={"score": 0.75})
        assert loop.run.state == "RUNNING"
        run.set(stop={"score": 0.5})
    assert loop.run.state == "COMPLETE"
    assert loop.run.reason == "stop: trial 0 has score 0.5, of 0.5"
    assert len(loop.run.trials) == 2


@both
def test_set_changes_the_time_limit(root: str, how: str) -> None:
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(1, timeout_s=600))) as loop:
        cluster.attempt(0)
        run = reach(loop, how)
        time.sleep(0.1)
        refused(lambda: run.set(timeout_s=0.01), "timeout_s=0.01 is over: the first trial started")
        limit_s = end_soon(run)
    assert (loop.run.state, loop.run.reason) == ("CANCELLED", f"timeout_s={limit_s:g} is over")


def test_settings_of_a_search_are_refused_for_a_launch(root: str) -> None:
    with background(new_loop(root, InMemoryCluster(), request_of(1))) as loop:
        run = reach(loop, "loaded")
        refused(lambda: run.set(num_trials=3, parallelism=2), "only a search has num_trials")
        assert loop.prepared.concurrency._parallelism is None  # All of it is refused.
        run.cancel()


@both
def test_wrong_arguments_are_refused_before_anything_is_written(root: str, how: str) -> None:
    with background(new_loop(root, InMemoryCluster(), request_of(1))) as loop:
        run = reach(loop, how)
        for arguments, match in (
            ({}, "set was called without a value"),
            ({"n_trials": 5}, "set has no 'n_trials'. Did you mean 'num_trials'"),
            ({"parallelism": 0}, "parallelism is 0; expected a whole number of at least 1"),
            ({"stop": 3}, "stop is 3; expected a dict"),
            ({"timeout_s": -1}, "timeout_s is -1; expected seconds"),
        ):
            with pytest.raises(ConfigError, match=match):
                run.set(**arguments)
        with pytest.raises(ConfigError, match="'x' holds"):
            run.enqueue({"x": object()})
        with pytest.raises(ControlError, match="look like credentials"):
            run.enqueue({"password": "hunter2-Xk3!"})
        with pytest.raises(ConfigError, match="has no trial 99; it has the trials 0 to 0"):
            run.cancel(99)
        for trial in ("0", 0.0, False):
            with pytest.raises(ConfigError, match=f"trial is {trial!r}; expected a trial, or its"):
                run.cancel(trial)  # type: ignore[arg-type]
        assert command_names(loop.opened.paths) == []
        run.cancel()


def test_known_secret_is_refused_masked_and_its_file_removed(root: str) -> None:
    request = request_of(1, secrets=["correct-horse"])
    with background(new_loop(root, InMemoryCluster(), request)) as loop:
        run = experiment.load(loop.run.path)
        refused(lambda: run.enqueue({"x": "correct-horse"}), "look like credentials")
        run.cancel()
    for path in Path(loop.run.path).rglob("*"):
        assert path.is_dir() or "correct-horse" not in path.read_text(), path
    assert controls(loop.run)[0]["arguments"] == {"params": {"x": "***"}}


@both
def test_cancel_of_one_trial_and_of_the_run(root: str, how: str) -> None:
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(4))) as loop:
        cluster.attempt(0), cluster.attempt(1)
        run = reach(loop, how)
        run.cancel(1)
        cluster.attempt(2)
        run.cancel(run.trials[3])
        assert eventually(lambda: loop.run.trials[1].state == "CANCELLED")
        if how == "loaded":
            refused(lambda: run.cancel(1), "trial 1 has ended, CANCELLED")
        run.cancel()
    assert loop.run.state == "CANCELLED"
    assert [str(trial.error) for trial in loop.run.trials][1] == "cancelled"
    me = controls(loop.run)[0]["by"]
    assert loop.run.reason == ("cancelled" if how == "own" else f"cancelled by {me}")
    assert [e["arguments"] for e in controls(loop.run) if not e.get("refused")] == [
        {"trial": 1},
        {"trial": 3},
        {},
    ]


@both
def test_numbers_of_numpy_are_taken(root: str, how: str) -> None:
    """The numbers of trials and values that a table of pandas has."""
    cluster = InMemoryCluster()
    with searched(root, cluster) as loop:
        cluster.attempt(0)
        run = reach(loop, how)
        run.set(stop={"score": np.float32(0.5)})
        run.cancel(np.int64(0))  # type: ignore[arg-type]
        cluster.attempt(1).end(returned(score=0.5))
    assert loop.run.counts() == {"COMPLETE": 1, "CANCELLED": 1}
    assert loop.run.reason == "stop: trial 1 has score 0.5, of 0.5"


def test_distributed_run_is_one_trial(root: str) -> None:
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(kind="allreduce"))) as loop:
        run = reach(loop, "loaded")
        refused(lambda: run.enqueue({}), "the run is a allreduce, which is one trial")
        run.pause()
        cluster.attempt(0).end(returned(1.0))
    assert loop.run.state == "COMPLETE"


# ---- what the journal tells


def test_journal_tells_what_was_asked_by_whom_and_when(root: str) -> None:
    begun = time.time()
    with background(new_loop(root, InMemoryCluster(), request_of(1))) as loop:
        run = experiment.load(loop.run.path)
        run.set(parallelism=2)
        loop.run.attach(RunHandle(loop))
        loop.run.pause()
        run.cancel()
    outside, inside, _ = controls(run)
    user, host = outside["by"].split("@")
    assert user
    assert host == os.uname().nodename
    assert outside["pid"] == os.getpid()
    assert begun - 1 <= outside["asked"] <= outside["time"] + 1
    assert outside["id"] == command_names(RunPaths(run.path))[0]
    assert (inside["action"], inside.get("id"), inside["pid"]) == ("pause", None, os.getpid())


def test_two_processes_at_once_and_wrong_clocks_lose_and_repeat_nothing(root: str) -> None:
    cluster = InMemoryCluster(num_slots=1)
    with background(new_loop(root, cluster, request_of(1))) as loop:
        cluster.attempt(0)
        path = loop.run.path
        threads = [
            threading.Thread(target=lambda n=n: experiment.load(path).enqueue({"x": float(n)}))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        late = Path(path, "control", f"{0:017d}-early.json")  # A clock that is years behind.
        content = {"action": "enqueue", "arguments": {"params": {"x": 99.0}}}
        late.write_text(json.dumps({**content, "by": "a@b", "pid": 1, "asked": 0.0}))
        assert eventually(lambda: len(loop.run.trials) == 10)
        loop.cancel(None)
    assert sorted(trial.params["x"] for trial in loop.run.trials[1:]) == [*map(float, range(8)), 99]
    assert len(controls(loop.run)) == 10


def test_damaged_file_is_refused_and_a_late_one_is_read(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkdl.runner.loop.command_inbox.TORN_S", 1e6)
    with background(new_loop(root, InMemoryCluster(), request_of(1))) as loop:
        folder = Path(loop.run.path, "control")
        (folder / "0-0.json").mkdir()  # Cannot be read as a file.
        (folder / "1-a.json").write_text('{"action": "pau')
        (folder / "2-b.json").write_text('{"action": "pau')
        (folder / "3-c.json").write_text('{"action": "fly", "arguments": {}, "by": "a@b"}')
        given = json.dumps({"action": "pause", "arguments": {}, "by": "", "pid": 1, "asked": 1})
        (folder / "2-b.json").write_text(given)
        given = given.replace("pause", "set").replace('"arguments": {}', '"arguments": {"z": 1}')
        (folder / "4-d.json").write_text(given)
        assert eventually(lambda: loop.run.is_paused)
        monkeypatch.setattr("sparkdl.runner.loop.command_inbox.TORN_S", 0.0)
        assert eventually(lambda: len(controls(loop.run)) == 5)
        loop.cancel(None)
    answers = {event["id"]: event.get("refused") for event in controls(loop.run) if "id" in event}
    assert answers["2-b"] is None
    assert "'unreadable' is not a command" in answers["0-0"]
    assert "'unreadable' is not a command" in answers["1-a"]
    assert "'unreadable' is not a command" in answers["3-c"]
    assert "z cannot be set" in answers["4-d"]


# ---- drivers that end, and other drivers


def test_run_that_has_ended_refuses_every_command(root: str) -> None:
    with background(new_loop(root, InMemoryCluster(same), request_of(2))) as loop:
        pass
    own, loaded = reach(loop, "own"), experiment.load(loop.run.path)
    loop.inbox._thread = threading.get_ident()  # As after a run that was waited for.
    for run in (own, loaded):
        for call in (run.pause, run.unpause, lambda: run.enqueue({"x": 1}), run.cancel):
            if (run, call) != (own, own.cancel):
                with pytest.raises(ControlError, match="was not carried out: run run has ended"):
                    call()
    own.cancel()  # A program may end its own run in any case.
    with pytest.raises(ControlError, match=r"set\(num_trials=5\) .* run run has ended COMPLETE"):
        loaded.set(num_trials=5)
    assert command_names(RunPaths(own.path)) == []


def test_run_that_ends_in_the_meantime_refuses_and_no_later_driver_obeys(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CommandInbox, "take", lambda self, in_loop: None)
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(1))) as loop:
        threading.Timer(0.2, lambda: cluster.attempt(0).end(returned(1.0))).start()
        refused(experiment.load(loop.run.path).pause, "run run has ended COMPLETE")
    assert command_names(loop.opened.paths) == []


def test_dead_driver_is_named_at_once(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with background(new_loop(root, InMemoryCluster(same), request_of(2))) as loop:
        pass
    folder = Path(loop.run.path, "owner")
    (folder / "1.ended").unlink()
    claim = json.loads((folder / "1.json").read_text())
    (folder / "1.json").write_text(json.dumps({**claim, "pid": 2**22 + 1}))
    monkeypatch.setattr(asking, "ANSWER_S", (1e6, 1e6))
    run = experiment.load(loop.run.path)
    refused(run.cancel, f"no driver answers for run run: process {2**22 + 1} on host .* has ended")
    assert command_names(RunPaths(run.path)) == []


@pytest.mark.parametrize("is_alive", [True, False])
def test_driver_elsewhere_that_does_not_answer(
    root: str, monkeypatch: pytest.MonkeyPatch, is_alive: bool
) -> None:
    monkeypatch.setattr(owner, "BEAT_S", 0.05)
    monkeypatch.setattr(asking, "ANSWER_S", (0.5, 0.5))
    monkeypatch.setattr(asking, "is_here", lambda process: False)
    prepared = prepare(request_of(1), packed(), InMemoryCluster())
    opened = open_run(root, description_of(prepared), "error")
    run = experiment.load(opened.run.path)
    if is_alive:
        refused(run.pause, r"is alive but has not answered yet. pause\(\) stays in")
        assert len(command_names(opened.paths)) == 1
    else:
        is_silent = threading.Event()
        monkeypatch.setattr(owner.Owner, "_write_beat", lambda self, number: is_silent.set())
        assert is_silent.wait(120)  # The last heartbeat is written.
        refused(run.pause, "no driver answers for run run")
        assert command_names(opened.paths) == []  # No later driver pauses.
    opened.owner.release()


def test_interrupt_withdraws_a_command_that_no_driver_has_answered(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next driver, perhaps of another day, must not be cancelled by it."""

    def interrupted(seconds: float) -> None:
        assert len(command_names(opened.paths)) == 1
        raise KeyboardInterrupt

    opened = open_run(
        root, description_of(prepare(request_of(), packed(), InMemoryCluster())), "error"
    )
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=interrupted)
    monkeypatch.setattr(asking, "time", clock)
    with pytest.raises(KeyboardInterrupt):
        experiment.load(opened.run.path).cancel()
    assert command_names(opened.paths) == []
    opened.owner.release()


def test_next_driver_obeys_what_no_driver_has_answered_and_repeats_nothing(root: str) -> None:
    cluster = InMemoryCluster(num_slots=1)
    with background(new_loop(root, cluster, request_of(2))) as loop:
        cluster.attempt(0)
        experiment.load(loop.run.path).enqueue({"x": 5.0})
        loop.cancel(None)
    path = loop.run.path
    give(path, "enqueue", params={"x": 6.0})
    again = InMemoryCluster(same)
    continued_loop(path, again, request_of(2)).execute()
    assert [trial.params["x"] for trial in experiment.load(path).trials] == [0.0, 1.0, 5.0, 6.0]
    assert [e["number"] for e in controls(path) if e["action"] == "enqueue"] == [2, 3]
    resumed = continued_loop(path, InMemoryCluster(same), request_of(2), reopen=True)
    resumed.execute()
    assert resumed.run.counts() == {"COMPLETE": 4}


def test_driver_that_was_taken_over_leaves_commands_to_its_successor(root: str) -> None:
    prepared = prepare(request_of(1), packed(), InMemoryCluster())
    opened = open_run(root, description_of(prepared), "error")
    performed: list[str] = []
    control = CommandInbox(
        opened, lambda given, event: performed.append(str(given.command)), lambda: None
    )
    give(opened.run.path, "pause")
    successor = owner.Owner(opened.paths)
    successor.claim(2)
    control.take()
    assert performed == []
    successor.release()
    opened.owner.release()


def test_command_from_the_thread_of_the_preflight_is_carried_out_by_the_loop(root: str) -> None:
    prepared = prepare(request_of(1), packed(), InMemoryCluster())
    opened = open_run(root, description_of(prepared), "error")
    threads: list[str] = []

    def begin_loop() -> None:
        loop = threading.Thread(target=control.take, kwargs={"in_loop": True}, name="loop")
        loop.start()

    control = CommandInbox(
        opened,
        lambda given, event: threads.append(threading.current_thread().name),
        begin_loop,
    )
    control.take()  # As the preflight does, in the thread of the verb.
    control.call(Command("pause"))
    assert threads == ["loop"]
    opened.owner.release()


def test_paused_run_that_its_driver_leaves_can_be_resumed(root: str) -> None:
    cluster = InMemoryCluster(num_slots=1)
    with background(new_loop(root, cluster, request_of(3))) as loop:
        cluster.attempt(0)
        experiment.load(loop.run.path).pause()
        loop.cancel(None)
    assert loop.run.counts() == {"CANCELLED": 3}
    resumed = continued_loop(loop.run.path, InMemoryCluster(same), request_of(3))
    resumed.execute()
    assert resumed.run.counts() == {"COMPLETE": 3}
    assert not resumed.run.is_paused


def test_resume_keeps_what_was_set_and_enqueued(root: str) -> None:
    cluster = InMemoryCluster()
    with searched(root, cluster, num_trials=2) as loop:
        cluster.attempt(0)
        run = experiment.load(loop.run.path)
        run.set(num_trials=4, parallelism=3, timeout_s=500)
        run.enqueue({"x": 0.25})
        run.cancel()

    def at_once(_: Attempt) -> Outcome:
        assert eventually(lambda: again.max_running == 3)
        return returned(score=0.5)

    again = InMemoryCluster(at_once, num_slots=4)
    resumed = resume_run(run.path, train, {}, frozenset(), None, {"progress": False}, again)
    assert resumed.counts() == {"COMPLETE": 5}
    assert again.max_running == 3
    assert [trial.params["x"] for trial in resumed.trials].count(0.25) == 1


def test_verb_that_resumes_a_launch_accepts_enqueued_trials(root: str) -> None:
    cluster = InMemoryCluster(num_slots=1)
    with background(new_loop(root, cluster, request_of(2))) as loop:
        cluster.attempt(0)
        experiment.load(loop.run.path).enqueue({"x": 9.0})
        loop.cancel(None)
    run = execute(request_of(2, root=root, if_exists="resume"), InMemoryCluster(same))
    assert [trial.value for trial in run.trials] == [0.0, 1.0, 9.0]


DISTRIBUTION = optuna.distributions.distribution_to_json(
    optuna.distributions.FloatDistribution(0.0, 1.0)
)


def ask_for_x(attempt: Attempt) -> Outcome:
    return returned(score=attempt.ask(0, suggest="x", distribution=DISTRIBUTION)["value"])


def test_enqueued_parameters_reach_an_objective_also_after_a_resume(root: str) -> None:
    cluster = InMemoryCluster()
    settings = SearchSettings(space=None, algorithm="random", num_trials=1)
    request = request_of(search=settings, parallelism=1, metric="score")
    with background(new_loop(root, cluster, request)) as loop:
        cluster.attempt(0)  # Goes on until the run is cancelled.
        run = experiment.load(loop.run.path)
        run.pause()
        run.enqueue({"x": 0.375})
        run.cancel()
    again = InMemoryCluster(ask_for_x)
    loop = continued_loop(run.path, again, request)
    loop.execute()
    assert 0.375 in [trial.value for trial in loop.run.trials]


def test_enqueued_value_that_an_objective_cannot_use_fails_its_trial_only(root: str) -> None:
    def outcome(attempt: Attempt) -> Outcome:
        if not attempt.number:
            return attempt.wait()
        answer = attempt.ask(0, suggest="x", distribution=DISTRIBUTION)
        return raised(answer["error"]) if "error" in answer else returned(score=answer["value"])

    cluster = InMemoryCluster(outcome)
    with searched(root, cluster, space=None, num_trials=2) as loop:
        first = cluster.attempt(0)
        experiment.load(loop.run.path).enqueue({"x": "high"})
        first.end(returned(score=0.5))
    assert loop.run.counts() == {"COMPLETE": 2, "FAILED": 1}
    assert "the value that was chosen for 'x': 'high' is not a valid" in loop.run.failed[0].summary


# ---- threads


class Pausing:
    """An observer that controls its run from within the loop."""

    def __init__(self) -> None:
        self.run: Run | None = None

    def trial_started(self, trial: Trial, attempt: int) -> None:
        pass

    def trial_ended(self, trial: Trial) -> None:
        if trial.number == 0 and self.run:
            self.run.enqueue({"x": 3.0})

    def run_ended(self) -> None:
        pass


def test_observer_may_control_its_run(root: str) -> None:
    observer = Pausing()
    loop = new_loop(root, InMemoryCluster(same), request_of(2), [observer])
    observer.run = reach(loop, "own")
    loop.execute()
    assert [trial.value for trial in loop.run.trials] == [0.0, 1.0, 3.0]


def test_interrupt_of_wait_leaves_the_run_of_another_process_alone(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(1))) as loop:
        attempt = cluster.attempt(0)
        loaded = experiment.load(loop.run.path)
        with monkeypatch.context() as patch:
            patch.setattr(
                LoadedRunHandle, "_pause", lambda self: (_ for _ in ()).throw(KeyboardInterrupt)
            )
            with pytest.raises(KeyboardInterrupt):
                loaded.wait()
        attempt.end(returned(1.0))
    assert loop.run.state == "COMPLETE"


def test_wait_of_a_loaded_run_raises_as_the_verb(root: str) -> None:
    with background(new_loop(root, InMemoryCluster(), request_of(1))) as loop:
        loaded = experiment.load(loop.run.path)
        threading.Timer(0.2, lambda: experiment.load(loop.run.path).cancel()).start()
        with pytest.raises(RunStoppedError, match=r"ended CANCELLED \(cancelled by ") as caught:
            loaded.wait()
    assert caught.value.run is loaded


def test_run_on_a_store_that_cannot_append(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "BEAT_S", 0.05)
    monkeypatch.setattr(trial_loop, "REMOTE_POLL_S", 0.02)
    cluster = InMemoryCluster(num_slots=1)
    with background(new_loop(f"{s3}/control", cluster, request_of(2))) as loop:
        first = cluster.attempt(0)
        run = experiment.load(loop.run.path)
        run.pause()
        run.enqueue({"x": 2.0})
        refused(lambda: run.enqueue({"y": 2.0}), "does not take")
        first.end(returned(0.0))
        run.unpause()
        for number in (1, 2):
            cluster.attempt(number).end(returned(1.0))
    assert [event["action"] for event in controls(run)] == ["pause", *["enqueue"] * 2, "unpause"]
    assert loop.run.counts() == {"COMPLETE": 3}


def test_remote_store_is_listed_at_the_pace_of_the_heartbeat(
    counting_store: CountingStore,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared = prepare(request_of(300), packed(), InMemoryCluster())
    opened = open_run(counting_store.url("runs"), description_of(prepared), "error")
    performed: list[str] = []
    control = CommandInbox(
        opened, lambda given, event: performed.append(str(given.command)), lambda: None
    )
    now = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    counting_store.requests.clear()
    for _ in range(100):  # 20 s of a loop that turns every 0.2 s.
        control.take()
        now[0] += 0.2
    assert len(counting_store.requests) <= 5
    give(opened.run.path, "pause")
    now[0] += owner.BEAT_S
    control.take()
    assert performed == ["pause()"]
    monkeypatch.undo()
    opened.owner.release()


# ---- finding the run


def test_load_takes_an_id_a_path_or_nothing(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKDL_ROOT", root)
    for run_id in ("zebra", "ant"):
        with background(new_loop(root, InMemoryCluster(same), request_of(1, run_id=run_id))):
            pass
        time.sleep(0.005)
    storage.write(f"{root}/notes/run.json", "{")
    assert experiment.load().id == "ant"
    assert experiment.load("zebra").id == "zebra"
    assert experiment.load(Path(root, "zebra")).id == "zebra"
    monkeypatch.chdir(root)
    monkeypatch.setenv("SPARKDL_ROOT", f"{root}/none")
    assert experiment.load("zebra").path == f"{root}/zebra"
    with pytest.raises(FileNotFoundError, match="there is no run below"):
        experiment.load()
    with pytest.raises(FileNotFoundError, match=r"no run at .*/none/bee"):
        experiment.load("bee")
