"""TensorBoard's folder has the event files of all trials, and they grow with the run."""

import json
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from sparkdl.board.event_folder import EventFolder
from sparkdl.files import folders, storage
from sparkdl.runs import Run, Trial, TrialState
from tests.helpers.counting_store import CountingStore, counting_store  # noqa: F401
from tests.helpers.tensorboards import events_in, scalars, steps_in

EVENTS = "events.out.tfevents.0000001000.host"


def new_run(path: str, *params: dict[str, Any]) -> Run:
    """A run whose trials run, each with an event file of one value."""
    run = Run("digits-1", path, "digits", "launch", metric="accuracy")
    for number, combination in enumerate(params):
        trial = Trial(number, combination, f"{path}/trials/{number}", configuration=number)
        trial.state, trial.attempts, trial.spans = TrialState.RUNNING, 1, [(1000.0, None)]
        run.trials.append(trial)
        storage.write(f"{trial.path}/tensorboard/train/{EVENTS}", scalars("loss", 1.0))
    return run


def end(trial: Trial, value: float) -> None:
    trial.state, trial.value, trial.metrics = TrialState.COMPLETE, value, {"accuracy": value}
    trial.spans = [(1000.0, 1010.0)]


@pytest.fixture(params=["local", "store"])
def path(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    counting_store: CountingStore,  # noqa: F811
) -> str:
    """A run directory on a local disk, and on a store."""
    if request.param == "local":
        return str(tmp_path / "it's a run")
    return counting_store.url(uuid4().hex)


@pytest.fixture
def files(tmp_path: Path) -> EventFolder:
    return EventFolder(tmp_path / "logdir")


def test_trials_have_folders_with_their_parameters(
    path: str, files: EventFolder, tmp_path: Path
) -> None:
    run = new_run(path, {"lr": 0.1}, {"lr": 0.2})
    run.trials[1].attempts = 0  # It waits.
    files.refresh(run)
    assert os.listdir(tmp_path / "logdir") == ["0-lr=0.1"]
    run.trials[1].attempts = 1
    files.refresh(run)
    assert sorted(os.listdir(tmp_path / "logdir")) == ["0-lr=0.1", "1-lr=0.2"]
    (loss,) = events_in(tmp_path / "logdir/1-lr=0.2/train")
    assert (loss.tag, loss.simple_value) == ("loss", 1.0)


def test_event_files_grow_in_place(path: str, files: EventFolder, tmp_path: Path) -> None:
    """TensorBoard keeps a file open and reads on where it was."""
    run = new_run(path, {"lr": 0.1})
    files.refresh(run)
    with open(tmp_path / "logdir/0-lr=0.1/train" / EVENTS, "rb") as file:
        before = file.read()
        storage.append(
            f"{path}/trials/0/tensorboard/train/{EVENTS}", scalars("loss", 0.5, 0.25, first=1)
        )
        files.refresh(run)
        assert file.read() == scalars("loss", 1.0, 0.5, 0.25)[len(before) :]
    storage.write(f"{path}/trials/0/tensorboard/validation/{EVENTS}", scalars("loss", 2.0))
    files.refresh(run)
    assert len(events_in(tmp_path / "logdir/0-lr=0.1/validation")) == 1


def test_a_lost_attempt_and_the_next_one_are_one_curve(
    path: str, files: EventFolder, tmp_path: Path
) -> None:
    run = new_run(path, {"lr": 0.1})
    files.refresh(run)
    trial, later = run.trials[0], EVENTS.replace("1000", "2000")
    storage.rename(f"{trial.path}/tensorboard", f"{trial.path}/attempts/0/tensorboard")
    trial.attempts, trial.spans = 2, [(1000.0, 1001.0), (2000.0, None)]
    files.refresh(run)
    storage.write(f"{trial.path}/tensorboard/train/{later}", scalars("loss", 0.5, first=1))
    for folder in (files, EventFolder(tmp_path / "seen later")):
        folder.refresh(run)
    for logdir in ("logdir", "seen later"):
        losses = events_in(tmp_path / logdir / "0-lr=0.1/train")
        assert [loss.simple_value for loss in losses] == [1.0, 0.5]


def test_reported_values_are_curves(path: str, files: EventFolder, tmp_path: Path) -> None:
    run = new_run(path, {"lr": 0.1}, {})

    def report(number: int, step: int, **metrics: float) -> None:
        line = json.dumps({"step": step, "metrics": metrics}).encode() + b"\n"
        storage.append(f"{path}/trials/{number}/metrics.jsonl", line)

    def reported(logdir: str, name: str) -> list[tuple[str, int, float]]:
        file = tmp_path / logdir / name / "events.out.tfevents.0000000000.sparkdl.reports"
        return [(v.tag, step, v.simple_value) for step, v in steps_in(file)]

    report(0, 0, loss=1.0)
    files.refresh(run)
    assert reported("logdir", "0-lr=0.1") == [("Reported/loss", 0, 1.0)]
    report(0, 1, loss=0.5, accuracy=0.75)
    report(1, 3, loss=2.0)
    for _ in range(2):
        files.refresh(run)
    assert reported("logdir", "0-lr=0.1")[1:] == [
        ("Reported/loss", 1, 0.5),
        ("Reported/accuracy", 1, 0.75),
    ]
    assert reported("logdir", "1-digits") == [("Reported/loss", 3, 2.0)]
    trial = run.trials[0]
    storage.rename(f"{trial.path}/metrics.jsonl", f"{trial.path}/attempts/0/metrics.jsonl")
    trial.attempts = 2
    report(0, 1, loss=0.25)
    for logdir, folder in (("logdir", files), ("later", EventFolder(tmp_path / "later"))):
        folder.refresh(run)
        # TensorBoard hides a value when one of the same step or an earlier one follows.
        assert reported(logdir, "0-lr=0.1")[-4:] == [
            ("Reported/loss", 0, 1.0),
            ("Reported/loss", 1, 0.5),
            ("Reported/accuracy", 1, 0.75),
            ("Reported/loss", 1, 0.25),
        ]


def test_parameters_are_shown_while_a_trial_runs_and_its_values_at_the_end(
    path: str, files: EventFolder, tmp_path: Path
) -> None:
    run = new_run(path, {"lr": 0.1}, {})
    files.refresh(run)
    session = tmp_path / "logdir/0-lr=0.1"
    assert [value.tag for value in events_in(session)] == ["_hparams_/session_start_info"]
    end(run.trials[0], 0.75)
    # The driver writes the same for a TensorBoard that reads the run directory.
    storage.write(f"{path}/trials/0/tensorboard/{EVENTS}.sparkdl.hparams", b"")
    for _ in range(2):
        files.refresh(run)
    assert [value.tag for value in events_in(session)] == [
        "_hparams_/session_start_info",
        "_hparams_/session_end_info",
        "Result/accuracy",
    ]
    assert not events_in(tmp_path / "logdir/1-digits")


def test_parameters_that_an_objective_asks_for_later_are_added(
    path: str, files: EventFolder, tmp_path: Path
) -> None:
    run = new_run(path, {"lr": 0.1})
    files.refresh(run)
    run.trials[0].params = {"lr": 0.1, "layers": 3}
    end(run.trials[0], 0.75)
    files.refresh(run)
    assert os.listdir(tmp_path / "logdir") == ["0-lr=0.1,layers=3"]
    start, _, final = events_in(tmp_path / "logdir/0-lr=0.1,layers=3")
    assert b"layers" in start.metadata.plugin_data.content
    assert final.simple_value == 0.75


def test_only_what_is_new_is_read(
    counting_store: CountingStore,  # noqa: F811
    files: EventFolder,
    tmp_path: Path,
) -> None:
    run = new_run(counting_store.url(uuid4().hex), {"lr": 0.1}, {"lr": 0.2})
    end(run.trials[0], 0.75)
    files.refresh(run)
    counting_store.requests.clear()
    files.refresh(run)
    assert not [request for request in counting_store.requests if "tfevents" in request]
    assert not [request for request in counting_store.requests if "trials/0" in request]
    for trial in run.trials:  # The first one has ended, so that nothing more is expected of it.
        storage.write(f"{trial.path}/tensorboard/train/{EVENTS}", scalars("loss", 1.0, 2.0))
    counting_store.requests.clear()
    files.refresh(run)
    (request,) = [request for request in counting_store.requests if "tfevents" in request]
    assert "trials/1" in request


def test_only_event_files_are_copied_from_a_store(
    counting_store: CountingStore,  # noqa: F811
    files: EventFolder,
    tmp_path: Path,
) -> None:
    run = new_run(counting_store.url(uuid4().hex), {"lr": 0.1})
    for name in ("model.keras", "plugins/profile/1/trace.pb", "train/keras_embedding.ckpt"):
        storage.write(f"{run.trials[0].path}/tensorboard/{name}", b"1")
    files.refresh(run)
    copies = (tmp_path / "logdir/0-lr=0.1").rglob("*")
    assert {p.name for p in copies if p.is_file()} >= {EVENTS, "trace.pb"}
    assert not list(tmp_path.rglob("model.keras"))
    assert not list(tmp_path.rglob("*.ckpt"))


def test_a_trial_that_cannot_be_read_hides_no_other(
    path: str, files: EventFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(path, {"lr": 0.1}, {"lr": 0.2})
    files_in = folders.files_in

    def fails(url: str) -> dict[str, int]:
        if "trials/0" in url:
            raise PermissionError(f"no access to {url}")
        return files_in(url)

    with monkeypatch.context() as refused:
        refused.setattr(folders, "files_in", fails)
        with pytest.raises(PermissionError, match="trials/0"):
            files.refresh(run)
    assert len(events_in(tmp_path / "logdir/1-lr=0.2/train")) == 1
    files.refresh(run)
    assert len(events_in(tmp_path / "logdir/0-lr=0.1/train")) == 1


def test_nothing_is_copied_after_the_end(
    counting_store: CountingStore,  # noqa: F811
    files: EventFolder,
    tmp_path: Path,
) -> None:
    run = new_run(counting_store.url(uuid4().hex), {"lr": 0.1})
    files.close()
    files.refresh(run)
    assert not os.listdir(tmp_path / "logdir")


@pytest.mark.slow
def test_event_files_on_s3_grow(s3: str, files: EventFolder, tmp_path: Path) -> None:
    path = f"{s3}/{uuid4().hex}"
    run = new_run(path, {"lr": 0.1})
    files.refresh(run)
    copy = tmp_path / "logdir/0-lr=0.1/train" / EVENTS
    with open(copy, "rb") as file:
        file.read()
        storage.write(f"{path}/trials/0/tensorboard/train/{EVENTS}", scalars("loss", 1.0, 0.5))
        files.refresh(run)
        assert file.read()
    assert copy.read_bytes() == scalars("loss", 1.0, 0.5)
