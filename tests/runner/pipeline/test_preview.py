"""`sparkdl plan`: programs whose verbs describe their runs, and start nothing."""

import json
import os
import sys
import textwrap
from pathlib import Path

import pytest

from sparkdl.cli.dry_run import ProgramPlan, plan_program
from sparkdl.cli.main import main
from sparkdl.errors import ConfigError, RunExistsError
from sparkdl.files import storage
from sparkdl.runner.again.reproduce import reproduce_run
from sparkdl.runner.again.resume import resume_run
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runner.pipeline.preview import previewing
from sparkdl.runs.history import load
from sparkdl.search import Float
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Space
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, Outcome, raised, returned
from tests.helpers.loops import new_loop, request_of, run_trials, train
from tests.helpers.stored_runs import ended, started

pytestmark = pytest.mark.usefixtures("quick_polls")

GRID = """
    import sys
    from sparkdl import experiment

    def train(learning_rate, dropout=0.5):
        open("trained", "w").close()
        return learning_rate

    print("arguments", sys.argv[1:], __name__)
    run = experiment.launch(
        train, {"learning_rate": [0.1, 0.2], "dropout": [0.2, 0.5]}, name="nightly",
        env={"TOKEN": "hidden"}, parallelism=3,
    )
    print("still here")
    print(run)
    print("not reached")
"""


@pytest.fixture(autouse=True)
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InMemoryCluster:
    """The cluster that programs find; they work in a folder of their own."""
    memory = InMemoryCluster(num_slots=2)
    monkeypatch.setattr("sparkdl.runner.pipeline.prepare.SparkCluster", lambda session: memory)
    monkeypatch.chdir(tmp_path)
    return memory


def planned(text: str, *arguments: str) -> ProgramPlan:
    """The plan of a program."""
    Path("program.py").write_text(textwrap.dedent(text))
    return plan_program("program.py", arguments)


def nothing_was_done(cluster: InMemoryCluster) -> bool:
    return not cluster.submitted and os.listdir() == ["program.py"]


# ---- programs


def test_program_is_followed_until_it_uses_the_result(
    cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.argv, sys.path[:]
    plan = planned(GRID, "--epochs", "3")
    assert (sys.argv, sys.path) == before
    out = capsys.readouterr().out
    assert out == "arguments ['--epochs', '3'] __main__\nstill here\n"
    (run,) = plan.runs
    assert (run.kind, run.name, run.num_trials, run.at_once) == ("launch", "nightly", 4, 2)
    assert run.params == [
        {"learning_rate": 0.1, "dropout": 0.2},
        {"learning_rate": 0.1, "dropout": 0.5},
        {"learning_rate": 0.2, "dropout": 0.2},
    ]
    assert (run.duration_s, run.num_processes, run.resumes) == (None, 1, None)
    assert run.root == str(Path("runs").absolute())
    assert plan.is_ready
    text = str(plan)
    assert "launch 'nightly': 4 trial(s), 2 at once" in text
    assert "plan      no framework: 1 worker with one slot; sets TOKEN" in text
    assert "slots     2 slots in memory; 1 core(s) for each process" in text
    assert "trials    learning_rate=0.1, dropout=0.2\n            learning_rate=0.1" in text
    assert "... 1 more" in text
    assert "duration  unknown" in text
    assert "to the line where it uses the result of a run" in text
    assert "hidden" not in text
    assert nothing_was_done(cluster)


def test_runs_whose_results_are_not_used_are_all_shown(cluster: InMemoryCluster) -> None:
    plan = planned(
        """
        from sparkdl import experiment

        def train():
            return 1.0

        runs = [experiment.launch(train, name=name, wait=False) for name in ("a", "b")]
        experiment.allreduce(train, num_workers=2)
        """
    )
    assert [run.name for run in plan.runs] == ["a", "b", "train"]
    assert "a gang of 2 processes" in plan.runs[2].plan
    assert plan.runs[2].at_once == 1
    assert (plan.ends_where, plan.exit_code) == ("", None)
    assert "The program was followed to its end." in str(plan)
    assert nothing_was_done(cluster)


@pytest.mark.parametrize(
    "use",
    [
        "run.best",
        "str(run)",
        "f'{run}'",
        "run.trials[0]",
        "run == run",
        "run.tag('x')",
        "setattr(run, 'x', 1)",
        "experiment.resume(run)",
        "experiment.compare([run, run])",
        "experiment.try_one(train, {})",
        "__import__('sparkdl.hops.experiment').hops.experiment.begin()",
    ],
)
def test_every_use_of_a_result_ends_the_program(cluster: InMemoryCluster, use: str) -> None:
    plan = planned(
        f"""
        from sparkdl import experiment

        def train():
            raise SystemExit("trained")

        run = experiment.launch(train)
        assert isinstance(run, type(run))
        try:
            {use}
        except Exception as exc:
            print(exc)
        raise SystemExit(5)
        """
    )
    assert plan.ends_where.startswith(("uses the result", "calls a training function"))
    assert plan.exit_code is None
    assert nothing_was_done(cluster)


def test_search_shows_proposals_and_its_rules(cluster: InMemoryCluster) -> None:
    plan = planned(
        """
        from sparkdl import experiment, search

        def train(x, layers):
            return x

        experiment.search(train, {"x": search.Float(0, 1), "layers": [1, 2]}, num_trials=9,
                          patience=4, timeout_s=60, initial_params=[{"x": 0.5}], seed=3, repeats=2)
        experiment.search(lambda trial: trial.suggest_float("x", 0, 1), timeout_s=60)
        experiment.search(train, {"x": [0.5], "layers": [1, 2]}, algorithm="grid")
        """
    )
    first, objective, grid = plan.runs
    assert first.num_trials == 18
    assert first.stop_rules == {"patience": 4, "timeout_s": 60}
    assert first.params[0]["x"] == 0.5
    assert all(0 <= params["x"] <= 1 and params["layers"] in (1, 2) for params in first.params)
    assert "(a proposal)" in str(first)
    assert (objective.num_trials, objective.params) == (None, [])
    assert "... until a rule ends the run" in str(objective)
    assert grid.params == [{"x": 0.5, "layers": 1}, {"x": 0.5, "layers": 2}]
    assert "(a proposal)" not in str(grid)
    assert nothing_was_done(cluster)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("launch(train, {'y': [1]})", "FunctionError: args contains 'y', which train(x)"),
        ("launch(train, {'x': [1]}, n_jobs=2)", "Did you mean 'parallelism'?"),
        ("allreduce(lambda: 1, num_workers=3)", "SlotsError: allreduce needs 3 slots at once"),
        ("launch(train, {'x': [1]}, run_id='a b')", "ConfigError: run_id is 'a b'"),
        ("launch(train, {'x': [1]}, versioned_resources=['none.txt'])", "which does not exist"),
        ("search(train, {'x': [1]})", "the search has no stopping rule"),
    ],
)
def test_run_that_would_be_refused_is_told(cluster: InMemoryCluster, call: str, text: str) -> None:
    plan = planned(
        f"""
        from sparkdl import experiment

        def train(x):
            return x

        experiment.launch(train, {{"x": [1]}}, name="first")
        experiment.{call}
        """
    )
    assert [run.name for run in plan.runs] == ["first"]
    assert text in plan.refused
    assert not plan.is_ready
    assert "Refused: " in str(plan)
    assert nothing_was_done(cluster)


def test_program_that_fails_or_exits_is_told(
    cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = planned("def load():\n    raise KeyError('column')\nload()")
    assert plan.error.startswith('Traceback (most recent call last):\n  File "program.py", line 3')
    assert "KeyError: 'column'" in str(plan)
    assert not plan.is_ready
    plan = planned("raise SystemExit('usage: program.py FILE')")
    assert (plan.exit_code, plan.is_ready) == (1, False)
    assert "usage" in capsys.readouterr().err
    assert planned("import sys; sys.exit(0)").is_ready
    with pytest.raises(ConfigError, match=r"there is no program none\.py"):
        plan_program("none.py")
    assert nothing_was_done(cluster)


def test_program_imports_modules_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    Path(folder, "model_of_plan.py").write_text("def train():\n    return 1.0\n")
    program = folder / "main.py"
    program.write_text(
        "from sparkdl import experiment\nimport model_of_plan\n"
        "experiment.launch(model_of_plan.train)\n"
    )
    try:
        assert [run.name for run in plan_program(str(program)).runs] == ["train"]
    finally:
        del sys.modules["model_of_plan"]


def test_plan_on_the_command_line(
    cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("program.py").write_text(textwrap.dedent(GRID))
    assert main(["plan", "program.py", "--json", "--x"]) == 0
    out = capsys.readouterr().out
    assert "arguments ['--json', '--x']" in out
    assert "launch 'nightly'" in out
    assert main(["plan", "--json", "program.py"]) == 0
    captured = capsys.readouterr()
    assert "still here" in captured.err
    plan = json.loads(captured.out)
    assert plan["runs"][0]["num_trials"] == 4
    assert plan["runs"][0]["duration_s"] is None
    assert plan["refused"] == ""
    Path("program.py").write_text("from sparkdl import experiment\nexperiment.launch(3)\n")
    assert main(["plan", "program.py"]) == 1
    assert "Refused: FunctionError" in capsys.readouterr().out
    assert main(["plan", "none.py"]) == 2


# ---- runs that exist


def test_duration_follows_from_an_earlier_run_of_the_name(cluster: InMemoryCluster) -> None:
    started("runs", "c").owner.release()  # The newest run has no trial that has ended.
    ended("runs", "b", values=(0.5, 0.7, 0.9), params=[{"lr": 0.1}] * 3)
    ended("runs", "a", name="other")
    with previewing() as previews:
        execute(request_of(5, name="nightly", root="runs"), cluster)
        execute(request_of(5, name="third", root="runs"), cluster)
        execute(request_of(5, name="nightly", root="runs", timeout_s=3), cluster)
    known, unknown, limited = previews
    assert (known.trial_s, known.duration_s) == (2.0, 6.0)
    assert "duration  about 6 s, at 2 s per trial (the median of 3 in b)" in str(known)
    assert unknown.duration_s is None
    assert limited.duration_s == 3.0


def test_rest_of_a_run_that_would_be_resumed(cluster: InMemoryCluster, root: str) -> None:
    def one_fails(attempt: Attempt) -> Outcome:
        return raised("ValueError: no") if attempt.number else returned(1.0)

    path = run_trials(root, InMemoryCluster(one_fails), 3).path
    before = sorted(Path(path).rglob("*"))
    with previewing() as previews:
        execute(request_of(3, root=root, if_exists="resume"), cluster)
        execute(request_of(3, root=root, if_exists="resume", retry="failed"), cluster)
        execute(request_of(3, root=root, if_exists="new"), cluster)
        resume_run(path, train, {}, frozenset({1}), None, {"progress": False}, cluster)
        with pytest.raises(RunExistsError, match="exists already"):
            execute(request_of(3, root=root), cluster)
        with pytest.raises(RunExistsError, match="args was"):
            execute(request_of(2, root=root, if_exists="resume"), cluster)
    assert [(p.num_trials, p.resumes) for p in previews] == [
        (0, "run"),
        (2, "run"),
        (3, None),
        (1, "run"),
    ]
    assert str(previews[3]).startswith("launch 'train': the rest of run: 1 trial(s), 1 at once")
    assert previews[3].params == [{"x": 1.0}]
    assert sorted(Path(path).rglob("*")) == before
    assert storage.list_names(root) == ["run"]
    assert not cluster.submitted


def test_run_of_a_living_driver_cannot_be_resumed(cluster: InMemoryCluster, root: str) -> None:
    loop = new_loop(root, cluster, request_of(2))
    run, attempt = loop.run, {"progress": False}
    with previewing() as previews, pytest.raises(RunExistsError, match="is being run by"):
        resume_run(run.path, train, {}, frozenset(), None, attempt, cluster)
    assert not previews
    cluster._run_task = lambda attempt: returned(1.0)
    loop.execute()


def test_rest_of_a_search_and_a_reproduced_run(cluster: InMemoryCluster, root: str) -> None:
    space = SearchSettings(space=Space.of({"x": Float(0, 1)}), num_trials=2)
    path = run_trials(root, InMemoryCluster(lambda attempt: returned(1.0)), search=space).path
    quiet = {"progress": False}
    with previewing() as previews:
        resume_run(path, train, {"num_trials": 5}, frozenset(), None, quiet, cluster)
        reproduce_run(path, train, {}, None, quiet, cluster)
    rest, again = previews
    assert (rest.num_trials, rest.params, rest.resumes) == (3, [], "run")
    assert (again.num_trials, again.resumes) == (2, None)
    stored = [trial.params for trial in load(path).trials]
    assert again.params == stored
    assert storage.list_names(root) == ["run"]
