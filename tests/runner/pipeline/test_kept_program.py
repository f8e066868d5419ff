"""The functions of a run are kept for its resume, unless they hold a credential."""

import importlib
import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from sparkdl.errors import ConfigError
from sparkdl.files.layout import RunPaths
from sparkdl.runner.again.resume import resume_run
from sparkdl.runner.pipeline import kept_program
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runner.request import Request
from sparkdl.runs import Run, provenance
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Space
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, Outcome, returned
from tests.helpers.loops import request_of

pytestmark = pytest.mark.usefixtures("quick_polls")

WORD = "hunter" + "22"


def same(attempt: Attempt) -> Outcome:
    return returned(float(attempt.task.trial.params["x"]))


def search_of(space: Any, **options: Any) -> Request:
    settings = SearchSettings(space=space, algorithm="random", num_trials=2)
    return request_of(search=settings, seed=3, **options)


def start(root: str, request: Request) -> Run:
    request = replace(request, options=replace(request.options, root=root, progress=True))
    return execute(request, InMemoryCluster(same))


def resume(run: Run, **changes: Any) -> Run:
    options = {name: changes.pop(name) for name in ("env", "secrets") if name in changes}
    train = changes.pop("train", None)
    changes = {"num_trials": 4, **changes}
    options |= {"progress": False}
    return resume_run(run.path, train, changes, frozenset(), None, options, InMemoryCluster(same))


def conditional(low: float) -> Callable[[optuna.Trial], dict[str, Any]]:
    def space(trial: optuna.Trial) -> dict[str, Any]:
        kind = trial.suggest_categorical("kind", ["a", "b"])
        return {"x": trial.suggest_float("x", low, 1.0 if kind == "a" else 2.0)}

    return space


def test_a_space_that_is_a_function_is_kept(root: str) -> None:
    run = start(root, search_of(conditional(0.25)))
    again = resume(run)
    assert len(again.trials) == 4
    assert all(trial.params["x"] >= 0.25 for trial in again.trials)
    assert [trial.params for trial in again.trials[:2]] == [trial.params for trial in run.trials]


def test_a_space_of_a_module_that_is_not_there_any_more_is_kept(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "def space(trial):\n    return {'x': trial.suggest_float('x', 3.0, 4.0)}\n"
    (tmp_path / "own_spaces.py").write_text(text)
    with monkeypatch.context() as changed:
        changed.syspath_prepend(str(tmp_path))
        run = start(root, search_of(importlib.import_module("own_spaces").space))
        changed.delitem(sys.modules, "own_spaces")
    (tmp_path / "own_spaces.py").unlink()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    again = resume(run)
    assert all(3.0 <= trial.params["x"] <= 4.0 for trial in again.trials)
    assert len(again.trials) == 4
    sys.modules.pop("own_spaces", None)


def test_a_space_that_cannot_be_kept_is_asked_for_with_the_reason(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    inner, api_key, lock = conditional(0.0), WORD, threading.Lock()

    def with_credential(trial: optuna.Trial) -> dict[str, Any]:
        return inner(trial) if api_key else {}

    def with_lock(trial: optuna.Trial) -> dict[str, Any]:
        return inner(trial) if lock else {}

    for number, (space, reason) in enumerate(
        [
            (with_credential, "'api_key', a variable that with_credential"),
            (with_lock, "it uses 'lock', a lock"),
        ]
    ):
        run = start(root, search_of(space, run_id=f"run-{number}"))
        said = " ".join(capsys.readouterr().out.split())
        assert "Note: the space is not kept, because" in said
        assert reason in said
        assert "experiment.resume needs space=" in said
        with pytest.raises(ConfigError, match=r"was not kept, because .*Pass space="):
            resume(run)
        assert len(resume(run, space=space).trials) == 4
        assert WORD not in json.dumps([p.read_text() for p in Path(run.path).rglob("*.json")])


def test_a_function_with_a_credential_is_not_kept_and_the_user_is_told(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    db_password = WORD

    def train(x: float) -> float:
        return x if db_password else 0.0

    request = replace(search_of(Space.of({"x": [0.0, 1.0, 2.0, 3.0]})), train=train)
    run = start(root, request)
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "Note: the function is not kept, because it contains what looks like a credential" in said
    )
    assert "'db_password', a variable that train captures" in said
    assert "pass them with env=" in said
    with pytest.raises(ConfigError, match=r"'db_password', a variable .*Pass train="):
        resume(run)
    assert len(resume(run, train=train).trials) == 4


def test_ordinary_values_of_env_do_not_keep_a_function_from_being_kept(root: str) -> None:
    backend = "tensorflow"

    def train(x: float) -> float:
        os.environ["KERAS_BACKEND"] = backend
        return x

    env = {"KERAS_BACKEND": "tensorflow", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    space = Space.of({"x": [0.0, 1.0, 2.0, 3.0]})
    run = start(root, replace(search_of(space, env=env), train=train))
    with pytest.raises(ConfigError, match="env="):
        resume(run)
    assert len(resume(run, env=env).trials) == 4


def test_secrets_that_the_user_names_are_masked_and_asked_for_again(root: str) -> None:
    secret = "tea" + "pot"
    request = search_of(Space.of({"x": [0.0, 1.0, 2.0, 3.0]}), secrets=[secret])
    options = replace(request.options, description=f"a {secret} of jdbc:x?password={WORD}")
    run = start(root, replace(request, options=options))
    written = json.loads(Path(run.path, "run.json").read_text())
    assert written["description"] == "a *** of jdbc:x?password=***"
    assert written["num_secrets"] == 1
    assert not any(secret.encode() in p.read_bytes() for p in Path(run.path).rglob("*.*"))
    with pytest.raises(ConfigError, match="had secrets= with 1 values"):
        resume(run)
    assert len(resume(run, secrets=[secret]).trials) == 4


def test_large_program_is_not_kept(
    root: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kept_program, "MAX_KEPT_BYTES", 1 << 20)
    table = bytes(3 << 20)
    request = request_of(1, root=root, progress=True)
    large = replace(request, train=lambda x: len(table))
    run = execute(large, InMemoryCluster(lambda attempt: returned(1.0)))
    assert len(Path(run.path, "source", "program.json").read_bytes()) < 1000
    out = capsys.readouterr().out
    assert "the function is not kept, because together with the modules" in out
    assert "has 3 MiB, more than 1 MiB" in out
    with pytest.raises(ConfigError, match=r"more than 1 MiB.*Pass train= with the function"):
        provenance.read_program(RunPaths(run.path).program)


def test_program_that_chooses_its_backend_is_told(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(x: float) -> Any:
        import os

        os.environ["KERAS_BACKEND"] = "jax"
        return x

    request = replace(request_of(1, root=root, progress=True), train=train)
    execute(request, InMemoryCluster(lambda attempt: returned(1.0)))
    out = capsys.readouterr().out
    assert "names KERAS_BACKEND, which Keras reads when it is imported" in out
    assert "Set the variable by env= in its place" in out
