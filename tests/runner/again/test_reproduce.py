"""A run is run again as a new run, which says what differs before its first trial starts."""

import importlib
import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkdl.cluster.program.packaging import pack
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.files.layout import RunPaths
from sparkdl.runner.again.reproduce import reproduce_run
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runner.pipeline.kept_code import changed_code, changed_repository, keep_code, script_of
from sparkdl.runs import Run
from sparkdl.runs.differences import Difference
from sparkdl.runs.history import read_description, read_run
from sparkdl.runs.provenance import environment, git_commit
from sparkdl.search import Float
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Space
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, Outcome, returned
from tests.helpers.loops import request_of

pytestmark = pytest.mark.usefixtures("quick_polls")

WORD = "hunter" + "22"


def same(attempt: Attempt) -> Outcome:
    return returned(float(attempt.task.trial.params["x"]))


def start(root: str, num_trials: int = 2, **options: Any) -> Run:
    return execute(request_of(num_trials, root=root, **options), InMemoryCluster(same))


def reproduce(
    run: Run | str, run_task: Callable[[Attempt], Outcome] = same, **arguments: Any
) -> Run:
    path = run.path if isinstance(run, Run) else run
    executor = arguments.pop("executor", {})
    train, data = arguments.pop("train", None), arguments.pop("data", None)
    options = {"progress": False, **arguments}
    cluster = InMemoryCluster(run_task)
    cluster.executor |= executor
    return reproduce_run(path, train, {}, data, options, cluster)


def subjects(run: Run) -> list[str]:
    return [one.subject for one in run.differences]


def test_a_run_is_reproduced_with_its_parameters_seeds_and_options(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = execute(
        request_of(3, root=root, name="first", metric="acc", direction="min", max_restarts=2),
        InMemoryCluster(lambda attempt: returned(acc=1.0)),
    )
    tasks = []

    def look(attempt: Attempt) -> Outcome:
        tasks.append((attempt.number, attempt.task.trial.params, attempt.task.trial.seed))
        return returned(acc=1.0)

    again = reproduce(run, look, progress=True)
    assert again.id != run.id
    assert Path(again.path).parent == Path(run.path).parent
    assert (again.name, again.metric, again.direction) == ("first", "acc", "min")
    assert sorted(tasks) == [(t.number, t.params, t.seed) for t in run.trials]
    assert read_description(again.path)["request"]["options"]["max_restarts"] == 2
    for loaded in (again, read_run(again.path)):
        assert loaded.reproduces == run.id
        assert loaded.differences == []
    assert run.reproduces is None
    assert not run.differences
    out = capsys.readouterr().out
    assert f"Reproducing run {run.id}. What differs from it:\n  nothing\n" in out
    # The new run is complete: its directory alone can be reproduced, and says the same.
    shutil.rmtree(run.path)
    third = reproduce(again, look, parallelism=1)
    assert third.reproduces == again.id
    assert [str(one) for one in third.differences] == ["option parallelism: none before, 1 now"]


def test_what_differs_is_printed_before_a_trial_starts(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start(root)
    paths = RunPaths(run.path)
    # As if the run had been made on another machine.
    lines = storage.read(paths.environment).decode().splitlines()
    kept = [line for line in lines if not line.startswith(("numpy==", "optuna=="))]
    storage.write(paths.environment, "\n".join([*kept, "numpy==0.9", "old_one==1.0"]))
    content = read_description(run.path)
    content["hardware"] |= {"cores": 999, "gpus": ["H100"]}
    content["git_commit"] = "1234567+changes"
    storage.write(paths.run, json.dumps(content))
    seen = []

    def look(attempt: Attempt) -> Outcome:
        seen.append(capsys.readouterr().out)
        return returned(1.0)

    executor = {"packages": {"numpy": "3.0"}, "gpus": ["A100"]}
    again = reproduce(run, look, progress=True, executor=executor)
    said = seen[0]
    for text in (
        "package old-one (driver): 1.0 before, absent now",
        "package optuna (driver): absent before, ",
        "package numpy (driver): 0.9 before, ",
        "CPU cores (driver): 999 before, ",
        "GPUs (driver): H100 before, none now",
        "git commit of the working directory: 1234567+changes before, ",
        "It differs also on the executors or in the data:",
        "package numpy (executors): 0.9 before, 3.0 now",
        "package old-one (driver, executors): 1.0 before, absent now",
        "GPUs (executors): none before, A100 now",
    ):
        assert text in said, text
    assert [str(one) for one in again.differences if one.subject == "GPUs"] == [
        "GPUs (driver): H100 before, none now",
        "GPUs (executors): none before, A100 now",
    ]
    assert subjects(again).count("package old-one") == 1


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "own_rates.py").write_text("RATE = 0.1\n\n\ndef twice():\n    return 2 * RATE\n")
    (folder / "own_model.py").write_text(
        "import own_rates\n\n\ndef train(x=0.0):\n    return x * own_rates.twice()\n"
    )
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for name in ("own_rates", "own_model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield folder
    for name in ("own_rates", "own_model"):
        sys.modules.pop(name, None)


def test_a_changed_line_of_a_module_is_named_and_the_kept_code_runs(
    root: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = replace(request_of(2, root=root), train=importlib.import_module("own_model").train)
    run = execute(request, InMemoryCluster(same))
    (project / "own_rates.py").write_text("RATE = 0.3\n\n\ndef twice():\n    return 2 * RATE\n")
    importlib.invalidate_caches()
    programs = []

    def look(attempt: Attempt) -> Outcome:
        programs.append(attempt.task.program.modules["own_rates"].text)
        return returned(1.0)

    again = reproduce(run, look)
    assert "RATE = 0.1" in programs[0]
    (code,) = again.differences
    assert code.subject == "code own_rates (the run uses the kept code)"
    assert code.lines == ("@@ -1 +1 @@", "-RATE = 0.1", "+RATE = 0.3")
    assert str(project / "own_rates.py") in code.now
    # In a clone elsewhere, the files of the clone count.
    clone = project.parent / "clone"
    shutil.copytree(project, clone)
    (clone / "own_rates.py").write_text("RATE = 0.1\n\n\ndef twice():\n    return 3 * RATE\n")
    monkeypatch.chdir(clone)
    (code,) = reproduce(again).differences
    assert code.lines == ("@@ -5 +5 @@", "-    return 2 * RATE", "+    return 3 * RATE")


def test_the_script_of_a_function_is_kept_and_compared(tmp_path: Path) -> None:
    script, paths = tmp_path / "program.py", RunPaths(str(tmp_path / "run"))
    text = f"db_password = '{WORD}'\nhelper = lambda: 1\n\ndef train():\n    return helper()\n"
    script.write_text(text)
    train = runpy.run_path(str(script))["train"]
    program = pack(train)
    assert script_of(train, program) == str(script)
    keep_code(paths, train, program, False, ())
    assert WORD not in Path(paths.main).read_text()
    description = {"folder": str(tmp_path), "main": str(script)}
    assert list(changed_code(paths.folder, description, None, ())) == []
    script.write_text(text.replace("lambda: 1", "lambda: 2"))
    (code,) = changed_code(paths.folder, description, None, ())
    assert code.lines == ("@@ -2 +2 @@", "-helper = lambda: 1", "+helper = lambda: 2")
    script.unlink()
    assert list(changed_code(paths.folder, description, None, ())) == []


def test_uncommitted_changes_are_kept_without_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=ann", "-c", "user.email=ann@example.com"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    file, paths = tmp_path / "settings.txt", RunPaths(str(tmp_path / "run"))
    file.write_text("rate = 0.1\n")
    git("init")
    git("add", "settings.txt")
    git("commit", "-m", "first")
    file.write_text(f"rate = 0.2\napi_key = '{WORD}'\n")
    monkeypatch.chdir(tmp_path)
    keep_code(paths, len, pack(len), True, ())
    diff = Path(paths.changes).read_text()
    assert "-rate = 0.1\n+rate = 0.2\n+api_key = '***'" in diff
    # What has changed since is found, in this repository only.
    description = {"git_commit": git_commit(tmp_path)}
    assert list(changed_repository(paths.folder, description, ())) == []
    file.write_text(f"rate = 0.3\napi_key = '{WORD}'\n")
    (changed,) = changed_repository(paths.folder, description, ())
    assert changed.subject.startswith("files since commit ")
    assert changed.now == "settings.txt"
    assert changed.lines[-3:] == ("-rate = 0.1", "+rate = 0.3", "+api_key = '***'")
    git("commit", "-a", "-m", "second")
    assert list(changed_repository(paths.folder, description, ())) == [changed]
    assert list(changed_repository(paths.folder, {"git_commit": "1234567"}, ())) == []
    monkeypatch.setattr("sparkdl.runner.pipeline.kept_code.MAX_BYTES", 40)
    file.write_text("rate = 0.4\n")
    keep_code(paths, len, pack(len), True, ())
    assert Path(paths.changes).read_text().endswith("\n(cut after 40 bytes)\n")


def test_package_that_python_imports_is_the_first_on_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "Keras-0.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: Keras\nVersion: 0.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    environment.cache_clear()
    try:
        lines = environment().lower().splitlines()
    finally:
        environment.cache_clear()
    assert [line for line in lines if line.startswith("keras==")] == ["keras==0.1"]


CELLS = """
from IPython.core.interactiveshell import InteractiveShell
from sparkdl.cluster.program.packaging import pack
from sparkdl.runner.pipeline.kept_code import keep_code
from sparkdl.files.layout import RunPaths

shell = InteractiveShell.instance()
shell.run_cell("rate = 0.5", store_history=True)
shell.run_cell("def train():\\n    return rate", store_history=True)
keep_code(RunPaths("run"), len, pack(len), False, ())
"""


def test_the_cells_of_a_notebook_are_kept(tmp_path: Path) -> None:
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", CELLS], cwd=tmp_path, env=environment, check=True)
    assert Path(RunPaths(str(tmp_path / "run")).cells).read_text() == (
        "# %% [1]\nrate = 0.5\n\n# %% [2]\ndef train():\n    return rate\n"
    )


def test_a_search_tries_the_same_configurations_in_their_order(root: str) -> None:
    space = Space.of({"x": Float(0.0, 1.0)})
    search = SearchSettings(space=space, algorithm="tpe", num_trials=15)
    request = request_of(search=search, root=root)
    run = execute(request, InMemoryCluster(same, num_slots=3))
    # The trials end in another order, of which the proposals would depend.
    again = reproduce(run, lambda attempt: returned(-attempt.task.trial.params["x"]))
    assert [t.params for t in again.trials] == [t.params for t in run.trials]
    assert [t.seed for t in again.trials] == [t.seed for t in run.trials]
    assert again.differences == []


def test_resources_travel_and_changed_originals_are_named(root: str, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.yaml").write_text(folder)
    names = [str(tmp_path / "a/config.yaml"), str(tmp_path / "b/config.yaml")]
    run = start(root, versioned_resources=names)
    (tmp_path / "a/config.yaml").write_text("changed")
    (tmp_path / "b/config.yaml").unlink()
    again = reproduce(reproduce(run))
    for name in ("a", "b"):
        assert Path(again.path, "resources", name, "config.yaml").read_text() == name
    (changed,) = again.differences
    assert changed.subject == "resource a/config.yaml (the run uses the kept copy)"
    assert changed.now == f"other content in {tmp_path / 'a/config.yaml'}"
    Path(again.path, "resources/a/config.yaml").write_text("somebody has written into the copy")
    num_runs = len(storage.list_names(root))
    with pytest.raises(ConfigError, match=r"resources/a/config.yaml was changed after the run"):
        reproduce(again)
    assert len(storage.list_names(root)) == num_runs


def test_what_cannot_be_reproduced_is_refused(root: str) -> None:
    run = start(root, env={"MODE": "fast"})
    with pytest.raises(ConfigError, match="MODE}, whose values are never kept"):
        reproduce(run)
    with pytest.raises(ConfigError, match="seed of run run cannot be changed"):
        reproduce(run, env={"MODE": "fast"}, seed=1)
    masked = request_of(1, root=root, run_id="masked")
    masked = replace(masked, params=[{"x": 1.0, "password": WORD}])
    with pytest.raises(ConfigError, match="look like credentials, which were not kept"):
        reproduce(execute(masked, InMemoryCluster(same)))
    space = Space.of({"x": Float(0.0, 1.0), "password": [WORD, WORD * 2]})
    search = SearchSettings(space=space, algorithm="random", num_trials=2)
    searched = request_of(search=search, root=root, run_id="searched")
    with pytest.raises(ConfigError, match="look like credentials, which were not kept"):
        reproduce(execute(searched, InMemoryCluster(same)))
    Path(RunPaths(run.path).program).write_text(json.dumps({"not_kept": "it is too large"}))
    with pytest.raises(ConfigError, match="the function was not kept, because it is too large"):
        reproduce(run, env={"MODE": "fast"})
    again = reproduce(run, env={"MODE": "fast"}, train=lambda x: x)
    assert again.reproduces == run.id
    assert "lambda x: x" in Path(again.path, "source/function.py").read_text()
    assert len(storage.list_names(root)) == 4


def test_many_packages_and_lines_are_shortened_when_printed() -> None:
    from sparkdl.runs.differences import Differences

    many = [
        Difference(subject=f"package p{number}", before="1", now="2", where="driver")
        for number in range(30)
    ]
    lines = tuple(f"+line {number}" for number in range(30))
    code = Difference(subject="code model", before="0 lines", now="30 lines", lines=lines)
    text = str(Differences([*many, code]))
    assert "package p19 (driver): 1 before, 2 now" in text
    assert "p20" not in text
    assert "... and 10 more packages" in text
    assert "      +line 19\n      ... and 10 more lines" in text
