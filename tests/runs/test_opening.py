"""A run directory is created once; a retried job resumes it without harm."""

import errno
import hashlib
import itertools
import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.errors import ConfigError, RunDamagedError, RunExistsError, RunNotFoundError
from sparkdl.files import polling, storage
from sparkdl.files.layout import FORMAT, RunPaths
from sparkdl.runs import opening
from sparkdl.runs.events import RunEnded, TrialChanged, TrialsAdded
from sparkdl.runs.history import history, load
from sparkdl.runs.ids_and_seeds import new_run_id, trial_seed
from sparkdl.runs.large_outputs import LARGE_BYTES
from sparkdl.runs.opening import IfExists, OpenRun, RunDescription, continue_run, open_run
from sparkdl.runs.owner import Claim, newest_claim
from sparkdl.runs.states import Failure, RunState, TrialState
from tests.helpers.processes import eventually
from tests.helpers.runs import journal_lines, segments
from tests.helpers.stored_runs import started

DESCRIPTION = RunDescription(
    id="nightly",
    name="nightly",
    kind="launch",
    description=None,
    metric="accuracy",
    direction="max",
    params=[{"lr": 0.1, "password": "hunter22"}, {"lr": 0.2, "password": "s3cret"}],
    seed=3,
    secrets=("s3cret",),
    facts={},
)


def hashes(root: str) -> dict[str, str]:
    files = (p for p in Path(root).rglob("*") if p.is_file())
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def complete(opened: OpenRun, number: int) -> None:
    opened.record(TrialChanged(number=number, state=TrialState.COMPLETE, value=0.5))


def test_open_run_writes_a_new_run_without_secrets(root: str) -> None:
    opened = open_run(root, DESCRIPTION, "error")
    assert [t.params["password"] for t in opened.run.trials] == ["***", "***"]
    assert opened.run.trials[1].seed == trial_seed(3, 1)
    text = "".join(p.read_text() for p in Path(root).rglob("*") if p.is_file())
    assert "hunter22" not in text
    assert "s3cret" not in text


def test_open_run_refuses_a_living_run_and_names_its_owner(root: str) -> None:
    open_run(root, DESCRIPTION, "error")
    for if_exists in ("error", "resume"):
        with pytest.raises(RunExistsError, match="is being run by process"):
            open_run(root, DESCRIPTION, if_exists)  # type: ignore[arg-type]
    assert open_run(root, DESCRIPTION, "new").run.id == "nightly-2"


def test_open_run_resume_makes_stopped_trials_wait(root: str) -> None:
    opened = open_run(root, DESCRIPTION, "error")
    for number, error in enumerate(("the run was stopped: interrupted", "cancelled")):
        event = TrialChanged(number=number, state=TrialState.CANCELLED, error=error)
        opened.journal.write([event])
    opened.journal.write([RunEnded(state=RunState.CANCELLED, reason="interrupted")])
    opened.owner.release()
    again = open_run(root, DESCRIPTION, "resume")
    assert [str(t.state) for t in again.run.trials] == ["WAITING", "CANCELLED"]
    assert [t.attempts for t in again.run.trials] == [0, 0]


def test_open_run_after_a_killed_start_creates_the_run(root: str) -> None:
    opened = open_run(root, DESCRIPTION, "error")
    opened.owner.release()
    Path(opened.paths.run).unlink()
    again = open_run(root, DESCRIPTION, "resume")
    assert len(again.run.trials) == 2
    assert len(load(again.run.path).trials) == 2


def test_open_run_of_an_ended_run_obeys_if_exists(root: str) -> None:
    opened = open_run(root, DESCRIPTION, "error")
    complete(opened, 0)
    opened.owner.release()
    with pytest.raises(RunExistsError, match="if_exists='resume'"):
        open_run(root, DESCRIPTION, "error")
    beside = open_run(root, DESCRIPTION, "new")
    assert beside.run.id == "nightly-2"
    again = open_run(root, replace(DESCRIPTION, seed=99), "resume")
    assert again.seed == 3
    assert [str(t.state) for t in again.run.trials] == ["COMPLETE", "WAITING"]
    again.owner.release()


def test_open_run_refuses_to_resume_another_request_and_changes_nothing(root: str) -> None:
    open_run(root, DESCRIPTION, "error").owner.release()
    before = hashes(root)
    other = replace(
        DESCRIPTION, params=[{"lr": 0.1, "password": "x"}, {"lr": 0.9, "password": "x"}]
    )
    with pytest.raises(RunExistsError, match=r"args was .*0\.2.* and is now .*0\.9"):
        open_run(root, other, "resume")
    with pytest.raises(RunExistsError, match="metric was 'accuracy' and is now 'loss'"):
        open_run(root, replace(DESCRIPTION, metric="loss"), "resume")
    assert hashes(root) == before


def test_load_after_a_dead_driver_is_failed_and_readable(root: str) -> None:
    opened = open_run(root, DESCRIPTION, "error")
    complete(opened, 1)
    opened.journal.write([TrialChanged(number=0, state=TrialState.RUNNING, attempt=0)])
    opened.owner.release()
    run = load(opened.run.path)
    assert run.state == "FAILED"
    assert "its driver ended" in (run.reason or "")
    assert [str(t.state) for t in run.trials] == ["LOST", "COMPLETE"]
    assert history(root)["run"].tolist() == ["nightly"]
    with pytest.raises(RunNotFoundError, match=r"no run\.json"):
        load(root)


def test_run_ids_are_names_of_folders() -> None:
    assert new_run_id("a/b c").startswith("a-b-c-")
    assert new_run_id("…").startswith("run-")
    for bad in ("a/b", "..", "", "ü", "models"):
        with pytest.raises(ConfigError, match="run_id"):
            open_run("/nowhere", replace(DESCRIPTION, id=bad), "error")


@given(st.integers(0, 2**31), st.integers(0, 10_000))
def test_trial_seed_depends_on_run_seed_and_number_only(seed: int, number: int) -> None:
    assert trial_seed(seed, number) == trial_seed(seed, number)
    assert 0 <= trial_seed(seed, number) < 2**31


def test_trial_seeds_differ() -> None:
    assert len({trial_seed(s, n) for s in range(30) for n in range(1000)}) > 29_990


# ---- one owner


@pytest.mark.parametrize("exists", [False, True])
def test_of_two_starts_at_the_same_moment_one_owns_the_run(
    root: str, exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if exists:
        open_run(root, DESCRIPTION, "error").owner.release()
    both_look, outcomes = threading.Barrier(2), []
    have_looked: set[int] = set()

    def looked(paths: Any) -> Claim:
        claim = newest_claim(paths)
        if threading.get_ident() not in have_looked:
            have_looked.add(threading.get_ident())
            both_look.wait(120)
        return claim

    monkeypatch.setattr(opening, "newest_claim", looked)

    def start() -> None:
        try:
            outcomes.append(open_run(root, DESCRIPTION, "resume"))
        except RunExistsError as exc:
            outcomes.append(exc)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened = [outcome for outcome in outcomes if isinstance(outcome, OpenRun)]
    assert (len(opened), len(outcomes)) == (1, 2)
    opened[0].owner.release()
    assert len(load(opened[0].run.path).trials) == 2


def test_driver_that_was_slow_does_not_skip_the_claim_of_a_faster_one(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_run(root, DESCRIPTION, "error")
    opened.owner.release()
    path = opened.run.path
    read_events, faster = opening.read_events, []

    def read_after_a_faster_driver(path: str) -> Any:
        if not faster:
            faster.append(path)
            faster.append(continue_run(path))
        return read_events(path)

    monkeypatch.setattr(opening, "read_events", read_after_a_faster_driver)
    with pytest.raises(RunExistsError, match="is being run by"):
        continue_run(path)
    assert newest_claim(RunPaths(path)).number == 2
    faster[1].owner.release()


def test_run_whose_claims_were_removed_goes_on_in_a_new_session(root: str) -> None:
    opened = open_run(root, DESCRIPTION, "error")
    complete(opened, 0)
    opened.owner.release()
    shutil.rmtree(opened.paths.owners)
    again = continue_run(opened.run.path)
    assert again.owner.number == 2
    assert again.run.counts() == {"COMPLETE": 1, "WAITING": 1}
    again.owner.release()


def test_events_of_a_driver_that_was_taken_for_dead_are_ignored(root: str) -> None:
    old = open_run(root, DESCRIPTION, "error")
    Path(old.paths.owners, "1.ended").write_text("{}")  # As if it was silent on another host.
    new = continue_run(old.run.path)
    assert new.owner.number == 2
    complete(old, 0)
    complete(new, 1)
    run = load(old.run.path)
    assert [str(trial.state) for trial in run.trials] == ["WAITING", "COMPLETE"]
    new.owner.release()
    old.owner.release()


def test_new_run_waits_for_no_driver_that_was_killed_before_it_created_the_run(root: str) -> None:
    opened = open_run(root, replace(DESCRIPTION, params=[{"lr": 0.1}] * 3), "error")
    opened.owner.release()
    Path(opened.paths.run).unlink()
    again = open_run(root, DESCRIPTION, "error")
    assert len(again.run.trials) == len(load(again.run.path).trials) == 2
    again.owner.release()


# ---- disks that are full


def no_space(url: str, data: Any = b"") -> None:
    raise OSError(errno.ENOSPC, "No space left on device", url)


def test_run_that_cannot_be_created_names_its_folder_and_what_to_do(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "OPEN_S", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "append", no_space)
        with pytest.raises(OSError, match="nightly cannot be written: No space left") as raised:
            open_run(root, DESCRIPTION, "error")
        assert "free some space" in str(raised.value)
        assert raised.value.errno == errno.ENOSPC
    opened = open_run(root, DESCRIPTION, "error")  # In the same process, once there is space.
    assert opened.owner.number == 2
    opened.owner.release()


def test_run_whose_end_cannot_be_written_is_released(
    root: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sparkdl.runs.journal.RETRY_S", 0.1)
    opened = open_run(root, DESCRIPTION, "error")
    with monkeypatch.context() as patch:
        patch.setattr(storage, "append", no_space)
        complete(opened, 0)
        opened.close(RunEnded(state=RunState.COMPLETE))
    assert eventually(lambda: opened.journal._thread is None)
    assert "2 events could not be written" in caplog.text
    assert "free some space" in caplog.text
    again = open_run(root, DESCRIPTION, "resume")
    again.owner.release()


# ---- stores of which a call fails

CALLS = ("exists", "list_names", "read", "write", "create", "append", "remove")


def fail_once(monkeypatch: pytest.MonkeyPatch, at: int, is_done: bool) -> list[str]:
    """Let one call of the store fail, and return the list of the calls so far.

    Args:
        monkeypatch: undoes it.
        at: the number of the call that fails.
        is_done: the store does what was asked, and only its answer is lost.
    """
    calls: list[str] = []

    def failing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            calls.append(name)
            if len(calls) - 1 != at:
                return function(*args)
            if is_done:
                function(*args)
            raise OSError(errno.EIO, "the store is busy", args[0])

        return call

    for name in CALLS:
        monkeypatch.setattr(storage, name, failing(name, getattr(storage, name)))
    return calls


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("if_exists", ["error", "resume", "new"])
def test_a_store_that_fails_for_a_moment_does_not_refuse_a_run(
    root: str, if_exists: IfExists, is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "pause_s", lambda num_failures: 0.01)
    for at in itertools.count():
        folder = f"{root}/{at}"
        if if_exists != "error":
            open_run(folder, DESCRIPTION, "error").owner.release()
        with monkeypatch.context() as patch:
            calls = fail_once(patch, at, is_done)
            opened = open_run(folder, DESCRIPTION, if_exists)
            opened.owner.release()
        run = load(opened.run.path)
        assert run.id == ("nightly-2" if if_exists == "new" else "nightly")
        assert run.counts() == {"WAITING": 2}
        if len(calls) <= at:
            return


# ---- damage


def damaged(root: str, **lost: Any) -> OpenRun:
    """A run whose journal lacks the addition of its last trial."""
    opened = open_run(root, DESCRIPTION, "error")
    opened.add({"lr": 0.3, "password": "hunter22"}, configuration=2)
    opened.record(TrialChanged(number=2, state=TrialState.RUNNING, attempt=0))
    complete(opened, 2)
    opened.owner.release()
    path = segments(opened.run.path)[0]
    lines = path.read_text().splitlines(keepends=True)
    added = [line for line in lines if json.loads(line)["event"] == "trials"]
    path.write_text("".join(line for line in lines if line != added[-1]))
    return opened


def test_trial_whose_addition_is_lost_is_read_from_its_folder(root: str) -> None:
    opened = damaged(root)
    paths = opened.paths.trial(2)
    storage.write(paths.params, json.dumps({"params": {"lr": 0.3}, "seed": 5}))
    run = load(opened.run.path)
    assert [(t.number, str(t.state)) for t in run.trials][2] == (2, "COMPLETE")
    assert (run.trials[2].params, run.trials[2].seed) == ({"lr": 0.3}, 5)


def test_trial_whose_parameters_are_lost_is_shown_and_never_run(root: str) -> None:
    opened = damaged(root)
    run = load(opened.run.path)
    assert (run.trials[2].params, run.trials[2].value) == ({}, 0.5)
    continue_run(opened.run.path).owner.release()  # The trial has finished.
    path = segments(opened.run.path)[0]
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"COMPLETE"' not in line))
    with pytest.raises(RunDamagedError, match=r"parameters of the trials \[2\] are lost"):
        continue_run(opened.run.path)


def test_run_without_a_journal_is_damaged(root: str) -> None:
    opened = open_run(root, DESCRIPTION, "error")
    opened.owner.release()
    for segment in segments(opened.run.path):
        segment.write_text('{"torn')
    for read in (load, continue_run):
        with pytest.raises(RunDamagedError, match="nightly is damaged: its journal"):
            read(opened.run.path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": None}, "was written by a version before 0.1.0"),
        ({"format": FORMAT + 1}, f"written by format {FORMAT + 1} of sparkdl"),
        ({"later": 1}, None),
        ({"metric": KeyError}, "is damaged, in run.json"),
    ],
)
def test_formats_of_other_versions_are_refused(
    root: str, change: dict[str, Any], message: str | None
) -> None:
    opened = open_run(root, DESCRIPTION, "error")
    opened.owner.release()
    path = Path(opened.paths.run)
    content = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({k: v for k, v in content.items() if v not in (None, KeyError)}))
    if message is None:
        assert load(opened.run.path).id == "nightly"
        return
    with pytest.raises(RunDamagedError, match=message):
        load(opened.run.path)
    path.write_text("{")
    with pytest.raises(RunDamagedError, match=r"run\.json is damaged"):
        load(opened.run.path)


def test_usage_of_a_later_version_is_read(root: str) -> None:
    opened = open_run(root, DESCRIPTION, "error")
    usage = {"running_s": 2.0, "watts": 300.0}
    opened.record(TrialChanged(number=0, state=TrialState.COMPLETE, usage=usage))
    opened.owner.release()
    assert load(opened.run.path).trials[0].usage.running_s == 2.0


def test_trial_that_is_added_twice_exists_once(root: str) -> None:
    opened = open_run(root, DESCRIPTION, "error")
    trials = opened.journal.write([TrialsAdded(trials=DESCRIPTION.trials())])
    assert trials
    opened.owner.release()
    assert len(load(opened.run.path).trials) == 2


# ---- outputs


def test_large_outputs_stay_in_the_folder_of_the_trial(root: str) -> None:
    opened = open_run(root, DESCRIPTION, "error")
    outputs = {"accuracy": 0.5, "predictions": list(range(LARGE_BYTES)), "note": "x" * 100}
    event = TrialChanged(number=0, state=TrialState.COMPLETE, value=0.5, outputs=outputs)
    opened.record(event)
    assert opened.run.trials[0].outputs == outputs
    opened.owner.release()
    line = journal_lines(opened.run.path)[-1]
    assert line["outputs"] == {**outputs, "predictions": {"$file": "outputs.json"}}
    assert len(json.dumps(line)) < 1000
    assert load(opened.run.path).trials[0].outputs == outputs
    Path(opened.paths.trial(0).outputs).unlink()
    assert load(opened.run.path).trials[0].outputs["accuracy"] == 0.5


@pytest.mark.parametrize("state", ["FAILED", "INVALID"])
def test_what_a_trial_has_reported_before_it_failed_does_not_count_when_it_is_retried(
    root: str, state: str
) -> None:
    """A pruner would stop the new attempt by the values of the one before."""
    opened = started(root, "one")
    failure = Failure.EXCEPTION if state == "FAILED" else None
    opened.record(
        TrialChanged(number=0, state=TrialState(state), attempt=0, error="E: no", failure=failure)
    )
    opened.close(RunEnded(state=RunState.FAILED))
    again = continue_run(opened.run.path, retry=frozenset({state.lower()}))
    again.owner.release()
    last = [line for line in journal_lines(opened.run.path) if line["event"] == "trial"][-1]
    assert (last["state"], last["failure"]) == ("WAITING", str(Failure.EXCEPTION))
