"""The `sparkdl models` command. `tests/models/test_export.py` has `sparkdl models export RUN`."""

import json
from pathlib import Path
from typing import Any

import pytest

from sparkdl.cli.main import main
from sparkdl.files import storage
from sparkdl.runs.events import RunEnded, TrialChanged
from sparkdl.runs.states import RunState, TrialState
from tests.helpers.saved_models import write_saved_model
from tests.helpers.stored_runs import started


@pytest.fixture
def run_cli(root: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command below the root; returns what it printed."""
    monkeypatch.setenv("SPARKDL_ROOT", root)

    def run(*words: str, code: int = 0) -> str:
        assert main(["models", *words]) == code
        captured = capsys.readouterr()
        return str(captured.out if code == 0 else captured.err)

    return run


def test_versions_are_exported_listed_and_compared(run_cli: Any, tmp_path: Path) -> None:
    assert "no models found" in run_cli()
    path = write_saved_model(tmp_path / "prepared")
    for number, accuracy in enumerate((0.8, 0.9), start=1):
        printed = run_cli(
            *("export", path, "--name", "digits", "--metric", f"accuracy={accuracy}", "--json"),
            *("--if-better", "accuracy"),
        )
        assert json.loads(printed)["version"] == number
    worse = ("export", path, "--name", "digits", "--metric", "accuracy=0.5")
    assert "accuracy is not better" in run_cli(*worse, "--if-better", "accuracy", code=99)
    run_cli("export", path, "--name", "other", "--alias", "stable")
    lines = run_cli().splitlines()
    assert lines[0].split()[:4] == ["model", "version", "aliases", "accuracy"]
    assert [line.split()[:2] for line in lines[1:]] == [
        ["digits", "1"],
        ["digits", "2"],
        ["other", "1"],
    ]
    assert [v["version"] for v in json.loads(run_cli("list", "digits", "--json"))] == [1, 2]
    assert len(json.loads(run_cli("--json"))) == 3
    assert "no models found" in run_cli("--root", str(tmp_path))
    assert "no models found" in run_cli("--root", str(tmp_path), "list")
    assert json.loads(run_cli("list", "--root", str(tmp_path), "--json")) == []
    compared = run_cli("compare", "digits/1", "other@stable").splitlines()
    assert [line.split()[:2] for line in compared[1:]] == [["digits", "1"], ["other", "1"]]


def test_a_run_is_exported_by_its_id_below_the_given_root(
    run_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(write_saved_model(tmp_path / "prepared"))
    for name, value in (("default", 0.5), ("other", 0.75)):
        opened = started(str(tmp_path / name), "nightly", [{}])
        storage.copy(path, f"{opened.run.trials[0].path}/artifacts/model")
        done = TrialChanged(
            number=0,
            state=TrialState.COMPLETE,
            attempt=0,
            value=value,
            metrics={"accuracy": value},
            outputs={"model": "artifacts/model"},
        )
        opened.record(done)
        opened.close(RunEnded(state=RunState.COMPLETE))
    monkeypatch.setenv("SPARKDL_ROOT", str(tmp_path / "default"))
    root = ("--root", str(tmp_path / "other"))
    printed = run_cli("export", "nightly", "--name", "digits", "--json", *root)
    assert json.loads(printed)["metrics"] == {"accuracy": 0.75}
    # The user of the run is not the user who has exported the model.
    shown = run_cli("show", "digits", *root).splitlines()[1:]
    lines = [line.split(maxsplit=1) for line in shown if not line.startswith("   ")]
    names = [words[0] for words in lines]
    assert len(set(names)) == len(names)
    assert ["user", "ann"] in lines
    assert "no run at" in run_cli("export", "nightlyy", "--name", "digits", *root, code=2)


def test_a_version_is_shown_named_and_copied(run_cli: Any, tmp_path: Path) -> None:
    path = write_saved_model(tmp_path / "prepared")
    for _ in range(2):
        run_cli("export", path, "--name", "digits")
    run_cli("alias", "digits", "stable", "1")
    assert "stable  version 2" in run_cli("alias", "digits", "stable", "2")
    shown = run_cli("show", "digits@stable")
    assert shown.startswith("digits/2 @stable\n")
    assert "\n      inputs\n        x            dtype=float32 shape=[null, 4]\n" in shown
    assert json.loads(run_cli("show", "digits/2", "--json"))["aliases"] == ["stable"]
    moves = json.loads(run_cli("alias", "digits", "stable", "--remove", "--json"))
    assert [move["version"] for move in moves] == [1, 2, None]
    assert "no alias 'stable'" in run_cli("show", "digits@stable", code=2)
    assert "digits" in run_cli("list", "digts", code=2)
    assert "no version 7" in run_cli("alias", "digits", "stable", "7", code=2)
    copied = run_cli("pull", "digits/1", "--to", str(tmp_path / "local")).strip()
    assert copied == str(tmp_path / "local" / "1")
    assert Path(copied, "saved_model.pb").exists()
