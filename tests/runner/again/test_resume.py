"""Whatever ended a run, `experiment.resume` finishes it and repeats nothing that has finished."""

import hashlib
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import pytest
from pyspark.sql import SparkSession

from sparkdl import context, experiment
from sparkdl import search as spaces
from sparkdl.errors import ConfigError, FunctionError, RunExistsError, RunNotFoundError
from sparkdl.files.layout import RunPaths
from sparkdl.runs import Run
from sparkdl.runs.owner import newest_claim
from tests.helpers.processes import eventually, is_alive, processes_of
from tests.helpers.runs import journal_lines, journal_text, quiet, segments, stopped

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]

PROGRAM = """
import os, time
from pathlib import Path
from pyspark.sql import SparkSession
from sparkdl import context, experiment

def train(x):
    Path({here!r}, f"call-{{x}}-{{time.time_ns()}}").touch()
    if x >= 5:
        Path({here!r}, f"pid-{{os.getpid()}}").touch()
        while not Path({here!r}, "go").exists():
            time.sleep(0.05)
    return x

if __name__ == "__main__":
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    values = {{"x": list(range(12))}}
    options = dict(root={root!r}, run_id="long", metric="score", progress={progress})
    {call}
"""
CALLS = {
    "launch": "experiment.launch(train, values, **options)",
    "search": 'experiment.search(train, values, algorithm="grid", num_trials=12, **options)',
}


def states(run: Run) -> list[str]:
    return [str(trial.state) for trial in run.trials]


def events(path: str) -> list[dict[str, Any]]:
    return journal_lines(path)


def digest(path: str) -> str:
    files = sorted(p for p in Path(path).rglob("*") if p.is_file())
    said = [(str(p), p.read_bytes(), p.stat().st_mtime_ns) for p in files]
    return hashlib.sha256(repr(said).encode()).hexdigest()


def calls(folder: Path) -> list[str]:
    return sorted(p.name.split("-")[1] for p in folder.glob("call-*"))


def ends(path: str) -> dict[int, tuple[float, Any]]:
    """Of each trial that has finished, when and with what, as the journal's first word says."""
    found: dict[int, tuple[float, Any]] = {}
    for event in events(path):
        if event["event"] == "trial" and event["state"] in ("COMPLETE", "PRUNED"):
            assert event["number"] not in found  # Never twice.
            found[event["number"]] = (event["time"], event.get("value"))
    return found


@contextmanager
def driver(tmp_path: Path, root: str, verb: str, progress: bool = False) -> Iterator[Any]:
    """A driver in a process of its own whose trials wait from x=5 on."""
    program = tmp_path / "program.py"
    text = PROGRAM.format(here=str(tmp_path), root=root, call=CALLS[verb], progress=progress)
    program.write_text(text)
    with subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert eventually(lambda: len(calls(tmp_path)) >= 7)
            assert eventually(lambda: len(list(tmp_path.glob("pid-*"))) == 2)
            path = f"{root}/long"
            assert eventually(lambda: journal_text(path).count('"COMPLETE"') >= 5)
            yield process
        finally:
            process.kill()


@pytest.mark.acceptance("A10")
@pytest.mark.parametrize("verb", ["launch", "search"])
def test_a_run_whose_driver_was_killed_is_resumed(tmp_path: Path, root: str, verb: str) -> None:
    with driver(tmp_path, root, verb) as process:
        pids = [int(p.name.split("-")[1]) for p in tmp_path.glob("pid-*")]
        os.kill(process.pid, signal.SIGKILL)
        process.wait(120)
    assert eventually(lambda: not [pid for pid in pids if is_alive(pid)])
    path = f"{root}/long"
    dead = experiment.load(path)
    assert dead.state == "FAILED"
    assert "driver ended" in (dead.reason or "")
    assert dead.counts()["COMPLETE"] == 5
    with segments(path)[-1].open("a") as journal:
        journal.write('{"time": 1, "event": "tri')  # The machine went in the middle of a line.
    before = {trial.number: trial.value for trial in dead.trials if trial.state == "COMPLETE"}
    told = {n: e for n, e in _ends_of_torn(path).items() if n in before}
    in_flight = len(calls(tmp_path)) - 5
    assert in_flight == 2
    Path(tmp_path, "go").touch()
    run = experiment.resume(path, progress=False)
    assert run.state == "COMPLETE"
    assert states(run) == ["COMPLETE"] * 12
    assert len(calls(tmp_path)) == 12 + in_flight
    assert sorted(map(int, set(calls(tmp_path)))) == list(range(12))
    assert sorted(t.value or 0 for t in run.trials) == list(range(12))
    assert {n: e for n, e in _ends_of_torn(path).items() if n in before} == told
    assert {n: run.trials[n].value for n in before} == before
    assert experiment.load(path).counts() == {"COMPLETE": 12}
    assert [t.attempts for t in run.trials if t.number not in before].count(2) == in_flight
    assert eventually(lambda: not processes_of("long"))


def _ends_of_torn(path: str) -> dict[int, float]:
    found: dict[int, float] = {}
    for line in journal_text(path).splitlines():
        if '"event": "trial"' in line and '"COMPLETE"' in line:
            event = json.loads(line)
            assert event["number"] not in found
            found[event["number"]] = event["time"]
    return found


@pytest.mark.acceptance("A12")
def test_ctrl_c_once_stops_the_run_and_prints_how_to_resume(tmp_path: Path, root: str) -> None:
    with driver(tmp_path, root, "search", progress=True) as process:
        pids = [int(p.name.split("-")[1]) for p in tmp_path.glob("pid-*")]
        os.killpg(process.pid, signal.SIGINT)  # As a terminal does: the JVM gets it too.
        out, _ = process.communicate(timeout=240)  # The trials never end by themselves.
        assert process.returncode != 0
    run = experiment.load(f"{root}/long")
    assert (run.state, run.reason) == ("CANCELLED", "interrupted")
    assert set(states(run)) == {"COMPLETE", "CANCELLED"}
    assert eventually(lambda: not [pid for pid in pids if is_alive(pid)])
    assert eventually(lambda: not processes_of("long"))
    found = re.search(r"^To finish it: sparkdl resume (.*)$", out, re.M)
    assert found, out
    Path(tmp_path, "go").touch()
    again = experiment.resume(*shlex.split(found[1]))
    assert states(again) == ["COMPLETE"] * 12
    assert len(calls(tmp_path)) == 12 + 2


# ---- another search


def _made() -> Callable[..., float]:
    # Inside another it travels by itself; at the top, all that this module imports goes with it.
    def linear(x: float, kind: str = "a") -> float:
        for step in range(3):
            context.report(x * step, step)
        return x

    return linear


linear = _made()
SPACE = {"x": spaces.Float(0.0, 1.0), "kind": ["a", "b"]}


@pytest.mark.acceptance("A11")
def test_resume_with_another_space_is_refused(root: str) -> None:
    run = experiment.search(linear, SPACE, num_trials=3, **quiet(root))
    before = digest(run.path)
    for other, said in (
        ({"x": spaces.Float(0.0, 2.0), "kind": ["a", "b"]}, r"'high': 1\.0.*'high': 2\.0"),
        ({"x": spaces.Float(0.0, 1.0)}, "kind"),
        ({**SPACE, "y": [1]}, "'y'"),
        ({"x": spaces.Float(0.0, 1.0), "kind": ["b", "a"]}, "kind"),
    ):
        with pytest.raises(RunExistsError, match=said):
            experiment.resume(run.path, space=other, num_trials=9, progress=False)
        assert digest(run.path) == before
    more = experiment.resume(run.path, space=dict(SPACE), num_trials=4, progress=False)
    assert len(more.trials) == 4


def test_another_grid_of_launch(root: str) -> None:
    run = experiment.launch(linear, {"x": [0.1, 0.2]}, **quiet(root, run_id="grid"))
    before = digest(run.path)
    with pytest.raises(RunExistsError, match="args was"):
        options = quiet(root, run_id="grid", if_exists="resume")
        experiment.launch(linear, {"x": [0.1, 0.3]}, **options)
    with pytest.raises(ConfigError, match="num_trials belongs to a search"):
        experiment.resume(run.path, num_trials=9, progress=False)
    assert digest(run.path) == before


# ---- more, and corrected


def test_more_trials_twice(root: str) -> None:
    run = experiment.search(linear, SPACE, num_trials=3, **quiet(root, seed=1))
    ended = ends(run.path)
    second = experiment.resume(run, num_trials=5, progress=False)
    third = experiment.resume(second.path, num_trials=8, progress=False)
    assert (second.id, third.id) == (run.id, run.id)
    assert (len(second.trials), len(third.trials)) == (5, 8)
    assert {n: e for n, e in ends(run.path).items() if n < 3} == ended
    assert len({t.params["x"] for t in third.trials}) == 8
    changed = [e["changed"]["num_trials"] for e in events(run.path) if "changed" in e]
    assert changed == [[3, 5], [5, 8]]
    # Without a number it is what it was made last.
    said = events(run.path)
    assert len(experiment.resume(run.path, progress=False).trials) == 8
    assert events(run.path) == said


@pytest.mark.parametrize("algorithm", ["qmc", "random", "tpe", "cmaes", "nsga2"])
def test_a_sampler_goes_on_where_it_was(root: str, algorithm: str) -> None:
    """It proposes nothing again that it has proposed."""
    space = {"x": spaces.Float(0, 1), "y": spaces.Float(0, 1)}
    options = quiet(root, seed=1, parallelism=1)
    run = experiment.search(lambda x, y: x - y, space, algorithm=algorithm, num_trials=5, **options)
    run = experiment.resume(run.path, num_trials=10, progress=False)
    assert len({(t.params["x"], t.params["y"]) for t in run.trials}) == 10


def test_a_corrected_function(root: str) -> None:
    def wrong(x: float) -> float:
        if x > 0.5:
            raise ValueError("a mistake")
        return x

    def right(x: float) -> float:
        return x

    first = [{"x": v} for v in (0.1, 0.9, 0.2, 0.8)]
    options = quiet(root, parallelism=1, initial_params=first)
    run = experiment.search(wrong, {"x": spaces.Float(0, 1)}, num_trials=4, **options)
    assert states(run) == ["COMPLETE", "FAILED"] * 2
    kept = ends(run.path)
    run = experiment.resume(run.path, train=right, retry_failed=True, progress=False)
    assert states(run) == ["COMPLETE"] * 4
    assert run.best.value == 0.9
    assert {n: e for n, e in ends(run.path).items() if n in kept} == kept
    diff = [e["changed"]["train"] for e in events(run.path) if "changed" in e]
    assert any("a mistake" in line and line.startswith("-") for line in diff[0])
    assert [t.attempts for t in run.trials] == [1, 2, 1, 2]
    # The corrected one is the one that is kept.
    again = experiment.resume(run.path, num_trials=5, progress=False)
    assert states(again) == ["COMPLETE"] * 5
    assert "a mistake" not in Path(run.path, "source/function.py").read_text()


def test_failed_trials_only_on_request(root: str, tmp_path: Path) -> None:
    def train(x: int) -> float:
        Path(tmp_path, f"call-{x}-{time.time_ns()}").touch()
        if x == 1 and not Path(tmp_path, "mended").exists():
            raise OSError("no disk")
        return x

    run = experiment.launch(train, {"x": [0, 1, 2]}, **quiet(root))
    Path(tmp_path, "mended").touch()
    same = experiment.resume(run.path, progress=False)
    assert states(same) == ["COMPLETE", "FAILED", "COMPLETE"]
    assert calls(tmp_path) == ["0", "1", "2"]
    again = experiment.resume(run.path, retry_failed=True, progress=False)
    assert states(again) == ["COMPLETE"] * 3
    assert calls(tmp_path) == ["0", "1", "1", "2"]
    assert not Path(run.trials[1].path, "error.txt").exists()


def test_old_reports_of_a_failed_attempt_prune_nothing(root: str) -> None:
    """A corrected function reports again, from step 0."""

    def wrong(x: int) -> float:
        context.report(1.0, 0)
        context.report(-9.0, 1)
        raise ValueError("a mistake")

    def right(x: int) -> float:
        for step in range(3):
            context.report(1.0, step)
            time.sleep(0.3)
        return x

    pruner = optuna.pruners.ThresholdPruner(lower=-99)
    run = experiment.search(
        lambda x: wrong(x) if x else 1.0,
        {"x": [0, 1]},
        num_trials=2,
        initial_params=[{"x": 0}, {"x": 1}],
        pruner=pruner,
        **quiet(root),
    )
    assert states(run) == ["COMPLETE", "FAILED"]
    strict = optuna.pruners.ThresholdPruner(lower=0)
    run = experiment.resume(run.path, train=right, retry_failed=True, pruner=strict, progress=False)
    assert states(run) == ["COMPLETE", "COMPLETE"]


def test_what_the_corrected_function_must_take(root: str) -> None:
    run = experiment.search(linear, SPACE, num_trials=1, **quiet(root))
    before = digest(run.path)
    with pytest.raises(FunctionError, match="kind"):
        experiment.resume(run.path, train=lambda x: x, num_trials=2, progress=False)
    assert digest(run.path) == before


# ---- what is not kept


def test_env_must_be_given_again(root: str) -> None:
    def train(x: int) -> float:
        return float(os.environ["BASE"]) + x

    options = quiet(root, env={"BASE": "10000"})
    run = experiment.search(train, {"x": [1, 2]}, num_trials=1, **options)
    before = digest(run.path)
    with pytest.raises(ConfigError, match=r"env=\{BASE\}"):
        experiment.resume(run.path, num_trials=2, progress=False)
    assert digest(run.path) == before
    env = {"BASE": "20000"}
    run = experiment.resume(run.path, num_trials=2, env=env, progress=False)
    assert [t.value - t.params["x"] for t in run.trials] == [10000, 20000]


def test_data_must_be_given_again(root: str, spark: SparkSession) -> None:
    def train(x: int) -> float:
        from sparkdl import data

        rows = data.dataset(batch_size_per_worker=10)
        return float(x * sum(int(n) for batch in rows for n in batch.numpy().ravel()))

    df = spark.range(10)
    run = experiment.search(train, {"x": [1, 2]}, num_trials=1, data=df, **quiet(root))
    with pytest.raises(ConfigError, match="Pass data="):
        experiment.resume(run.path, num_trials=2, progress=False)
    run = experiment.resume(run.path, num_trials=2, data=df, progress=False)
    assert sorted(t.value for t in run.trials) == [45, 90]


def test_objects_of_optunas_and_a_function(root: str) -> None:
    def space(trial: optuna.Trial) -> dict[str, Any]:
        return {"x": trial.suggest_float("x", 0, 1)}

    sampler, pruner = optuna.samplers.TPESampler(seed=1), optuna.pruners.NopPruner()
    run = experiment.search(
        linear, space, algorithm=sampler, pruner=pruner, num_trials=2, **quiet(root)
    )
    more: dict[str, Any] = {"num_trials": 4, "progress": False}
    before = digest(run.path)
    for missing in ("algorithm", "pruner"):
        given: dict[str, Any] = {"pruner": pruner, "algorithm": sampler}
        del given[missing]
        with pytest.raises(ConfigError, match=f"Pass {missing}="):
            experiment.resume(run.path, **more, **given)
        assert digest(run.path) == before
    sampler = optuna.samplers.TPESampler(seed=2)
    # The function is stored.
    again = experiment.resume(run.path, algorithm=sampler, pruner=pruner, **more)
    assert states(again) == ["COMPLETE"] * 4
    assert [t.params for t in again.trials[:2]] == [t.params for t in run.trials]
    more["num_trials"] = 5
    again = experiment.resume(run.path, space=space, algorithm=sampler, pruner=pruner, **more)
    assert states(again) == ["COMPLETE"] * 5


def test_an_objective_that_asks(root: str, tmp_path: Path) -> None:
    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        y = trial.suggest_categorical("y", ["a", None, 3])
        Path(tmp_path, f"call-{trial.number}-{x}-{y}").touch()
        if trial.number == 1 and not Path(tmp_path, "mended").exists():
            raise OSError("no disk")
        return x

    options = quiet(root, seed=1, parallelism=1)
    run = experiment.search(objective, num_trials=3, **options)
    assert states(run) == ["COMPLETE", "FAILED", "COMPLETE"]
    Path(tmp_path, "mended").touch()
    again = experiment.resume(run.path, num_trials=5, retry_failed=True, progress=False)
    assert states(again) == ["COMPLETE"] * 5
    # The one that is run again asks again, and is told the same.
    assert [t.params for t in again.trials[:3]] == [t.params for t in run.trials]
    assert len(list(tmp_path.glob("call-1-*"))) == 1


def test_a_credential_in_the_function(root: str) -> None:
    key = "".join(["sk-", *["a1"] * 15])  # No line of this module may look like one.

    def train(x: int) -> float:
        return x * len(key)

    run = experiment.search(train, {"x": [1, 2]}, num_trials=1, **quiet(root))
    assert not any(key.encode() in p.read_bytes() for p in Path(root).rglob("*") if p.is_file())
    with pytest.raises(ConfigError, match="Pass train="):
        experiment.resume(run.path, num_trials=2, progress=False)
    again = experiment.resume(run.path, num_trials=2, train=train, progress=False)
    assert states(again) == ["COMPLETE"] * 2


def test_a_trials_masked_parameters(root: str) -> None:
    def train(password: str) -> float:
        raise ValueError(f"{len(password)}")

    args = {"password": ["hunter22", "hunter333"]}
    options = quiet(root, max_failed_trials=0, parallelism=1, run_id="masked")
    with pytest.raises(RuntimeError, match="ValueError: 8"):
        experiment.launch(train, args, **options)
    with pytest.raises(ConfigError, match="look like credentials"):
        experiment.resume(f"{root}/masked", progress=False)


# ---- what cannot be


def test_wrong_resumes_change_nothing(root: str) -> None:
    run = experiment.search(linear, SPACE, num_trials=2, **quiet(root, metric="score"))
    before = digest(run.path)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"num_trials": 0}, "num_trials is 0"),
        ({"num_trials": "12"}, "num_trials is '12'"),
        ({"num_trials": 5, "algorithm": "tpee"}, "mean 'tpe'"),
        ({"num_trials": 5, "algorithm": object()}, "sampler"),
        ({"num_trials": 5, "pruner": "mediam"}, "mean 'median'"),
        ({"num_trials": 5, "paralelism": 2}, "mean 'parallelism'"),
        ({"n_trials": 5}, "mean 'num_trials'"),
        ({"num_trials": 5, "metric": "other"}, "metric"),
        ({"num_trials": 5, "direction": "min"}, "direction"),
        ({"num_trials": 5, "seed": 9}, "seed"),
        ({"num_trials": 5, "run_id": "other"}, "run_id"),
        ({"num_trials": 5, "root": "elsewhere"}, "root"),
    ]
    for given, said in wrong:
        with pytest.raises(ConfigError, match=said):
            experiment.resume(run.path, **{"progress": False, **given})
        assert digest(run.path) == before, given
    with pytest.raises(RunNotFoundError, match="no run at"):
        experiment.resume(f"{root}/nowhere", progress=False)


def test_a_complete_run_returns_at_once(root: str, spark: SparkSession) -> None:
    run = experiment.search(linear, SPACE, num_trials=2, **quiet(root))
    said = events(run.path)
    jobs = len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))
    same = experiment.resume(run, progress=False)
    assert (same.state, states(same)) == ("COMPLETE", ["COMPLETE"] * 2)
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup(None)) == jobs
    assert events(run.path) == said
    assert newest_claim(RunPaths(run.path)).process is None


def test_a_living_driver(root: str, tmp_path: Path) -> None:
    def train(x: int) -> float:
        while not Path(tmp_path, "go").exists():
            time.sleep(0.05)
        return x

    run = experiment.search(train, {"x": [1, 2]}, num_trials=2, **quiet(root, wait=False))
    with pytest.raises(RunExistsError, match=f"being run by process {os.getpid()}"):
        experiment.resume(run.path, progress=False)
    Path(tmp_path, "go").touch()
    run.wait()
    assert states(run) == ["COMPLETE"] * 2
    assert states(experiment.resume(run.path, progress=False)) == ["COMPLETE"] * 2


# ---- what was stopped, and what the sampler hears of it


def test_a_timeout_is_gone_on_with(root: str, tmp_path: Path) -> None:
    def train(x: int) -> float:
        if context.trial > 1 and not Path(tmp_path, "go").exists():
            time.sleep(60)
        return x

    options = quiet(root, timeout_s=3)
    space = {"x": [1, 2, 3, 4, 5]}
    run = stopped(
        lambda: experiment.search(train, space, algorithm="grid", num_trials=5, **options)
    )
    assert run.state == "CANCELLED"
    Path(tmp_path, "go").touch()
    again = experiment.resume(run.path, timeout_s=600, progress=False)
    assert again.state == "COMPLETE"
    assert sorted(t.params["x"] for t in again.trials) == [1, 2, 3, 4, 5]
    assert states(again) == ["COMPLETE"] * 5
    known = len(run.trials)
    assert [t.params for t in again.trials[:known]] == [t.params for t in run.trials]


def test_pruned_trials_stay_pruned(root: str, tmp_path: Path) -> None:
    def train(x: int) -> float:
        Path(tmp_path, f"call-{x}-{time.time_ns()}").touch()
        for step in range(200):
            context.report(float(x), step)
            if x > 0:
                return x
            time.sleep(0.05)
        return x

    values: dict[str, Any] = {"initial_params": [{"x": 0}, {"x": 1}, {"x": -1}], "num_trials": 3}
    pruner = optuna.pruners.ThresholdPruner(lower=0.5)
    run = experiment.search(train, {"x": [-1, 0, 1, 2]}, pruner=pruner, **values, **quiet(root))
    assert states(run) == ["PRUNED", "COMPLETE", "PRUNED"]
    again = experiment.resume(
        run.path, num_trials=4, pruner=pruner, retry_failed=True, progress=False
    )
    assert states(again)[:3] == ["PRUNED", "COMPLETE", "PRUNED"]
    assert len(calls(tmp_path)) == 4


class Listening(optuna.samplers.RandomSampler):
    """A sampler that keeps all that it could know when it is asked."""

    def __init__(self) -> None:
        super().__init__(seed=3)
        self.knew: list[list[tuple[Any, ...]]] = []

    def before_trial(self, study: Any, trial: Any) -> None:
        known = study.get_trials(deepcopy=False)[: trial.number]
        self.knew.append(
            [(t.state.name, dict(t.params), t.values, dict(t.intermediate_values)) for t in known]
        )


def test_the_study_after_resume_is_the_one_that_never_stopped(root: str) -> None:
    def train(x: int) -> float:
        for step in range(3 if x else 1):  # A stop in order may come before the next report.
            context.report(float(x) / 10 + step, step)
        if x == 3:
            raise ValueError("three")
        return x if x != 4 else float("nan")

    first = [{"x": x} for x in (1, 3, 0, 4, 2)]
    pruner = optuna.pruners.ThresholdPruner(lower=0.05)
    space = {"x": [0, 1, 2, 3, 4]}
    shared: dict[str, Any] = {"initial_params": first, "pruner": pruner}
    options = quiet(root, parallelism=1)
    whole, parts = Listening(), Listening()
    experiment.search(train, space, algorithm=whole, num_trials=7, **shared, **options)
    run = experiment.search(train, space, algorithm=Listening(), num_trials=5, **shared, **options)
    run = experiment.resume(run.path, algorithm=parts, pruner=pruner, num_trials=7, progress=False)
    assert whole.knew[5] == parts.knew[-2][:5]
    assert len(run.trials) == 7


def test_what_was_learnt_is_learnt_again(root: str) -> None:
    options = quiet(root, seed=1, parallelism=1)
    old = experiment.launch(linear, {"x": [0.1, 0.5, 0.9], "kind": ["a"]}, **options)
    sampler = Listening()
    run = experiment.search(linear, SPACE, num_trials=1, learn_from=[old], **options)
    run = experiment.resume(run.path, algorithm=sampler, num_trials=2, progress=False)
    assert [t.params for t in run.trials]
    assert [params["x"] for _, params, *_ in sampler.knew[-1]][:3] == [0.1, 0.5, 0.9]


def test_constraints_are_known_again(root: str) -> None:
    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_int("x", 0, 3)
        trial.set_constraint("too large", x - 1.0)
        return x

    class Seeing(optuna.samplers.RandomSampler):
        def before_trial(self, study: Any, trial: Any) -> None:
            seen.append([t.constraints for t in study.get_trials(deepcopy=False)][: trial.number])

    seen: list[Any] = []
    first: dict[str, Any] = {"initial_params": [{"x": 3}, {"x": 0}], "num_trials": 2}
    run = experiment.search(objective, **first, **quiet(root, parallelism=1))
    experiment.resume(run.path, algorithm=Seeing(seed=1), num_trials=3, progress=False)
    assert seen[-1] == [{"too large": 2.0}, {"too large": -1.0}]


def test_repeats_that_were_not_made(root: str, tmp_path: Path) -> None:
    def train(x: int) -> int:
        number: int = context.trial
        if number == 4 and not Path(tmp_path, "go").exists():
            time.sleep(300)
        return x + number % 3

    options = quiet(root, parallelism=1, wait=False)
    more: dict[str, Any] = {"algorithm": "grid", "num_trials": 3, "repeats": 3, **options}
    run = experiment.search(train, {"x": [1, 2, 3]}, **more)
    assert eventually(lambda: states(run)[4:5] == ["RUNNING"])
    run.cancel()
    stopped(run.wait)
    assert states(run)[:5] == ["COMPLETE"] * 4 + ["CANCELLED"]
    Path(tmp_path, "go").touch()
    again = experiment.resume(run.path, progress=False)
    assert states(again) == ["COMPLETE"] * 9
    assert [t.configuration for t in again.trials] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert again.means()[2][0] == 1 + again.trials[6].params["x"]


def test_a_grid_of_a_thousand_resumes_in_seconds(root: str) -> None:
    """A run directory with 1 000 trials of which 998 have finished."""

    def train(x: int, y: int) -> float:
        return x + y

    space = {"x": list(range(100)), "y": list(range(10))}
    run = experiment.search(train, space, algorithm="grid", num_trials=1, **quiet(root))
    lines = journal_lines(run.path)
    trials = [event for event in lines if event.get("trials")]
    trials += [event for event in lines if event["event"] == "trial"]
    seq = itertools.count(lines[-1]["seq"] + 1)
    with segments(run.path)[-1].open("a") as file:
        for number in range(1, 998):
            for event in trials:
                new = {**event, **_as(event, number, (number // 10, number % 10))}
                file.write(json.dumps({**new, "seq": next(seq)}) + "\n")
    begun = time.process_time()  # Other processes may use the machine.
    again = experiment.resume(run.path, num_trials=1000, progress=False)
    assert time.process_time() - begun < 20
    assert again.counts() == {"COMPLETE": 1000}
    assert len({str(t.params) for t in again.trials}) == 1000


def _as(event: dict[str, Any], number: int, point: tuple[int, int]) -> dict[str, Any]:
    """Return the fields by which an event of another trial differs from the event of trial 0."""
    if event["event"] == "trial":
        return {"number": number}
    new = {**event["trials"][0], "number": number, "configuration": number}
    return {"trials": [{**new, "params": {"x": point[0], "y": point[1]}}]}
