"""Keep the values that a training function returns, and note those that are not kept."""

import datetime
import enum
import functools
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from sparkdl.checkpoints import commit
from sparkdl.cluster.outcome import Outcome, Status
from sparkdl.cluster.process import outputs as module
from sparkdl.cluster.process.outputs import collect_outputs, note_of_left_models
from sparkdl.errors import NotKeptError
from sparkdl.files import polling
from sparkdl.files.returned_values import give_back
from sparkdl.runs.history import load
from sparkdl.runs.trial import Trial
from sparkdl.secrets.masks import mask_value
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster
from tests.helpers.loops import run_trials


class Color(enum.Enum):
    """An enum of the user's."""

    RED = 1


def test_numbers_of_numpy_inside_lists_and_dicts_stay_numbers(tmp_path: Path) -> None:
    returned = {
        "folds": [np.float32(0.5), np.float64(0.25)],
        "d": {"a": np.int64(3), "b": [np.array([1, 2])], "flag": np.bool_(True)},
    }
    outputs = collect_outputs(returned, [None], tmp_path)
    expected = {"folds": [0.5, 0.25], "d": {"a": 3, "b": [[1, 2]], "flag": True}}
    assert (outputs.values, outputs.notes) == (expected, [])


@pytest.mark.parametrize(
    ("returned", "metrics", "result"),
    [
        (7, [None], 7),
        (7, ["accuracy"], 7),
        (0.5, ["accuracy"], 0.5),
        (True, [None], True),
        (np.int64(3), [None], 3),
        ({"value": 1}, [None], {"value": 1}),
        ({"accuracy": 1}, ["accuracy"], {"accuracy": 1}),
        ({}, [None], {}),
        (None, [None], None),
        ([1, 2.0, None], [None], [1, 2.0, None]),
        ([0.9, 5], ["accuracy", "latency"], [0.9, 5]),
        ({"a": {"value": 1}, "n": 2**60}, [None], {"a": {"value": 1}, "n": 2**60}),
        ({"loss": float("inf")}, [None], {"loss": float("inf")}),
    ],
)
def test_the_result_is_what_the_function_returned(
    returned: Any, metrics: list[str | None], result: Any, root: str
) -> None:
    outputs = collect_outputs(returned, metrics, root)
    outcome = Outcome(status=Status.RETURNED, outputs=outputs.values, shape=outputs.shape)

    def run_task(attempt: Attempt) -> Outcome:
        return Outcome.from_json(outcome.to_json())

    run = run_trials(root, InMemoryCluster(run_task))
    for each in (run, load(run.path)):
        assert repr(each.result) == repr(result)  # 1 is no 1.0.
        assert repr(each.trials[0].result) == repr(result)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("Model", "Keras cannot save it (AttributeError"),
        ("History", "such as history.history['loss'][-1]"),
    ],
)
def test_a_returned_object_of_keras_is_noted_with_the_way_to_keep_it(
    name: str, remedy: str, tmp_path: Path
) -> None:
    base = type(name, (), {"__module__": "keras.src.models.model"})
    returned = type("Mine", (base,), {})()
    outputs = collect_outputs({"best": returned, "accuracy": 0.5}, ["accuracy"], tmp_path)
    assert outputs.values["accuracy"] == 0.5
    assert "the returned 'best', of type Mine, is not kept: " in outputs.notes[0]
    assert "best" not in outputs.values
    assert remedy in outputs.notes[0]


@pytest.mark.parametrize(
    ("returned", "note"),
    [
        (object(), "'value', of type object, is not kept: "),
        ({"x": 1, "model": Color.RED}, "'model', of type Color, is not kept: "),
        ({"m": "nothere.keras"}, "'m' is 'nothere.keras', which is no file"),
        ({"m": "/tmp/nothere/model"}, "'m' is '/tmp/nothere/model', which is no file"),
        ({"m": Path("nothere")}, "'m' is 'nothere', which does not exist"),
        ([object()], "'value.0', of type object, is not kept: "),
    ],
)
def test_what_is_not_kept_is_noted(returned: Any, note: str, tmp_path: Path) -> None:
    outputs = collect_outputs(returned, [None], tmp_path)
    assert len(outputs.notes) == 1
    assert note in outputs.notes[0]


def test_a_folder_is_copied_only_as_a_path_and_the_note_says_so(tmp_path: Path) -> None:
    made, folder = tmp_path / "made", tmp_path / "trial"
    (folder / "logs").mkdir(parents=True)
    made.mkdir()
    (made / "weights").write_text("w")
    outputs = collect_outputs({"model": str(made)}, [None], folder)
    assert outputs.values == {"model": str(made)}
    assert "return it as a pathlib.Path" in outputs.notes[0]
    assert collect_outputs({"model": made}, [None], folder).notes == []
    # The folder of the trial is kept anyway.
    assert collect_outputs({"logs": str(folder / "logs")}, [None], folder).notes == []


def test_a_folder_in_the_working_directory_is_named_from_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The readers of a run know the folder of the trial, not the directory where it worked."""
    work = tmp_path / "trial/work"
    (work / "saved/variables").mkdir(parents=True)
    (work / "saved/saved_model.pb").touch()
    (work / "logs").mkdir()
    monkeypatch.chdir(work)
    returned = {
        "model": "saved",
        "same": str(work / "saved"),
        "path": Path("saved"),
        "logs": "logs",
        "here": ".",
        "none": "relu",
    }
    outputs = collect_outputs(returned, [None], tmp_path / "trial")
    assert outputs.values == {
        **dict.fromkeys(("model", "same", "path"), "work/saved"),
        "logs": "work/logs",
        "here": ".",
        "none": "relu",
    }
    assert outputs.notes == []
    trial = Trial(0, {}, str(tmp_path / "trial"), outputs=outputs.values)
    assert trial.model_path == f"{tmp_path}/trial/work/saved"


def test_a_saved_model_outside_of_the_trial_is_copied(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/saved_model.pb").write_text("m")
    outputs = collect_outputs({"model": f"{tmp_path}/saved"}, [None], tmp_path / "trial")
    assert (outputs.values, outputs.notes) == ({"model": "artifacts/model/saved"}, [])
    assert (tmp_path / "trial/artifacts/model/saved/saved_model.pb").read_text() == "m"


def test_values_are_kept_though_a_file_cannot_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, copy2 = tmp_path / "model.keras", shutil.copy2
    model.write_text("w")
    errors = [OSError(28, "No space left on device")] * 2

    def full(source: Path, target: Path) -> None:
        if errors:
            raise errors.pop()
        copy2(source, target)

    monkeypatch.setattr(shutil, "copy2", full)
    monkeypatch.setattr(polling.time, "sleep", lambda _: None)
    returned = {"model": model, "accuracy": 0.5}
    outputs = collect_outputs(returned, ["accuracy"], tmp_path / "trial")
    expected = {"model": "artifacts/model/model.keras", "accuracy": 0.5}
    assert (outputs.values, outputs.notes) == (expected, [])
    monkeypatch.setattr(module, "COPY_S", 0.0)
    errors.append(OSError(28, "No space left on device"))
    outputs = collect_outputs(returned, ["accuracy"], tmp_path / "trial")
    assert outputs.values == {"model": str(model), "accuracy": 0.5}
    assert f"could not be copied and stays at {model}: [Errno 28]" in outputs.notes[0]


@pytest.mark.parametrize(
    "text",
    ["relu", "adam/lr", "", "a sentence about /tmp.", "s3://bucket/model.keras", "v1.2", "0.5"],
)
def test_ordinary_text_has_no_note(text: str, tmp_path: Path) -> None:
    outputs = collect_outputs({"text": text}, [None], tmp_path)
    assert (outputs.values, outputs.notes) == ({"text": text}, [])


def test_the_exact_value_is_beside_the_outputs_only_if_they_do_not_tell_it(tmp_path: Path) -> None:
    assert collect_outputs({"a": [1, "b"]}, [None], tmp_path).shape == "dict"
    assert not (tmp_path / "result.json").exists()
    outputs = collect_outputs((0.9, 5), ["accuracy", "latency"], tmp_path)
    assert (outputs.values, outputs.shape) == ({"accuracy": 0.9, "latency": 5}, "exact")
    trial = Trial(0, {}, str(tmp_path), outputs=outputs.values, _shape=outputs.shape)
    assert trial.result == (0.9, 5)
    (tmp_path / "result.json").unlink()
    with pytest.raises(NotKeptError, match=r"result\.json with the returned value is missing"):
        trial.result  # noqa: B018


class Login(NamedTuple):
    user: str
    password: str


@pytest.mark.parametrize(
    ("returned", "secrets"),
    [
        ({"password": ("hunter2-abc",)}, []),
        ({"db": {"password": ["hunter2-abc"]}, "t": (1,)}, []),
        ({"password": b"hunter2-abc"}, []),
        ((Login("ann", "hunter2-abc"),), []),
        ((np.array("hunter2-abc"),), ["hunter2-abc"]),
        ((np.array([["hunter2-abc"]]), np.array([b"hunter2-abc"])), ["hunter2-abc"]),
        ({1: "hunter2-abc", "t": (1,)}, ["hunter2-abc"]),
    ],
)
def test_no_form_of_a_value_shows_a_credential(
    returned: Any, secrets: list[str], tmp_path: Path
) -> None:
    mask = functools.partial(mask_value, secrets=secrets)
    outputs = collect_outputs(returned, [None], tmp_path, mask)
    written = give_back(json.loads((tmp_path / "result.json").read_text()), str)
    assert "hunter2" not in repr(written) + repr(outputs.values)
    assert "***" in repr(written)


def test_a_key_that_is_no_json_loses_the_dict_and_not_the_trial(tmp_path: Path) -> None:
    outputs = collect_outputs({datetime.date(2020, 1, 1): 1, "loss": 0.5}, [None], tmp_path)
    assert outputs.values == {"2020-01-01": 1, "loss": 0.5}
    assert "use text or numbers as keys" in outputs.notes[0]


def test_credentials_in_the_exact_value_are_masked(tmp_path: Path) -> None:
    mask = functools.partial(mask_value, secrets=["hunter22"])
    returned = (["my hunter22"], {"password": "anything", "n": b"x"})
    outputs = collect_outputs(returned, [None], tmp_path, mask)
    for text in (str(outputs.values), (tmp_path / "result.json").read_text()):
        assert "hunter22" not in text and "anything" not in text


def test_a_model_that_was_saved_and_not_returned_is_noted(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    none = collect_outputs({"accuracy": 0.9}, ["accuracy"], tmp_path)
    assert note_of_left_models(none, str(tmp_path)) == []
    (work / "model.keras").write_text("")
    assert note_of_left_models(none, str(tmp_path)) == [
        "model.keras was saved and not returned; trial.model() loads it all the same"
    ]
    (work / "last.h5").write_text("")
    (note,) = note_of_left_models(none, str(tmp_path))
    assert (
        note
        == "last.h5, model.keras were saved, and none was returned: return the path of the model"
    )
    returned = collect_outputs({"best": str(work / "model.keras")}, ["accuracy"], tmp_path)
    assert note_of_left_models(returned, str(tmp_path)) == []
    (work / "last.h5").unlink()
    checkpoint = tmp_path / "new"
    checkpoint.mkdir()
    (checkpoint / "model.keras").write_text("")
    commit(str(checkpoint), str(tmp_path), 1, {})
    assert note_of_left_models(none, str(tmp_path)) == []
