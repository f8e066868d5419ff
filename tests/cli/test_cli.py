"""The `sparkdl` command reads runs."""

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from sparkdl import experiment
from sparkdl.cli.main import main
from sparkdl.files import storage
from sparkdl.files.layout import RunPaths
from sparkdl.runs import Run
from sparkdl.runs.events import RunEnded, TrialChanged
from sparkdl.runs.opening import RunDescription, continue_run, open_run
from sparkdl.runs.retry_choice import STOPPED
from sparkdl.runs.states import RunState, TrialState
from tests.helpers.processes import eventually
from tests.helpers.stored_runs import ended, shift, started


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


def test_a_folder_that_cannot_be_used_is_a_message(root: str, capsys: Any) -> None:
    path = make_run(root, "COMPLETE")
    assert main(["pull", path, "--to", "/proc/none"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("sparkdl: ") and error.count("\n") == 1
    assert "/proc/none" in error


def test_a_pipe_that_is_closed_is_no_error(root: str) -> None:
    ended(root, "one")
    program = "import sys; from sparkdl.cli.main import main; sys.exit(main(sys.argv[1:]))"
    with subprocess.Popen(
        [sys.executable, "-c", program, "runs", "--root", root, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_runs_show_and_logs_print_a_run(
    root: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_run(root, "COMPLETE")
    monkeypatch.setenv("SPARKDL_ROOT", root)
    assert main(["runs"]) == 0
    assert "one launch COMPLETE" in " ".join(capsys.readouterr().out.split())
    for name in (["one"], [path], []):
        assert main(["show", *name]) == 0
        assert "Best: trial 1, acc 0.75, lr=0.2" in capsys.readouterr().out
    assert main(["logs", "one"]) == 0
    assert capsys.readouterr().out == "==> trial 0\nepoch of 0\n==> trial 1\nepoch of 1\n"
    assert main(["logs", "one", "1", "-f"]) == 0
    assert capsys.readouterr().out == "epoch of 1\n"
    assert main(["logs", "one", "7"]) == 2
    assert "trials 0 to 1" in capsys.readouterr().err


@pytest.mark.parametrize("state", [TrialState.FAILED, TrialState.INVALID])
def test_show_of_a_run_with_failures_names_the_command_for_their_log(
    root: str, capsys: Any, state: TrialState
) -> None:
    opened = started(root, "one")
    storage.write(RunPaths(opened.run.path).trial(1).log, "the traceback\n")
    opened.record(
        TrialChanged(number=0, state=TrialState.COMPLETE, attempt=0, value=0.5),
        TrialChanged(number=1, state=state, attempt=0, error="ValueError: no"),
    )
    opened.close(RunEnded(state=RunState.COMPLETE))
    assert main(["show", opened.run.path]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if ": sparkdl logs" in line]
    assert main(shlex.split(line.partition(": sparkdl ")[2])) == 0
    assert capsys.readouterr().out == "the traceback\n"


def test_a_run_that_ended_early_is_shown_with_the_command_that_finishes_it(
    root: str, capsys: Any
) -> None:
    opened = started(root, "one")
    opened.record(TrialChanged(number=0, state=TrialState.INVALID, attempt=0, error="no metric"))
    opened.record(TrialChanged(number=1, state=TrialState.CANCELLED, attempt=0, error=STOPPED))
    opened.close(RunEnded(state=RunState.CANCELLED, reason="Ctrl-C"))
    assert main(["show", opened.run.path]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert shlex.split(last.removeprefix("To finish it: ")) == [
        "sparkdl",
        "resume",
        opened.run.path,
    ]
    opened = continue_run(opened.run.path)
    opened.record(TrialChanged(number=1, state=TrialState.COMPLETE, attempt=1, value=0.5))
    opened.close(RunEnded(state=RunState.FAILED, reason="some trials are INVALID"))
    assert main(["show", opened.run.path]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("After correcting the training function, in Python: ")
    assert last.endswith("train=train, retry='invalid')")


def test_exit_codes_are_1_for_failed_runs_and_2_for_errors(root: str, capsys: Any) -> None:
    assert main(["show", make_run(root, "FAILED")]) == 1
    assert main(["show", f"{root}/none"]) == 2
    assert "holds no run.json" in capsys.readouterr().err
    assert main(["runs", "--root", f"{root}/none"]) == 0
    assert f"there is no folder {root}/none" in capsys.readouterr().out
    Path(root, "none").mkdir()
    assert main(["runs", "--root", f"{root}/none"]) == 0
    assert f"there are no runs in {root}/none" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["fly"])
    assert main([]) == 2
    assert "finish an unfinished run" in capsys.readouterr().out


def test_name_of_a_run_in_place_of_its_id_is_answered_with_the_newest_id(
    root: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKDL_ROOT", root)
    for run_id in ("digits-20261121-a1", "digits-20261122-b2", "other-20261123-c3", "zebra"):
        Path(root, run_id).mkdir(parents=True)
    for name, hint in (
        ("digits", " Did you mean 'digits-20261122-b2'?"),
        ("oter-20261123-c3", " Did you mean 'other-20261123-c3'?"),
        ("nothing/like-it", "`sparkdl runs` and experiment.history() list the runs below a root."),
        # These folders hold no run, and no other one is alike.
        (f"{root}/digits-20261121-a1", " Did you mean 'digits-20261122-b2'?"),
        (f"{root}/zebra", "experiment.history() list the runs below a root."),
    ):
        assert main(["show", name]) == 2
        assert capsys.readouterr().err.rstrip().endswith(hint)


def test_logs_follow_a_run_that_adds_trials_and_repeats_one(root: str, capsys: Any) -> None:
    paths = RunPaths(make_run(root, "COMPLETE"))
    opened = continue_run(paths.folder, reopen=True)

    def go_on() -> None:
        number = opened.add({"lr": 0.3}, 2).number
        Path(paths.trial(number).folder).mkdir(parents=True, exist_ok=True)
        Path(paths.trial(number).log).write_text("a first attempt that printed much\n")
        opened.record(TrialChanged(number=number, state=TrialState.RUNNING, attempt=0))
        eventually(lambda: "printed much" in sys.stdout.getvalue())  # type: ignore[attr-defined]
        Path(paths.trial(number).log).write_text("second\n")
        opened.record(TrialChanged(number=number, state=TrialState.RUNNING, attempt=1))
        eventually(lambda: "second" in sys.stdout.getvalue())  # type: ignore[attr-defined]
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
    assert main(["resume", path, "--retry", "failed,invalid,3"]) == 1
    assert given == [None, ["failed"], ["failed", "invalid", 3]]


# ---- finding, comparing, copying, deleting


def as_json(words: list[str], capsys: Any, code: int = 0) -> Any:
    """Return the JSON that a command prints with `--json`."""
    capsys.readouterr()
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def two(root: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A root with two runs, of which the second is better and has tags."""
    monkeypatch.setenv("SPARKDL_ROOT", root)
    shift(ended(root, "a", (0.5, 0.75)).run.path, started="2026-11-01T09:00:00+0000")
    run = ended(root, "b", (0.9, 0.8), user="bob").run
    run.tag("paper", "good")
    run.note("with clipping")
    storage.write(RunPaths(run.path).trial(1).log, "epoch 1\n")
    return root


def test_readers_print_json(two: str, capsys: Any) -> None:
    rows = as_json(["runs"], capsys)
    assert {row["run"]: (row["best"], row["tags"]) for row in rows} == {
        "a": (0.75, []),
        "b": (0.9, ["paper", "good"]),
    }
    assert rows[0]["heartbeat_s"] is None
    assert rows[0]["started"].startswith("20")
    shown = as_json(["show", "b"], capsys)
    assert (shown["state"], shown["best"], shown["tags"]) == ("COMPLETE", 0, ["paper", "good"])
    assert shown["notes"][0]["text"] == "with clipping"
    assert [trial["value"] for trial in shown["trials"]] == [0.9, 0.8]
    assert shown["trials"][0]["usage"]["running_s"] == 2.0
    log = as_json(["logs", "b", "1"], capsys)
    assert log == {"trial": 1, "rank": "", "text": "epoch 1\n"}
    differences = as_json(["compare", "a", "b"], capsys)["differences"]
    assert differences["result"]["best value"] == {"a": 0.75, "b": 0.9}
    assert differences["environment"]["user"] == {"a": "ann", "b": "bob"}


def test_show_json_of_a_run_that_failed_has_exit_code_1(root: str, capsys: Any) -> None:
    path = make_run(root, "FAILED")
    assert as_json(["show", path], capsys, code=1)["state"] == "FAILED"


def test_whole_numbers_of_some_runs_are_shown_as_such(root: str, capsys: Any) -> None:
    for run_id, params in (("a", {"units": 16}), ("b", {"layers": 3})):
        opened = started(root, run_id, [params])
        opened.close(RunEnded(state=RunState.COMPLETE))
    rows = {row["run"]: row for row in as_json(["runs", "--root", root], capsys)}
    assert (rows["a"]["param.units"], rows["b"]["param.units"]) == (16, None)
    assert type(rows["a"]["param.units"]) is int
    assert main(["runs", "--root", root]) == 0
    words = capsys.readouterr().out.split()
    assert "16" in words
    assert not {"16.0", "<NA>", "NaN"} & set(words)


def test_runs_are_found_by_conditions(two: str, capsys: Any) -> None:
    def found(*words: str) -> list[str]:
        return [row["run"] for row in as_json(["runs", *words], capsys)]

    assert found("--where", "best > 0.8 and lr < 1") == ["b"]
    assert found("--user", "ann", "--user", "carla") == ["a"]
    assert found("--tag", "paper", "--tag", "good", "--since", "1d") == ["b"]
    assert found("--root", f"{two}/none") == []
    for words, says in (
        (["--where", "best > 9"], "none of the 2 run(s) meets the conditions"),
        (["--root", f"{two}/none"], f"there is no folder {two}/none; name the folder of the runs"),
        (["--root", f"{two}/none", "--where", "best > 9"], "there is no folder"),
    ):
        assert main(["runs", *words]) == 0
        assert capsys.readouterr().out.startswith(says)
    assert main(["runs", "--where", "best >"]) == 2
    assert "where='best >' cannot be evaluated" in capsys.readouterr().err
    assert main(["runs", "--tag", "paper"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "b launch COMPLETE" in text
    assert "bob paper, good with clipping" in text


def test_runs_prints_the_rows_of_history(two: str, capsys: Any) -> None:
    experiment.load("b").note("a second\nline " + "x" * 40)
    (row, other) = as_json(["runs"], capsys)
    frame = experiment.history()
    assert list(row) == list(frame.columns)
    assert [row["run"], other["run"]] == frame["run"].tolist() == ["b", "a"]
    assert [row["started"], other["started"]] == [time.isoformat() for time in frame["started"]]
    assert main(["runs"]) == 0
    title, first, second = capsys.readouterr().out.splitlines()
    assert title.split()[:4] == ["run", "kind", "state", "started"]
    assert "2026-11-01 09:00:00" in second and "with clipping; a second line... " in first
    assert not {"path", "git_commit", "FAILED", "PRUNED", "heartbeat_s"} & set(title.split())
    assert len({len(title), len(first), len(second)}) == 1
    assert "None" not in first + second


def test_show_prints_tags_and_notes(two: str, capsys: Any) -> None:
    assert main(["show", "b"]) == 0
    out = capsys.readouterr().out
    assert "Tags: paper, good" in out
    assert "Note: with clipping (" in out


def test_compare_prints_a_table_and_writes_a_figure(two: str, capsys: Any, tmp_path: Path) -> None:
    page = tmp_path / "figure.html"
    assert main(["compare", "a", "b", "--figure", str(page)]) == 0
    assert re.search(r"best value +0.75 +0.9\n", capsys.readouterr().out)
    assert "Best value so far" in page.read_text()
    assert main(["compare", "a"]) == 2
    assert "two or more runs" in capsys.readouterr().err


def test_gc_prints_what_it_would_delete_and_deletes_it(two: str, capsys: Any) -> None:
    size = experiment.load(f"{two}/a").size
    assert main(["gc"]) == 2
    assert "--keep, --older, or both" in capsys.readouterr().err
    assert main(["gc", "--keep", "1", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "would be deleted: a (COMPLETE, " in out
    assert f"1 run would be deleted, {size / 1000:.3g} kB ({size} bytes)" in out
    assert main(["gc", "--keep", "1", "--older", "9999d"]) == 0
    assert "0 runs deleted, 0 B" in capsys.readouterr().out
    experiment.load(f"{two}/b").tag("keep")
    rows = as_json(["gc", "--keep", "0"], capsys)
    assert {row["run"]: (row["deleted"], row["kept"]) for row in rows} == {
        "a": (True, None),
        "b": (False, "it has the tag 'keep'"),
    }
    assert [row["run"] for row in as_json(["runs"], capsys)] == ["b"]


def test_pull_copies_a_run(two: str, capsys: Any, tmp_path: Path) -> None:
    copied = as_json(["pull", "b", "--to", str(tmp_path / "here")], capsys)
    assert copied["path"] == str(tmp_path / "here/b")
    assert copied["bytes"] == experiment.load(f"{two}/b").size
    assert main(["show", copied["path"]]) == 0
    assert main(["pull", "b", "--to", str(tmp_path / "here")]) == 0
    assert "the run is in" in capsys.readouterr().out
    assert main(["pull", "b", "--to", two]) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_report_of_another_users_run_is_not_left_in_its_folder(
    root: str, capsys: Any, tmp_path: Path
) -> None:
    """Links there may lead to files that only this user can read."""
    path = ended(root, "one").run.path
    os.chown(path, 65534, 65534)
    assert main(["report", path]) == 2
    assert "belongs to user" in capsys.readouterr().err
    assert not list(Path(path).glob("*.html"))
    assert main(["report", path, "--to", str(tmp_path / "page.html")]) == 0


def test_report_writes_the_page(two: str, capsys: Any, tmp_path: Path) -> None:
    assert main(["report", "a"]) == 0
    assert capsys.readouterr().out.strip() == f"{two}/a/report.html"
    assert "<h1>" in Path(two, "a/report.html").read_text()
    elsewhere = str(tmp_path / "page.html")
    assert as_json(["report", "b", "--to", elsewhere], capsys) == {"report": elsewhere}
    assert "b</p>" in Path(elsewhere).read_text()
    assert not Path(two, "b/report.html").exists()
    assert main(["report", "c"]) == 2


# Of a program that reads runs, and of one that has started none yet.
NO_SESSION = "pyspark pyarrow pandas optuna plotly tensorflow"
VERB = """
import sys
from sparkdl.cli.main import main
try: assert main(sys.argv[1:]) == 0
except SystemExit: pass
"""


def modules_after(program: str, *words: str, **environ: str) -> set[str]:
    """Return the names of the modules that a program has loaded at its end."""
    program += "\nimport sys; print('modules:', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environ},
    )
    return set(done.stdout.split("modules: ")[1].split())


@pytest.mark.parametrize(
    ("words", "most_modules"),
    [
        *(("--version", 9), ("show", 90), ("runs", 90), ("runs --user ann --since 1d --json", 90)),
        *(("compare one one", 90), ("models list", 120), ("ui --help", 150)),
    ],
)
def test_a_verb_imports_only_what_it_needs(root: str, words: str, most_modules: int) -> None:
    ended(root, "one")
    loaded = modules_after(VERB, *words.split(), SPARKDL_ROOT=root)
    assert len([name for name in loaded if name.startswith("sparkdl")]) <= most_modules
    assert not {*NO_SESSION.split(), "numpy"} & loaded


@pytest.mark.parametrize(
    "program",
    [
        "from sparkdl.experiment import launch, search, load",
        "from sparkdl import experiment as e; e.launch, e.search, e.load, e.resume, e.allreduce",
    ],
    ids=["import", "access"],
)
def test_the_verbs_of_experiment_are_there_without_spark(program: str) -> None:
    assert not {*NO_SESSION.split(), "numpy"} & modules_after(program)
