"""`experiment.launch` on embedded Spark, as users call it."""

import functools
import itertools
import json
import os
import random
import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sparkdl import context, devices, experiment, tensorboard
from sparkdl.cluster.program import local_modules
from sparkdl.errors import (
    AllTrialsFailedError,
    ConfigError,
    FunctionError,
    InvalidTrial,
    NoCompleteTrialError,
    PreflightError,
    RunExistsError,
    SlotsError,
    TrialFailedError,
)
from sparkdl.runs import Run
from tests.helpers.processes import eventually, processes_of
from tests.helpers.runs import end_soon, quiet, stopped

pytestmark = pytest.mark.usefixtures("spark")


def jobs_so_far(spark: SparkSession) -> int:
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


def test_launch_runs_every_combination_and_prints_a_table(root: str) -> None:
    def train(a: Any, b: Any) -> dict[str, float]:
        assert isinstance(b, str)
        return {"score": a * len(b), "other": 1.0}

    run = experiment.launch(train, {"a": [1, 2], "b": ["x/y", "é"]}, **quiet(root, metric="score"))
    assert run.state == "COMPLETE"
    assert [t.params for t in run.trials] == [
        {"a": 1, "b": "x/y"},
        {"a": 1, "b": "é"},
        {"a": 2, "b": "x/y"},
        {"a": 2, "b": "é"},
    ]
    assert (run.best.number, run.best.value) == (2, 6.0)
    assert [t.number for t in run.top(2)] == [2, 0]
    frame = run.to_pandas()
    assert frame["output.score"].tolist() == [3, 1, 6, 2]
    assert (frame["running_s"] > 0).all()
    assert (frame["peak_memory_mb"] > 1).all()
    assert re.search(r"2 \*\s+COMPLETE\s+2\s+x/y\s+6.00000", str(run))
    assert "Best: trial 2, score 6, a=2, b=x/y" in str(run)
    assert run.path in str(run)
    assert "<table" in run._repr_html_()


def test_launch_accepts_zip_and_a_session_first(root: str, spark: SparkSession) -> None:
    def train(a: int, b: int) -> int:
        return a * b

    args = {"a": [1, 2], "b": [3, 4]}
    run = experiment.launch(spark, train, args, combine="zip", **quiet(root, direction="minimize"))
    assert [t.value for t in run.trials] == [3, 8]
    assert run.best.number == 0


def test_launch_accepts_any_callable(root: str) -> None:
    class Trainer:
        def __call__(self, x: int) -> int:
            return x + 100

    def with_default(x: int, *, y: int = 5) -> int:
        return x + y

    add = 10
    callables = [lambda x: x + add, functools.partial(with_default, y=7), with_default, Trainer()]
    values = [
        experiment.launch(c, {"x": [1]}, **quiet(root)).best.value  # type: ignore[arg-type]
        for c in callables
    ]
    assert values == [11, 8, 6, 101]


def test_params_keep_their_types(root: str) -> None:
    values = [1, 2.5, "s", True, None, [1, "a"], {"k": [1.5]}, np.float32(0.5), np.int64(3), 1]

    def train(v: Any) -> dict[str, Any]:
        return {"text": repr(v), "kind": type(v).__name__}

    run = experiment.launch(train, {"v": values}, **quiet(root))
    expected = [*values[:7], 0.5, 3, 1]
    assert [t.outputs["text"] for t in run.trials] == [repr(v) for v in expected]
    assert experiment.load(run.path).to_pandas()["v"].tolist() == expected


@pytest.mark.parametrize("returned", [3, {"value": 1}, None, {"a": [1, 2.0], "b": True}])
def test_the_result_is_what_the_function_returned(returned: Any, root: str) -> None:
    run = experiment.launch(lambda: returned, **quiet(root))
    assert repr(run.result) == repr(returned)
    assert repr(experiment.load(run.path).result) == repr(returned)


def test_outputs_keep_files_and_unusual_values(root: str, tmp_path: Path) -> None:
    def train() -> dict[str, Any]:
        Path(folder, "model.txt").write_text("weights")
        array = np.array([1.0, 2.0])
        words = {"empty": "", "word": "made", "parent": str(Path(folder).parent)}
        kept = {
            "model": f"{folder}/model.txt",
            "all": Path(folder),
            "text": folder,
            "curve": array,
            "odd": object(),
        }
        os.chdir(Path(folder).parent)
        return {**words, **kept}

    folder = str(tmp_path / "made")
    os.mkdir(folder)
    run = experiment.launch(train, **quiet(root))
    outputs = run.trials[0].outputs
    assert Path(run.trials[0].path, outputs["model"]).read_text() == "weights"
    assert Path(run.trials[0].path, outputs["all"], "model.txt").read_text() == "weights"
    assert outputs["curve"] == [1.0, 2.0]
    assert (outputs["empty"], outputs["word"]) == ("", "made")
    assert (outputs["parent"], outputs["text"]) == (str(tmp_path), folder)
    assert "odd" not in outputs
    assert "'odd', of type object, is not kept" in Path(run.trials[0].path, "log.txt").read_text()
    assert "the returned 'odd', of type object" in (experiment.load(run.path).trials[0].note or "")
    assert "the returned 'parent' is the path of a folder" in str(run)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: experiment.launch(lambda a: 0, {"b": [1]}), FunctionError, "args contains 'b'"),
        (lambda: experiment.launch(lambda a: 0, {"a": 1}), ConfigError, r"Write \[1\]"),
        (lambda: experiment.launch(lambda: 0, mode="max"), ConfigError, "mean 'direction'"),
        (lambda: experiment.launch(lambda: 0, nmae="x"), ConfigError, "mean 'name'"),
        (lambda: experiment.launch(lambda: 0, metric="val_loss"), ConfigError, "direction='min'"),
        (lambda: experiment.launch(lambda: 0, parallelism=0), ConfigError, "parallelism is 0"),
        (lambda: experiment.launch(lambda: 0, direction="up"), ConfigError, "direction is 'up'"),
        (lambda: experiment.launch(lambda: 0, num_gpus=1), SlotsError, "Spark has 0 GPUs"),
        (lambda: experiment.launch(lambda: 0, num_gpus=0.5), SlotsError, "Spark schedules no GPUs"),
        (lambda: experiment.launch(lambda: 0, num_gpus=1.5), ConfigError, "whole number"),
        (lambda: experiment.launch(lambda: 0, env={"A": 1}), ConfigError, r"env\['A'\]"),
    ],
)
def test_invalid_arguments_are_refused_before_any_job(
    call: Any,
    error: type[Exception],
    message: str,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = jobs_so_far(spark)
    with pytest.raises(error, match=message):
        call()
    assert jobs_so_far(spark) == before
    assert list(tmp_path.iterdir()) == []


def test_relative_files_of_trials_are_kept_apart(root: str, tmp_path: Path) -> None:
    def train(i: int) -> dict[str, Any]:
        Path("out.txt").write_text(str(i))
        (tmp_path / f"{i}").touch()
        while i < 2 and len(list(tmp_path.glob("[0-9]"))) < 2:
            time.sleep(0.01)
        return {"out": "out.txt", "i": i}

    here = sorted(os.listdir())
    run = experiment.launch(train, {"i": [0, 1, 2, 3]}, **quiet(root, metric="i"))
    kept = [Path(trial.path, trial.outputs["out"]).read_text() for trial in run.trials]
    assert kept == ["0", "1", "2", "3"]
    assert sorted(os.listdir()) == here


def test_object_that_cannot_be_pickled_is_named(root: str, spark: SparkSession) -> None:
    def train() -> int:
        return spark.range(1).count()

    with pytest.raises(FunctionError, match="it uses 'spark', a SparkSession"):
        experiment.launch(train, **quiet(root))


def test_exception_of_a_trial_is_raised_with_its_own_type(root: str) -> None:
    class Mine(Exception):
        pass

    def train(x: int) -> int:
        if x:
            raise Mine(f"x={x}")
        return x

    run = experiment.launch(train, {"x": [0, 1]}, **quiet(root))
    assert [str(t.state) for t in run.trials] == ["COMPLETE", "FAILED"]
    error = run.failed[0].error or ""
    assert f'{__file__}", line' in error
    assert Path(run.failed[0].path, "error.txt").read_text() == error
    with pytest.raises(TrialFailedError, match="1 of 2 trials") as caught:
        run.raise_for_failures()
    assert isinstance(caught.value.__cause__, Mine)
    with pytest.raises(AllTrialsFailedError) as all_failed:
        experiment.launch(train, {"x": [1, 2]}, **quiet(root))
    assert isinstance(all_failed.value.__cause__, Mine)
    assert str(all_failed.value.__cause__) == "x=1"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("import sys; sys.exit(3)", r"sys\.exit\(3\)"),
        ("import os; print('last words', flush=True); os._exit(5)", r"exit code 5 \(os\._exit\)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
    ],
)
def test_end_of_a_training_process_is_reported(how: str, message: str, root: str) -> None:
    def train(x: int) -> int:
        if x:
            exec(how)  # noqa: S102
        return x

    run = experiment.launch(train, {"x": [0, 1]}, **quiet(root))
    assert run.trials[0].state == "COMPLETE"
    assert run.trials[1].state == "FAILED"

    error = run.trials[1].error or ""
    assert re.search(message, error.splitlines()[0]), error
    if "last words" in how:
        assert "last words" in error


def test_invalid_trials_have_a_reason_and_are_never_best(root: str) -> None:
    def train(x: int) -> float:
        if x == 1:
            raise InvalidTrial("too large")
        return float("nan") if x == 2 else x

    run = experiment.launch(train, {"x": [0, 1, 2]}, **quiet(root, metric="score"))
    assert [str(t.state) for t in run.trials] == ["COMPLETE", "INVALID", "INVALID"]
    assert run.trials[1].error == "InvalidTrial: too large"
    assert run.trials[2].error == "metric 'score' is nan; expected a finite number"
    assert run.best.number == 0
    run = experiment.launch(lambda: None, **quiet(root))
    assert run.state == "COMPLETE"
    with pytest.raises(NoCompleteTrialError, match="metric="):
        run.best  # noqa: B018


def test_context_has_reports_and_seeds(root: str) -> None:
    def train(x: int) -> dict[str, Any]:
        import random

        for step in range(3):
            context.report({"loss": 1.0 / (step + 1), "x": x}, step=step)
        context.report(0.25)
        Path(tensorboard.logdir(), "events").write_text("e")
        return {
            "draws": [random.random(), float(np.random.rand())],
            "who": [context.rank, context.world_size, context.trial, context.is_chief],
            "params": context.params,
            "seed": context.seed,
            "gpus": devices.get_num_gpus(),
            "cwd": context.original_cwd,
        }

    runs = [experiment.launch(train, {"x": [5, 6]}, **quiet(root, seed=3)) for _ in range(2)]
    first, second = (run.trials[1] for run in runs)
    assert first.outputs == second.outputs
    assert first.outputs["who"] == [0, 1, 1, True]
    assert first.outputs["params"] == {"x": 6}
    assert first.outputs["seed"] == first.seed
    assert first.outputs["gpus"] == 0
    assert first.outputs["cwd"] == os.getcwd()
    assert runs[0].trials[0].outputs["draws"] != first.outputs["draws"]
    assert first.metrics["loss"] == pytest.approx(1 / 3)
    assert first.history["loss"].tolist()[:3] == pytest.approx([1, 1 / 2, 1 / 3])
    assert Path(first.path, "tensorboard", "events").read_text() == "e"
    other = experiment.launch(train, {"x": [5, 6]}, **quiet(root, seed=4))
    assert other.trials[1].outputs["draws"] != first.outputs["draws"]


def test_reported_metric_is_the_value_without_a_return_value(root: str) -> None:
    def train(x: int) -> None:
        context.report(x / 10)

    run = experiment.launch(train, {"x": [1, 2]}, **quiet(root, metric="accuracy"))
    assert run.best.value == 0.2
    assert run.best.metrics == {"accuracy": 0.2}


def test_each_trial_runs_in_a_new_process(root: str) -> None:
    def train(x: int) -> dict[str, Any]:
        import subprocess
        import sys

        seen = getattr(sys, "left_by_a_trial", None)
        sys.left_by_a_trial = x  # type: ignore[attr-defined]
        subprocess.Popen(["sleep", "300"])
        subprocess.Popen(["sleep", "300"], start_new_session=True)
        return {"pid": os.getpid(), "seen": seen}

    run = experiment.launch(train, {"x": [1, 2, 3]}, **quiet(root))
    assert len({t.outputs["pid"] for t in run.trials}) == 3
    assert {t.outputs["seen"] for t in run.trials} == {None}
    assert eventually(lambda: not processes_of(run.id))


def test_a_process_that_the_function_forks_has_no_say(root: str) -> None:
    def train(raises: bool) -> float:
        pid = os.fork()
        if pid == 0:
            assert not raises
            return 2.0
        os.waitpid(pid, 0)
        return 1.0

    run = experiment.launch(train, {"raises": [False, True]}, root=root, progress=False)
    assert [trial.value for trial in run.trials] == [1.0, 1.0]
    assert run.state == "COMPLETE"


def test_secrets_are_not_stored_in_the_run_directory(root: str, capsys: Any) -> None:
    def train(password: str) -> float:
        print("connecting with", os.environ["SERVICE_KEY"], password)
        raise ValueError(f"refused {os.environ['SERVICE_KEY']}")

    word, horse = "".join(("hun", "ter22")), "".join(("correct", "-horse"))
    with pytest.raises(AllTrialsFailedError):
        env = {"SERVICE_KEY": "correct-horse"}
        experiment.launch(train, {"password": ["hunter22"]}, root=root, env=env)
    texts = [p.read_bytes() for p in Path(root).rglob("*") if p.is_file()]
    captured = capsys.readouterr()
    for text in [*texts, captured.out.encode(), captured.err.encode()]:
        assert horse.encode() not in text
        assert word.encode() not in text
    assert "connecting with *** ***" in captured.out


def test_output_of_trials_is_printed_without_a_terminal(root: str, capsys: Any) -> None:
    import ipykernel  # noqa: F401 Some libraries do: that makes no notebook of a program.

    def train(x: int) -> float:
        print("hello", x)
        os.system("echo from a subprocess")
        return x

    experiment.launch(train, {"x": [4, 5]}, root=root, metric="score")
    out = capsys.readouterr().out
    assert "[trial 0] hello 4" in out
    assert "[trial 1] from a subprocess" in out
    assert "2 trials, all at once (2 slots of local[2])" in out
    assert "[2/2] trial" in out
    assert "trial 1 x=5 COMPLETE: score 5" in out


def test_run_directory_has_versioned_resources_and_records(root: str, tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat dog")

    def train() -> float:
        return 1.0

    resources = [str(tmp_path / "labels.txt")]
    run = experiment.launch(
        train, **quiet(root, versioned_resources=resources, description="why not", seed=1)
    )
    described = json.loads(Path(run.path, "run.json").read_text())
    assert described["description"] == "why not"
    assert described["seed"] == 1
    assert described["spark"]["master"] == "local[2]"
    assert described["versions"]["pyarrow"]
    assert "pyspark==" in Path(run.path, "environment.txt").read_text()
    assert "return 1.0" in Path(run.path, "source/function.py").read_text()
    assert Path(run.path, "resources/labels.txt").read_text() == "cat dog"
    with pytest.raises(ConfigError, match="does not exist"):
        experiment.launch(train, **quiet(root, versioned_resources=["nowhere.txt"]))


def test_trial_timeout_and_max_restarts(root: str, tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def train(x: int) -> int:
        with calls.open("a") as file:
            file.write(f"{x}\n")
        if x == 0:
            time.sleep(60)
        if x == 1 and calls.read_text().count("1") < 2:
            raise OSError("flaky")
        return x

    options = quiet(root, trial_timeout_s=1.5, max_restarts=1)
    run = experiment.launch(train, {"x": [0, 1, 2]}, **options)
    assert [str(t.state) for t in run.trials] == ["FAILED", "COMPLETE", "COMPLETE"]
    assert "trial_timeout_s=1.5" in (run.trials[0].error or "")
    assert [t.attempts for t in run.trials] == [2, 2, 1]
    assert Path(run.trials[1].path, "attempts/0/log.txt").read_text().count("flaky") == 2


def test_timeout_cancels_unfinished_trials(root: str) -> None:
    def train(x: int) -> int:
        time.sleep(0.1 if x == 0 else 300)
        return x

    options = quiet(root, timeout_s=600, parallelism=1, wait=False)
    run = experiment.launch(train, {"x": [0, 1, 2]}, **options)
    assert eventually(lambda: run.counts().get("COMPLETE") == 1)
    limit_s = end_soon(run)
    stopped(run.wait)
    assert (run.state, run.reason) == ("CANCELLED", f"timeout_s={limit_s:g} is over")
    assert [str(t.state) for t in run.trials] == ["COMPLETE", "CANCELLED", "CANCELLED"]
    assert eventually(lambda: not processes_of(run.id))


def test_live_run_cancels_one_trial_and_waits(root: str, tmp_path: Path) -> None:
    def train(x: int) -> int:
        (tmp_path / f"started{x}").touch()
        while x == 1 or not (tmp_path / "go").exists():
            time.sleep(0.05)
        return x

    run = experiment.launch(train, {"x": [0, 1, 2]}, **quiet(root, wait=False))
    assert run.state == "RUNNING"
    assert eventually((tmp_path / "started1").exists)
    assert experiment.load(run.path).state == "RUNNING"
    run.cancel(run.trials[1])
    assert eventually(lambda: run.trials[1].state == "CANCELLED")
    (tmp_path / "go").touch()
    assert run.wait() is run
    assert [str(t.state) for t in run.trials] == ["COMPLETE", "CANCELLED", "COMPLETE"]
    assert run.state == "COMPLETE"
    assert eventually(lambda: not processes_of(run.id))


def test_live_run_can_be_cancelled(root: str, tmp_path: Path) -> None:
    def train(x: int) -> int:
        (tmp_path / f"started{x}").touch()
        time.sleep(60)
        return x

    run = experiment.launch(train, {"x": [0, 1, 2, 3]}, **quiet(root, wait=False))
    assert eventually((tmp_path / "started0").exists)
    run.cancel()
    assert stopped(run.wait) is run
    assert run.state == "CANCELLED"
    assert {str(t.state) for t in run.trials} == {"CANCELLED"}
    assert eventually(lambda: not processes_of(run.id))


def test_repeated_job_with_a_run_id_resumes_or_is_refused(root: str, tmp_path: Path) -> None:
    def train(x: int) -> int:
        with (tmp_path / "calls").open("a") as file:
            file.write(f"{x}\n")
        if x == 2 and not (tmp_path / "mended").exists():
            os._exit(1)
        return x

    options = quiet(root, run_id="nightly", if_exists="resume", parallelism=1)
    first = stopped(
        lambda: experiment.launch(train, {"x": [1, 2, 3]}, **options, max_failed_trials=0)
    )
    (tmp_path / "mended").touch()
    assert first.state == "FAILED"
    assert [str(t.state) for t in first.trials] == ["COMPLETE", "FAILED", "CANCELLED"]
    again = experiment.launch(train, {"x": [1, 2, 3]}, **options)
    calls = (tmp_path / "calls").read_text().split()
    assert (again.id, again.state) == ("nightly", "COMPLETE")
    assert [str(t.state) for t in again.trials] == ["COMPLETE", "FAILED", "COMPLETE"]
    assert calls == ["1", "2", "3"]
    done = experiment.launch(train, {"x": [1, 2, 3]}, **options)
    assert (tmp_path / "calls").read_text().split() == calls
    assert done.counts() == again.counts()
    with pytest.raises(RunExistsError, match="exists already"):
        experiment.launch(train, {"x": [1]}, **quiet(root, run_id="nightly"))


def test_two_runs_share_one_session(root: str) -> None:
    def train(x: int) -> dict[str, Any]:
        time.sleep(0.3)
        return {"x": x, "run": context.run}

    runs: list[Run] = [
        experiment.launch(train, {"x": [base, base + 1]}, **quiet(root, wait=False))
        for base in (0, 10)
    ]
    for run, base in zip(runs, (0, 10), strict=True):
        run.wait()
        assert [t.outputs["x"] for t in run.trials] == [base, base + 1]
        assert {t.outputs["run"] for t in run.trials} == {run.id}


def test_num_cpus_reduces_the_number_of_trials_at_once(root: str, tmp_path: Path) -> None:
    def train(x: int) -> float:
        mine = tmp_path / f"{x}"
        mine.touch()
        time.sleep(0.5)
        together = len([p for p in tmp_path.iterdir() if p.name.isdigit()])
        mine.unlink()
        return together

    run = experiment.launch(train, {"x": [1, 2, 3]}, **quiet(root, num_cpus=2))
    assert [t.value for t in run.trials] == [1, 1, 1]
    with pytest.raises(SlotsError, match=r"num_cpus=3.*2 cores"):
        experiment.launch(train, {"x": [1]}, **quiet(root, num_cpus=3))


def test_missing_module_is_named_before_any_trial(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "only_on_driver"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setattr("sys.path", [str(package.parent), *__import__("sys").path])
    installed = (*local_modules._installed_folders(), f"{package.parent}/")
    monkeypatch.setattr(local_modules, "_installed_folders", lambda: installed)

    def train() -> int:
        import only_on_driver  # type: ignore[import-not-found]

        return len(only_on_driver.__name__)

    with pytest.raises(PreflightError, match=r"lacks the module\(s\) only_on_driver"):
        experiment.launch(train, **quiet(root))
    assert experiment.history(root)["state"].tolist() == ["FAILED"]


def test_local_modules_are_sent_to_executors(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "my models"
    (package / "nets").mkdir(parents=True)
    (package / "nets" / "__init__.py").write_text("from . import sizes\n")
    (package / "nets" / "sizes.py").write_text("SIZE = 4\n")
    (package / "training.py").write_text(
        "def train(x):\n    from nets.sizes import SIZE\n    return SIZE * x\n"
    )
    monkeypatch.syspath_prepend(str(package))
    import training  # type: ignore[import-not-found]

    monkeypatch.setattr("sys.path", [p for p in __import__("sys").path if p != str(package)])
    monkeypatch.setattr(
        "sparkdl.cluster.program.local_modules.sys.path", [str(package), *__import__("sys").path]
    )
    run = experiment.launch(training.train, {"x": [2]}, **quiet(root))
    assert run.best.value == 8
    assert "SIZE = 4" in Path(run.path, "source/modules/nets/sizes.py").read_text()
    script = {"__name__": "__main__"}
    exec(  # noqa: S102
        "import numpy as np, training\ndef train(x):\n    return np.float64(training.train(x))",
        script,
    )
    assert experiment.launch(script["train"], {"x": [3]}, **quiet(root)).best.value == 12


def test_a_training_killed_at_random_steps_uses_every_row_of_every_epoch_once(
    root: str, tmp_path: Path
) -> None:
    """It continues from the state of its rows that a checkpoint holds."""
    pq.write_table(pa.table({"id": range(500)}), tmp_path / "rows.parquet", row_group_size=60)

    def train(a: int) -> int:
        from sparkdl import data

        batches = data.parquet(
            tmp_path / "rows.parquet", batch_size_per_worker=8, shuffle=100
        ).as_numpy()
        done: list[tuple[int, list[int]]] = []
        if folder := context.get_checkpoint():
            state, done = json.loads(Path(folder, "state.json").read_text())
            batches.load_state_dict(state)
        chance = random.Random(context.attempt)
        left = chance.randint(10, 60) if context.attempt < 3 else -1
        Path("kept").mkdir(exist_ok=True)
        while (epoch := batches.state_dict()["epoch"]) < 3:
            for ids in batches:
                done.append((epoch, ids.tolist()))
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                if chance.random() < 0.3:
                    Path("kept/state.json").write_text(json.dumps([batches.state_dict(), done]))
                    context.report(0.0, step=len(done), checkpoint="kept")
        used = Counter((epoch, i) for epoch, ids in done for i in ids)
        assert used == Counter(itertools.product(range(3), range(500)))
        return context.attempt

    run = experiment.launch(train, {"a": [1]}, max_restarts=3, **quiet(root))
    assert run.trials[0].result == 3
