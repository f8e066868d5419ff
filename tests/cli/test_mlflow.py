"""`sparkdl mlflow push` without a tracking server; tests/callbacks/test_mlflow.py has one."""

import importlib.util

import pytest

from sparkdl.cli.main import main
from tests.helpers.stored_runs import ended


def test_push_names_the_package_that_is_missing(
    root: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ended(root, "one").run.path
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["mlflow", "push", path]) == 2
    assert "pip install 'sparkdl-platform[mlflow]'" in capsys.readouterr().err


def test_push_names_a_run_that_is_missing(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mlflow", "push", f"{root}/none", "--uri", "http://127.0.0.1:1"]) == 2
    assert "no run at" in capsys.readouterr().err
