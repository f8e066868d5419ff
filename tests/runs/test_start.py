"""A run directory is created once; a retried job resumes it without harm."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.errors import ConfigError, RunExistsError, RunNotFoundError
from sparkdl.runs.events import RunEnded, TrialChanged
from sparkdl.runs.history import history, load
from sparkdl.runs.ids_and_seeds import new_run_id, trial_seed
from sparkdl.runs.opening import OpenRun, RunDescription, open_run
from sparkdl.runs.states import RunState, TrialState

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
    for bad in ("a/b", "..", "", "ü"):
        with pytest.raises(ConfigError, match="run_id"):
            open_run("/nowhere", replace(DESCRIPTION, id=bad), "error")


@given(st.integers(0, 2**31), st.integers(0, 10_000))
def test_trial_seed_depends_on_run_seed_and_number_only(seed: int, number: int) -> None:
    assert trial_seed(seed, number) == trial_seed(seed, number)
    assert 0 <= trial_seed(seed, number) < 2**31


def test_trial_seeds_differ() -> None:
    assert len({trial_seed(s, n) for s in range(30) for n in range(1000)}) > 29_990
