"""TensorBoard's HParams tab shows the trials, and the driver needs no TensorFlow for it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkdl.board.hparams import write_hparams
from sparkdl.board.server import TensorBoardServer
from sparkdl.data.tfexample.framing import spans
from sparkdl.files import storage
from sparkdl.runs import Run, Trial
from sparkdl.runs.states import TrialState
from tests.helpers.tensorboards import session_groups


def make_run(folder: Path, **changes: Any) -> Run:
    run = Run("toy-1", str(folder), "toy", "search", metric="accuracy", **changes)
    params: list[dict[str, Any]] = [
        {"lr": 0.1, "optimizer": "adam", "nesterov": True, "layers": [4, 2], "clip": None},
        {"lr": 0.1, "optimizer": "adam", "nesterov": True, "layers": [4, 2], "clip": None},
        {"lr": float("inf"), "optimizer": "sgd", "nesterov": False, "layers": [8], "clip": 1.0},
    ]
    for number, combination in enumerate(params):
        trial = Trial(
            number, combination, f"{folder}/trials/{number}", configuration=number // 2 * 2
        )
        trial.state, trial.value = TrialState.COMPLETE, 0.5 + number / 4
        trial.metrics = {"accuracy": trial.value, "loss": 1.0}
        trial.spans = [(1000.0, 1002.0), (1003.0, 1010.0 + number)]
        run.trials.append(trial)
    run.trials[2].state, run.trials[2].value = TrialState.FAILED, None
    run.trials[2].metrics = {}
    return run


def scalars(trial: Trial) -> dict[str, float]:
    from tensorboard.compat.proto.event_pb2 import Event

    (path,) = Path(trial.path, "tensorboard").iterdir()
    assert "tfevents" in path.name  # TensorBoard finds event files by this part of the name.
    data = path.read_bytes()
    events = [Event.FromString(data[start:stop]) for start, stop in spans(data, str(path))]
    values = [value for event in events for value in event.summary.value]
    return {v.tag: v.simple_value for v in values if v.tag.startswith("Result/")}


def test_write_hparams_names_last_values_apart_from_those_of_the_user(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_hparams(run, run.trials[0])
    write_hparams(run, run.trials[0])  # A second call replaces the file by an equal file.
    assert scalars(run.trials[0]) == {"Result/accuracy": 0.5}
    run.metric = None
    write_hparams(run, run.trials[0])
    assert scalars(run.trials[0]) == {"Result/accuracy": 0.5, "Result/loss": 1.0}
    run.objectives = {"loss": "min", "accuracy": "max"}
    write_hparams(run, run.trials[1])
    assert list(scalars(run.trials[1])) == ["Result/loss", "Result/accuracy"]


def test_write_hparams_works_on_a_store_and_for_a_trial_that_never_started(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    trial = run.trials[0]
    trial.spans, trial.path = [], "memory://hparams/trials/0"
    write_hparams(run, trial)
    assert len(storage.list_names("memory://hparams/trials/0/tensorboard")) == 1
    storage.remove("memory://hparams")


def test_write_hparams_needs_no_tensorflow(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "from pathlib import Path\n"
        "from sparkdl.board.hparams import write_hparams\n"
        "from tests.board.test_hparams import make_run\n"
        f"run = make_run(Path({str(tmp_path)!r}))\n"
        "write_hparams(run, run.trials[0])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    assert scalars(make_run(tmp_path).trials[0]) == {"Result/accuracy": 0.5}


@pytest.mark.slow
def test_tensorboard_shows_the_trials(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for trial in run.trials:
        write_hparams(run, trial)
    with TensorBoardServer(str(tmp_path)) as server:
        server.begin()
        groups = {group["name"]: group for group in session_groups(server.await_url(), 2)}
        assert server.has_data()
    repeats, failed = groups["toy-1/0"], groups["toy-1/2"]
    assert repeats["hparams"] == {
        "lr": 0.1,
        "optimizer": "adam",
        "nesterov": True,
        "layers": "[4, 2]",
        "clip": "None",
    }
    assert [session["name"] for session in repeats["sessions"]] == [
        "trials/0/tensorboard",
        "trials/1/tensorboard",
    ]
    assert [(m["name"]["tag"], m["value"]) for m in repeats["metricValues"]] == [
        ("Result/accuracy", 0.625)  # The mean of both repeats.
    ]
    assert failed["hparams"]["lr"] == "inf"
    assert [session["status"] for session in failed["sessions"]] == ["STATUS_FAILURE"]
    assert failed["sessions"][0]["endTimeSecs"] == 1012.0
