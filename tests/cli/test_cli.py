"""The `sparkdl` command reads runs."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sparkdl import experiment, storage
from sparkdl.cli import logs
from sparkdl.cli.main import main
from sparkdl.runs import Run
from sparkdl.runs.events import RunEnded, TrialChanged
from sparkdl.runs.layout import RunPaths
from sparkdl.runs.opening import RunDescription, continue_run, open_run
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


def test_logs_follow_a_run_that_adds_trials_and_repeats_one(root: str, capsys: Any) -> None:
    paths = RunPaths(make_run(root, "COMPLETE"))
    opened = continue_run(paths.folder, reopen=True)

    def go_on() -> None:
        number = opened.add({"lr": 0.3}, 2).number
        Path(paths.trial(number).folder).mkdir(parents=True, exist_ok=True)
        Path(paths.trial(number).log).write_text("a first attempt that printed much\n")
        opened.record(TrialChanged(number=number, state=TrialState.RUNNING, attempt=0))
        time.sleep(3 * logs.POLL_S)
        Path(paths.trial(number).log).write_text("second\n")
        opened.record(TrialChanged(number=number, state=TrialState.RUNNING, attempt=1))
        time.sleep(3 * logs.POLL_S)
        opened.record(RunEnded(state=RunState.COMPLETE))
        opened.owner.release()

    thread = threading.Timer(0.1, go_on)
    thread.start()
    assert main(["logs", paths.folder, "-f"]) == 0
    thread.join()
    out = capsys.readouterr().out
    assert out.count("a first attempt that printed much") == 1
    assert out.endswith("==> trial 2\nsecond\n")


def test_resume_exits_with_1_for_a_run_that_is_not_complete(
    root: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_run(root, "CANCELLED")
    given: list[Any] = []

    def resume(run: Run, **options: Any) -> Run:
        given.append(options["retry"])
        run.raise_unless_complete()
        return run

    monkeypatch.setattr(experiment, "resume", resume)
    assert main(["resume", path]) == 1
    captured = capsys.readouterr()
    assert "1 of 2 trials complete" in captured.out
    assert "sparkdl: launch one ended CANCELLED" in captured.err
    assert main(["resume", path, "--retry", "failed"]) == 1
    assert main(["resume", path, "--retry", "3,7"]) == 1
    assert given == [None, "failed", [3, 7]]
