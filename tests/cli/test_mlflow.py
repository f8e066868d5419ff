"""`sparkdl mlflow push` without a tracking server; tests/callbacks/test_mlflow.py has one."""

import importlib.util
import os

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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_push_of_another_users_run_sends_nothing_to_the_server_of_that_user(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ended(root, "one").run.path
    os.chown(path, 65534, 65534)
    assert main(["mlflow", "push", path]) == 2
    assert "who has chosen its tracking server. Pass" in capsys.readouterr().err
