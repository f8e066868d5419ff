"""The `sparkdl` command reads runs."""

from typing import Any

import pytest

from sparkdl import storage
from sparkdl.cli.main import main
from sparkdl.runs.events import RunEnded, TrialChanged
from sparkdl.runs.layout import RunPaths
from sparkdl.runs.opening import RunDescription, open_run
from sparkdl.runs.states import RunState, TrialState


def make_run(root: str, state: str) -> str:
    params = [{"lr": 0.1}, {"lr": 0.2}]
    description = RunDescription(
        id="one",
        name="one",
        kind="launch",
        description=None,
        metric="acc",
        direction="max",
        params=params,
        seed=1,
        secrets=(),
        facts={},
    )
    opened = open_run(root, description, "error")
    done = TrialChanged(number=1, state=TrialState.COMPLETE, value=0.75, attempt=0)
    end = RunEnded(state=RunState(state), duration_s=2.0)
    opened.journal.write([done, end])
    opened.owner.release()
    for number in (0, 1):
        storage.write(RunPaths(opened.run.path).trial(number).log, f"epoch of {number}\n")
    return opened.run.path


def test_runs_show_and_logs_print_a_run(
    root: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_run(root, "COMPLETE")
    monkeypatch.setenv("SPARKDL_ROOT", root)
    assert main(["runs"]) == 0
    assert "one launch COMPLETE" in " ".join(capsys.readouterr().out.split())
    for name in ("one", path):
        assert main(["show", name]) == 0
        assert "Best: trial 1, acc 0.75, lr=0.2" in capsys.readouterr().out
    assert main(["logs", "one"]) == 0
    assert capsys.readouterr().out == "==> trial 0\nepoch of 0\n==> trial 1\nepoch of 1\n"
    assert main(["logs", "one", "1", "-f"]) == 0
    assert capsys.readouterr().out == "epoch of 1\n"
    assert main(["logs", "one", "7"]) == 2
    assert "trials 0 to 1" in capsys.readouterr().err


def test_exit_codes_are_1_for_failed_runs_and_2_for_errors(root: str, capsys: Any) -> None:
    assert main(["show", make_run(root, "FAILED")]) == 1
    assert main(["show", f"{root}/none"]) == 2
    assert "holds no run.json" in capsys.readouterr().err
    assert main(["runs", "--root", f"{root}/none"]) == 0
    assert "no runs found" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["fly"])
