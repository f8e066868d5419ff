"""Versions, aliases and metrics in the registry, on local disks, S3 and other stores."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sparkdl import models
from sparkdl.errors import ConfigError, ModelDamagedError, ModelNotFoundError
from sparkdl.files import storage, stores
from sparkdl.models.comparison import table
from sparkdl.runs.events import RunEnded, TrialChanged
from sparkdl.runs.states import RunState, TrialState
from tests.helpers.fake_stores import fake_stores
from tests.helpers.saved_models import write_saved_model
from tests.helpers.stored_runs import started

NUM_PROCESSES = 20


@pytest.fixture
def prepared(tmp_path: Path) -> str:
    """The path of a SavedModel."""
    return write_saved_model(tmp_path / "prepared")


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, root: str, tmp_path: Path) -> str:
    """A root on a local disk, and one on S3."""
    if request.param == "local":
        return root
    return f"{request.getfixturevalue('s3')}/{tmp_path.name}"


@pytest.fixture(params=["sftp", "webhdfs", "smb", "hdfs", "memory"])
def other_place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A root on a store with the habits of another kind."""
    monkeypatch.setattr(stores, "CLAIM_S", 0.0)
    with fake_stores():
        yield f"{request.param}://host/{tmp_path.name}"


def exported(model: Any, name: str, root: str, **options: Any) -> models.ModelVersion:
    """The new version of a model."""
    version = models.export(model, name, root=root, **options)
    assert version is not None
    return version


def test_processes_export_at_once_and_one_is_killed(place: str, prepared: str) -> None:
    program = [sys.executable, "-m", "tests.programs.exporters", prepared, place]
    done = subprocess.run([*program, str(NUM_PROCESSES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [-signal.SIGKILL] + [0] * NUM_PROCESSES
    versions = models.list("digits", root=place)
    assert len({version.version for version in versions}) == NUM_PROCESSES
    assert {version.metrics["number"] for version in versions} == set(range(NUM_PROCESSES))
    for version in versions:
        assert storage.read(f"{version.path}/variables/variables.index") == b"weights"
        assert storage.exists(f"{version.path}/saved_model.pb")
    # One number of 21 was taken by the process that was killed.
    taken = set(range(1, NUM_PROCESSES + 2))
    (lost,) = taken - {version.version for version in versions}
    assert models.get("digits", root=place).version == max(taken - {lost})
    with pytest.raises(ModelNotFoundError, match=f"no version {lost}"):
        models.get("digits", lost, root=place)
    assert exported(prepared, "digits", place).version == NUM_PROCESSES + 2


def test_aliases_moved_at_once_end_at_the_last_move(place: str, prepared: str) -> None:
    for _ in range(8):
        exported(prepared, "digits", place)
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(lambda n: models.alias("digits", "stable", n, root=place), range(1, 9)))
    moves = models.alias_history("digits", "stable", root=place)
    assert [move.number for move in moves] == list(range(1, 9))
    assert sorted(move.version or 0 for move in moves) == list(range(1, 9))
    now = models.get("digits", alias="stable", root=place)
    assert now.version == moves[-1].version
    assert now.aliases == ("stable",)


def test_versions_and_aliases_on_other_stores(other_place: str, prepared: str) -> None:
    assert exported(prepared, "digits", other_place, alias="stable").version == 1
    second = exported(prepared, "digits", other_place, metrics={"accuracy": 0.9})
    assert second.version == 2
    models.alias("digits", "stable", 2, root=other_place)
    assert models.get("digits", alias="stable", root=other_place).metrics == {"accuracy": 0.9}
    assert [v.version for v in models.list(root=other_place)] == [1, 2]


def test_aliases_move_and_are_removed(root: str, prepared: str) -> None:
    first = exported(prepared, "digits", root, alias="stable")
    assert first.aliases == ("stable",)
    second = exported(prepared, "digits", root)
    moved = models.alias("digits", "stable", second.version, root=root)
    assert moved is not None and moved.version == 2
    models.alias("digits", "stable", 2, root=root)  # It is there already.
    models.alias("digits", "canary", 1, root=root)
    assert [v.aliases for v in models.list("digits", root=root)] == [("canary",), ("stable",)]
    assert models.alias("digits", "stable", None, root=root) is None
    assert [m.version for m in models.alias_history("digits", "stable", root=root)] == [1, 2, None]
    with pytest.raises(ModelNotFoundError, match="no alias 'stable'; it has 'canary'"):
        models.get("digits", alias="stable", root=root)
    with pytest.raises(ModelNotFoundError, match="no version 7; its newest are 1, 2"):
        models.alias("digits", "stable", 7, root=root)
    for wrong in ("3", "a/b", "", None):
        with pytest.raises(ConfigError, match="name of the alias"):
            models.alias("digits", wrong, 1, root=root)  # type: ignore[arg-type]


def test_best_and_if_better_follow_the_direction_of_the_metric(root: str, prepared: str) -> None:
    for number, loss in enumerate((0.5, 0.3, 0.4, float("nan"))):
        exported(prepared, "digits", root, metrics={"val_loss": loss, "accuracy": number / 10})
    assert models.best("digits", "val_loss", root=root).version == 2
    assert models.best("digits", "val_loss", "max", root=root).version == 1
    assert models.best("digits", "accuracy", root=root).version == 4
    options: Any = {"name": "digits", "if_better": "val_loss", "root": root}
    for not_better in (0.3, 0.35, float("nan")):
        assert models.export(prepared, metrics={"val_loss": not_better}, **options) is None
    assert exported(prepared, metrics={"val_loss": 0.2}, **options).version == 5
    assert len(models.list("digits", root=root)) == 5
    with pytest.raises(ConfigError, match=r"if_better='val_loss'.*metrics 'val_los'.*Did you mean"):
        models.export(prepared, metrics={"val_los": 0.1}, **options)
    with pytest.raises(ModelNotFoundError, match=r"metric 'acuracy'.*Did you mean 'accuracy'"):
        models.best("digits", "acuracy", root=root)
    # The first version is better than none.
    assert exported(prepared, "other", root, metrics={"f1": 0.1}, if_better="f1").version == 1


def test_wrong_arguments_name_the_rule_and_export_nothing(root: str, prepared: str) -> None:
    for name in ("", "3", "a/b", "..", 7):
        with pytest.raises(ConfigError, match="name of the model"):
            models.export(prepared, name, root=root)  # type: ignore[arg-type]
    for model, text in ((object(), "an object; expected a model of Keras"), (root, "is no model")):
        with pytest.raises(ConfigError, match=text):
            models.export(model, "digits", root=root)
    with pytest.raises(ConfigError, match="metrics\\['a'\\] is 'high'; expected a number"):
        models.export(prepared, "digits", metrics={"a": "high"}, root=root)  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="is a SavedModel, which is copied"):
        models.export(prepared, "digits", signature=object(), root=root)
    with pytest.raises(ConfigError, match="profile is a list; expected the Spark DataFrame"):
        models.export(prepared, "digits", profile=[], root=root)
    with pytest.raises(ModelNotFoundError, match="there is no model 'digits'"):
        models.get("digits", root=root)
    assert models.list(root=root) == []
    exported(prepared, "digits", root)
    for half in ("digits@", "digits/", "digits/1@", "digits/one"):
        with pytest.raises(ConfigError, match="expected a name, alone for its newest version"):
            models.compare([half], root=root)
    with pytest.raises(ConfigError, match=r"version is 'stable'.*alias="):
        models.get("digits", "stable", root=root)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="version=1 and alias='stable'"):
        models.get("digits", 1, "stable", root=root)


def test_a_damaged_version_hides_no_other(root: str, prepared: str, caplog: Any) -> None:
    for _ in range(2):
        exported(prepared, "digits", root)
    Path(root, "models", "digits", "1", "model.json").write_text("{")
    assert [v.version for v in models.list("digits", root=root)] == [2]
    assert "left out" in caplog.text
    with pytest.raises(ModelDamagedError, match=r"model.json is damaged"):
        models.get("digits", 1, root=root)
    exported(prepared, "other", root)
    Path(root, "models", "other", "1", "model.json").write_text("{")
    assert [v.name for v in models.list(root=root)] == ["digits"]
    assert models.list("other", root=root) == []
    with pytest.raises(ModelDamagedError, match=r"model.json is damaged"):
        models.get("other", root=root)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "../../other"},
        {"name": "other"},
        {"version": "../2"},
        {"version": 7},
        {"metrics": "none"},
        {"metrics": {"loss": {"a": 1}}},
        {"exported": 5},
        {"lineage": [1]},
        {"files": ["x"]},
        {"signatures": 5},
        "nested",
        "pipe",
        "holes",
    ],
)
def test_a_version_that_another_user_has_written_hides_no_other(
    root: str, changes: Any, caplog: Any
) -> None:
    for name in ("good", "digits"):
        record = {
            "format": 1,
            "name": name,
            "version": 1,
            "metrics": {},
            "run": None,
            "trial": None,
        }
        storage.write(f"{root}/models/{name}/1/model.json", json.dumps(record))
    file = Path(root, "models/digits/1/model.json")
    if isinstance(changes, dict):
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    elif changes == "nested":
        file.write_text("[" * 100_000)
    elif changes == "holes":
        os.truncate(file, 100 << 30)
    else:
        file.unlink()
        os.mkfifo(file)
    assert [f"{v.name}/{v.version}" for v in models.list(root=root)] == ["good/1"]
    assert "left out" in caplog.text
    with pytest.raises((ModelDamagedError, OSError)):
        models.get("digits", root=root)


def test_a_damaged_alias_hides_no_version(root: str, prepared: str, caplog: Any) -> None:
    exported(prepared, "digits", root, alias="stable")
    exported(prepared, "digits", root, alias="canary")
    move = Path(root, "models/digits/aliases/stable/1.json")
    for damage in ("", "{}", "[]"):
        move.write_text(damage)
        assert [v.aliases for v in models.list("digits", root=root)] == [(), ("canary",)]
        assert "left out" in caplog.text
        with pytest.raises(ModelDamagedError, match=r"1.json is damaged.*move the alias again"):
            models.get("digits", alias="stable", root=root)
    models.alias("digits", "stable", 2, root=root)
    assert models.get("digits", alias="stable", root=root).version == 2
    assert [m.version for m in models.alias_history("digits", "stable", root=root)] == [2]


def test_a_damaged_model_is_not_exported(root: str, prepared: str) -> None:
    Path(prepared, "saved_model.pb").write_bytes(b"\xff\xff\xffgarbage")
    with pytest.raises(ConfigError, match=r"cannot be exported: .*saved_model.pb is no SavedModel"):
        models.export(prepared, "digits", root=root)
    with pytest.raises(ModelNotFoundError, match=r"there is no model 'digits' in .*/models\.$"):
        models.get("digits", root=root)


def test_an_exported_version_has_no_credential(
    root: str, prepared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither from the parameters of its trial, nor from the address of its model."""
    params = {"lr": 0.1, "db": "postgresql://ann:s3cr3tpass@db/x", "password": "s3cr3tpass"}
    opened = started(root, "nightly", [params])
    storage.copy(Path(prepared), f"{opened.run.trials[0].path}/artifacts/model")
    values = {"value": 0.5, "metrics": {"accuracy": 0.5}, "outputs": {"model": "artifacts/model"}}
    opened.record(TrialChanged(number=0, state=TrialState.COMPLETE, attempt=0, **values))
    opened.close(RunEnded(state=RunState.COMPLETE))
    version = exported(opened.run.best, "digits", root)
    assert version.lineage["params"]["lr"] == 0.1
    monkeypatch.setattr(stores, "CLAIM_S", 0.0)
    with fake_stores():
        url = "sftp://ann:s3cr3tpass@host/prepared"
        storage.copy(Path(prepared), url)
        copied = exported(url, "digits", root)
    assert copied.lineage["source"] == "sftp://***@host/prepared"
    files = [path for path in Path(root).rglob("*") if path.is_file()]
    assert not [path for path in files if b"s3cr3tpass" in path.read_bytes()]


def test_a_version_tells_its_files_and_its_signature(root: str, prepared: str) -> None:
    version = exported(prepared, "digits", root, profile={"features": {"x": {"kind": "other"}}})
    assert version.signature == {
        "inputs": {"x": {"dtype": "float32", "shape": [None, 4]}},
        "outputs": {"y": {"dtype": "float32", "shape": [None, 3]}},
    }
    assert version.profile == {"features": {"x": {"kind": "other"}}}
    content = json.loads(Path(version.path, "model.json").read_text())
    files = {"saved_model.pb", "variables/variables.index", "profile.json"}
    assert set(content["files"]) == files
    assert content["files"]["variables/variables.index"]["bytes"] == len("weights")
    # TensorFlow Serving takes only names that are numbers for versions.
    names = {path.name for path in Path(root, "models", "digits").iterdir()}
    assert names == {"1", "claims"}


def test_a_version_is_copied_to_another_name_with_all_its_files(
    place: str, prepared: str, tmp_path: Path
) -> None:
    features = {"features": {"x": {"kind": "other"}}}
    # The Keras file is not loaded: a class of the model may be unknown in this process.
    for name in ("model.keras", "model.onnx"):
        Path(prepared, name).write_text(f"content of {name}")
    version = exported(prepared, "digits", place, profile=features, metrics={"accuracy": 0.5})
    copy = exported(version, "copied", place)
    assert copy.lineage["copy_of"] == "digits/1"
    assert (copy.metrics, copy.profile) == (version.metrics, features)
    assert copy.signature == version.signature
    assert copy.details["files"] == version.details["files"]


@pytest.mark.parametrize("metric", ["score", None])
def test_if_better_follows_the_direction_of_the_run(
    root: str, prepared: str, metric: str | None
) -> None:
    opened = started(root, "one", metric=metric, direction="min")
    for trial, value in zip(opened.run.trials, (0.5, 0.7), strict=True):
        storage.copy(Path(prepared), f"{trial.path}/artifacts/model")
        done = TrialChanged(
            number=trial.number,
            state=TrialState.COMPLETE,
            value=value,
            metrics={"score": value, "reported": 1.0},
            outputs={"score": value, "model": "artifacts/model"},
            attempt=0,
        )
        opened.record(done)
    opened.close(RunEnded(state=RunState.COMPLETE))
    assert opened.run.best.number == 0
    assert exported(opened.run.trials[1], "digits", root, if_better="score").version == 1
    assert exported(opened.run, "digits", root, if_better="score").version == 2
    assert models.export(opened.run.trials[1], "digits", root=root, if_better="score") is None


def test_a_version_is_copied_to_a_local_folder(place: str, prepared: str, tmp_path: Path) -> None:
    version = exported(prepared, "digits", place)
    path = version.download(tmp_path / "local")
    assert Path(path).name == "1"
    assert Path(path, "variables", "variables.index").read_text() == "weights"
    assert version.download(tmp_path / "local") == path
    with pytest.raises(ConfigError, match=r"local/1 contains another model.*other/1"):
        exported(prepared, "other", place).download(tmp_path / "local")


def test_a_store_that_fails_for_a_moment_is_tried_again(
    prepared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, failures = storage.put, [OSError("busy")]

    def fail_once(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        put(*arguments)

    monkeypatch.setattr(storage, "put", fail_once)
    version = exported(prepared, "digits", f"memory://{tmp_path.name}")
    assert storage.exists(f"{version.path}/saved_model.pb")


def test_compare_is_a_table_of_versions(root: str, prepared: str) -> None:
    for accuracy in (0.8, 0.9):
        exported(prepared, "digits", root, metrics={"accuracy": accuracy})
    exported(prepared, "other", root, metrics={"loss": 0.1}, alias="stable")
    assert models.compare("digits", root=root)["accuracy"].tolist() == [0.8, 0.9]
    frame = models.compare(["digits/1", "other@stable", models.get("digits", root=root)], root=root)
    assert frame["model"].tolist() == ["digits", "other", "digits"]
    assert frame["version"].tolist() == [1, 1, 2]
    with pytest.raises(ConfigError, match="digits/3, digits@stable"):
        models.compare(["digits/stable"], root=root)


def test_compare_keeps_parameters_and_metrics_apart_from_its_own_columns() -> None:
    params = {"model": "cnn", "run": "fast", "accuracy": "top-1", "lr": 0.1}
    version = models.ModelVersion(
        name="digits",
        version=3,
        path="/models/digits/3",
        metrics={"version": 7.0, "accuracy": 0.5},
        run="nightly",
        details={"lineage": {"params": params}},
    )
    (row,) = table([version]).to_dict(orient="records")
    assert (row["model"], row["version"], row["run"]) == ("digits", 3, "nightly")
    assert (row["metrics.version"], row["accuracy"], row["lr"]) == (7.0, 0.5, 0.1)
    assert (row["params.model"], row["params.run"]) == ("cnn", "fast")
    assert row["params.accuracy"] == "top-1"
