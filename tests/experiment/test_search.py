"""`experiment.search` on embedded Spark, as users call it."""

import itertools
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import optuna
import pytest
from pyspark.sql import SparkSession

from sparkdl import context, experiment
from sparkdl import search as spaces
from sparkdl.errors import (
    AllTrialsFailedError,
    ConfigError,
    FunctionError,
    InvalidTrial,
    NoCompleteTrialError,
    RunExistsError,
    SlotsError,
    TrialPruned,
)
from sparkdl.runs import Run
from sparkdl.search.settings import ALGORITHMS, PRUNERS
from tests.helpers.processes import eventually, processes_of
from tests.helpers.runs import end_soon, journal_lines, quiet, stopped

# The S3 fixture comes first, because Spark's workers inherit its environment variables.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("s3", "spark")]

SPACE = {"x": spaces.Float(-4.0, 4.0), "n": spaces.Int(1, 8), "kind": ["a", "b"]}


def bowl(x: float, n: int = 2, kind: str = "b") -> dict[str, float]:
    """Return a score whose maximum, 0, is at x=1, n=2, kind=b."""
    return {"score": -((x - 1) ** 2) - abs(n - 2) - (kind == "a")}


def states(run: Run) -> list[str]:
    return [str(trial.state) for trial in run.trials]


def journal(run: Run) -> list[dict[str, Any]]:
    return journal_lines(run.path)


def jobs_so_far(spark: SparkSession) -> int:
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


# ---- algorithms and pruners


@pytest.mark.parametrize("algorithm", [n for n in ALGORITHMS if n != "gp" or find_spec("torch")])
def test_search_runs_with_every_algorithm(root: str, algorithm: str) -> None:
    space: dict[str, Any] = {**SPACE, "x": spaces.Float(-1, 1, step=1.0), "n": [2, 3]}
    options = quiet(root, metric="score", seed=4)
    run = experiment.search(bowl, space, algorithm=algorithm, num_trials=8, **options)
    assert (run.kind, run.state, run.reason) == ("search", "COMPLETE", None)
    assert states(run) == ["COMPLETE"] * 8
    assert run.best.value == max(bowl(**trial.params)["score"] for trial in run.trials)
    for trial in run.trials:
        assert trial.params["x"] in (-1, 0, 1)
        assert trial.outputs == bowl(**trial.params)
    if algorithm == "grid":
        assert len({str(trial.params) for trial in run.trials}) == 8
    kept = experiment.load(run.path)
    assert [t.params for t in kept.trials] == [t.params for t in run.trials]
    assert kept.best.number == run.best.number


def test_grid_needs_no_num_trials(root: str) -> None:
    run = experiment.search(bowl, {"x": [0, 1], "n": [1, 2, 3]}, algorithm="grid", **quiet(root))
    assert sorted((t.params["x"], t.params["n"]) for t in run.trials) == [
        (x, n) for x in (0, 1) for n in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda: optuna.samplers.GridSampler({"x": [1, 2, 3]}),
        lambda: optuna.samplers.BruteForceSampler(seed=1),
        lambda: "tpe",
    ],
)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_search_ends_when_all_points_were_tried(root: str, make: Callable[[], Any]) -> None:
    """Two samplers of Optuna end a study themselves."""
    sampler, options = make(), quiet(root, parallelism=1)
    run = experiment.search(
        lambda x: x, {"x": [1, 2, 3]}, algorithm=sampler, num_trials=20, **options
    )
    assert run.state == "COMPLETE"
    assert {t.params["x"] for t in run.trials} == {1, 2, 3}
    assert run.best.value == 3


@pytest.mark.parametrize("pruner", PRUNERS)
def test_search_runs_with_every_pruner(root: str, pruner: str) -> None:
    def train(x: float) -> float:
        for step in range(4):
            context.report(x * step, step)
        return x * 3

    options = quiet(root, seed=1, parallelism=1)
    run = experiment.search(
        train, {"x": spaces.Float(0, 1)}, num_trials=7, pruner=pruner, **options
    )
    assert run.state == "COMPLETE"
    assert set(states(run)) <= {"COMPLETE", "PRUNED"}
    assert run.best.value == max(t.value for t in run.trials if t.value is not None)


# ---- parity with Optuna in one process


def simple(trial: optuna.Trial) -> float:
    x = trial.suggest_float("x", -4, 4)
    n = trial.suggest_int("n", 1, 64, log=True)
    return -((x - 1) ** 2) - n / 64


def conditional(trial: optuna.Trial) -> float:
    kind = trial.suggest_categorical("kind", ["linear", None, True, 0.5])
    if kind == "linear":
        return trial.suggest_float("slope", 1e-4, 1, log=True)
    depth = trial.suggest_int("depth", 1, 9, step=2)
    return sum(trial.suggest_float(f"w{i}", 0, 1, step=0.25) for i in range(depth % 4)) + depth


def learning(trial: optuna.Trial) -> float:
    rate = trial.suggest_float("rate", 0, 1)
    for step in range(9):
        trial.report(rate * (step + 1), step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return rate * 9


def asking_seldom(trial: optuna.Trial) -> float:
    rate = trial.suggest_float("rate", 0, 1)
    for step in range(9):
        trial.report(rate * (step + 1), step)
        if step % 4 == 3 and trial.should_prune():
            raise optuna.TrialPruned
    return rate * 9


def pruning_at_the_end(trial: optuna.Trial) -> float:
    """Report many steps, of which the first ones have the best values."""
    rate = trial.suggest_float("rate", 0, 1)
    for step in range(60):
        trial.report(rate if step > 5 else 1 - rate, step)
    if trial.should_prune():
        raise optuna.TrialPruned
    return rate


def never_pruning(trial: optuna.Trial) -> float:
    rate = trial.suggest_float("rate", 0, 1)
    for step in range(9):
        trial.report(rate * (step + 1), step)
    return rate * 9


def two_metrics(trial: optuna.Trial) -> tuple[float, float]:
    x = trial.suggest_float("x", 0, 1)
    return x, (1 - x) ** 2


def shown(frozen: list[Any]) -> list[tuple[dict[str, Any], str]]:
    return [(t.params, t.state.name) for t in frozen]


@pytest.mark.parametrize(
    ("objective", "sampler", "pruner"),
    [
        (simple, optuna.samplers.TPESampler, None),
        (simple, optuna.samplers.RandomSampler, None),
        (conditional, optuna.samplers.TPESampler, None),
        (learning, optuna.samplers.TPESampler, lambda: optuna.pruners.MedianPruner(2)),
        (
            learning,
            optuna.samplers.TPESampler,
            lambda: optuna.pruners.SuccessiveHalvingPruner(1, 2),
        ),
        (asking_seldom, optuna.samplers.TPESampler, lambda: optuna.pruners.MedianPruner(2)),
        pytest.param(
            asking_seldom,
            optuna.samplers.TPESampler,
            lambda: optuna.pruners.SuccessiveHalvingPruner(1, 2),
            marks=pytest.mark.thorough,
        ),
        (pruning_at_the_end, optuna.samplers.TPESampler, lambda: optuna.pruners.MedianPruner(2)),
        (never_pruning, optuna.samplers.TPESampler, lambda: optuna.pruners.MedianPruner(2)),
    ],
)
def test_search_proposes_the_same_params_as_optimize(
    root: str, objective: Any, sampler: Any, pruner: Callable[[], Any] | None
) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruners = [pruner() if pruner else None for _ in range(2)]
    study = optuna.create_study(direction="maximize", sampler=sampler(seed=5), pruner=pruners[0])
    study.optimize(objective, n_trials=12)
    run = experiment.search(
        objective,
        algorithm=sampler(seed=5),
        num_trials=12,
        pruner=pruners[1] if pruner else None,
        **quiet(root, parallelism=1, direction="max"),
    )
    if pruner and objective is not never_pruning:
        assert "PRUNED" in states(run)
    assert [(t.params, str(t.state)) for t in run.trials] == shown(study.trials)
    assert run.best.number == study.best_trial.number
    kinds = [type(v) for t in run.trials for v in t.params.values()]
    assert kinds == [type(v) for t in study.trials for v in t.params.values()]
    assert [t.params for t in experiment.load(run.path).trials] == [t.params for t in study.trials]


def test_objective_is_minimized_by_default(root: str) -> None:
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=5))
    study.optimize(simple, n_trials=12)
    run = experiment.search(simple, num_trials=12, **quiet(root, parallelism=1, seed=5))
    assert [t.params for t in run.trials] == [t.params for t in study.trials]
    assert run.best.number == study.best_trial.number
    again = experiment.resume(run.path, train=simple, num_trials=13, progress=False)
    assert again.direction == "min"


def test_seed_is_the_seed_of_the_sampler(root: str) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        directions=["maximize", "minimize"], sampler=optuna.samplers.TPESampler(seed=3)
    )
    study.optimize(two_metrics, n_trials=12)
    run = experiment.search(
        two_metrics,
        num_trials=12,
        metric=["accuracy", "latency"],
        direction=["max", "min"],
        **quiet(root, parallelism=1, seed=3),
    )
    assert [t.params for t in run.trials] == [t.params for t in study.trials]
    assert [t.number for t in run.pareto] == sorted(t.number for t in study.best_trials)


def test_objective_uses_the_other_methods_of_a_trial(root: str) -> None:
    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_int("x", 0, 5)
        trial.set_user_attr("doubled", 2 * x)
        assert trial.params == {"x": x}
        assert trial.user_attrs == {"doubled": 2 * x}
        assert trial.suggest_int("x", 0, 5) == x
        assert not trial.should_prune()
        trial.report(0.5, step=0)
        return trial.number

    run = experiment.search(objective, num_trials=3, **quiet(root, metric="score"))
    assert states(run) == ["COMPLETE"] * 3
    for trial in run.trials:
        assert trial.outputs == {"doubled": 2 * trial.params["x"], "score": trial.number}
        assert trial.history["value"].tolist() == [0.5]


def test_request_that_optuna_refuses_fails_its_trial(root: str) -> None:
    def objective(trial: optuna.Trial) -> float:
        if trial.number == 1:
            return trial.suggest_float("x", 5, 1)
        if trial.number == 2:
            trial.suggest_categorical("x", [1])  # The earlier trials requested a float.
        return trial.suggest_float("x", 1, 5)

    run = experiment.search(objective, num_trials=4, **quiet(root, parallelism=1))
    assert states(run)[1] == "FAILED"
    assert "low" in run.trials[1].summary
    assert [states(run)[i] for i in (0, 3)] == ["COMPLETE"] * 2


# ---- spaces


def test_space_mixes_lists_and_dimensions(root: str) -> None:
    values = [2, 2.5, "s", None, True, [1, "a"], {"k": [1.5]}]

    def train(v: Any) -> dict[str, Any]:
        return {"text": repr(v), "score": 1.0}

    options = quiet(root, metric="score")
    run = experiment.search(train, {"v": values}, algorithm="grid", **options)
    assert sorted(t.outputs["text"] for t in run.trials) == sorted(map(repr, values))
    again = experiment.load(run.path)
    assert [repr(t.params["v"]) for t in again.trials] == [t.outputs["text"] for t in run.trials]


def test_parameters_of_a_choice_are_passed_with_it_only(root: str, capsys: Any) -> None:
    def train(kind: str, x: float = -1.0, n: int = -1) -> dict[str, float]:
        assert (x >= 0, n >= 0) == {"line": (True, False), "steps": (True, True)}.get(
            kind, (False, False)
        )
        return {"score": x + n}

    space = {
        "kind": {
            "line": {"x": spaces.Float(0, 1)},
            "steps": {"x": spaces.Float(2, 3), "n": spaces.Int(0, 2)},
            "none": {},
        }
    }
    options = quiet(root, metric="score", seed=3)
    run = experiment.search(train, space, num_trials=8, **options)
    run = experiment.resume(run.path, space=space, num_trials=12, progress=False)
    assert states(run) == ["COMPLETE"] * 12
    assert {t.params["kind"]: sorted(t.params) for t in run.trials} == {
        "line": ["kind", "x"],
        "steps": ["kind", "n", "x"],
        "none": ["kind"],
    }
    assert run.best.params["kind"] == "steps"
    table = run.to_pandas()
    assert table["n"].notna().tolist() == [t.params["kind"] == "steps" for t in run.trials]
    print(run)
    print(experiment.compare([run, run.path]))
    assert "steps" in capsys.readouterr().out
    assert (Path(run.report())).stat().st_size > 1000
    with pytest.raises(ConfigError, match="'n' does not exist with these parameters"):
        experiment.search(train, space, num_trials=1, initial_params=[{"n": 1}], **options)


def test_constraints_hold_in_every_trial_also_after_a_resume(root: str) -> None:
    def train(x: float, n: int, kind: str) -> dict[str, float]:
        return {"score": x - n - len(kind)}

    options = quiet(root, metric="score", seed=1)
    rules = ["x <= n / 4", "kind == 'a' or n > 2"]
    run = experiment.search(train, SPACE, num_trials=6, constraints=rules, **options)
    run = experiment.resume(run.path, num_trials=12, progress=False)
    assert states(run) == ["COMPLETE"] * 12
    for trial in run.trials:
        x, n, kind = (trial.params[name] for name in ("x", "n", "kind"))
        assert x <= n / 4 and (kind == "a" or n > 2)
    again = experiment.reproduce(run, progress=False)
    assert [t.params for t in again.trials] == [t.params for t in run.trials]


def test_space_may_be_a_function(root: str) -> None:
    def space(trial: optuna.Trial) -> dict[str, Any]:
        n = trial.suggest_int("n", 1, 3)
        return {"sizes": [trial.suggest_int(f"size{i}", 1, 9) for i in range(n)], "fixed": "é"}

    def train(sizes: list[int], fixed: str) -> float:
        assert fixed == "é"
        return sum(sizes)

    run = experiment.search(train, space, num_trials=8, **quiet(root, seed=2))
    assert {len(t.params["sizes"]) for t in run.trials} == {1, 2, 3}
    assert all(t.value == sum(t.params["sizes"]) for t in run.trials)


def test_exception_in_a_space_function_ends_the_run(root: str) -> None:
    def space(trial: optuna.Trial) -> dict[str, Any]:
        if trial.number == 2:
            raise ZeroDivisionError("in my space")
        return {"x": trial.suggest_int("x", 1, 3)}

    with pytest.raises(ZeroDivisionError, match="in my space"):
        experiment.search(bowl, space, num_trials=5, **quiet(root, parallelism=1, metric="score"))
    run = experiment.load(experiment.history(root)["path"][0])
    assert (run.state, run.reason) == ("FAILED", "in my space")
    assert states(run) == ["COMPLETE", "COMPLETE"]


# ---- initial params, learning and checkpoints


def test_initial_params_run_first(root: str) -> None:
    first: list[dict[str, Any]] = [{"x": 1.0, "n": 2, "kind": "b"}, {"x": -3.0}]
    options = quiet(root, metric="score", parallelism=1)
    run = experiment.search(bowl, SPACE, num_trials=4, initial_params=first, **options)
    assert run.trials[0].params == first[0]
    assert run.trials[1].params["x"] == -3.0
    assert run.trials[1].params.keys() == SPACE.keys()
    assert run.best.number == 0


def test_learn_from_another_run_guides_the_sampler(root: str, capsys: Any) -> None:
    options = quiet(root, metric="score", seed=1)
    first = experiment.search(
        bowl, {"x": spaces.Float(0, 2)}, algorithm="random", num_trials=20, **options
    )
    loud = {**options, "progress": True, "parallelism": 1}
    run = experiment.search(
        bowl, {"x": spaces.Float(0, 2)}, num_trials=5, learn_from=[first.path], **loud
    )
    assert f"Learned from 20 of the 20 trials of run {first.id}" in capsys.readouterr().out
    # A sampler without data draws anywhere; this one draws where the values were good.
    assert sum(abs(t.params["x"] - 1) for t in run.trials) / 5 < 0.4
    assert len(run.trials) == 5


def test_init_from_supplies_a_checkpoint(root: str, tmp_path: Path) -> None:
    def pretrain() -> None:
        Path(tmp_path, "model").mkdir()
        for epoch in (1, 2):
            Path(tmp_path, "model", "weights").write_text(f"epoch {epoch}")
            context.report(epoch / 2, checkpoint=tmp_path / "model")

    def finetune(x: int) -> dict[str, Any]:
        directory = context.get_checkpoint()
        return {"score": x, "from": Path(directory or "", "weights").read_text()}

    options = quiet(root, metric="score")
    source = experiment.launch(pretrain, **quiet(root)).trials[0]
    for start in (source, source.path, source.checkpoint):
        run = experiment.search(finetune, {"x": [1, 2]}, num_trials=2, init_from=start, **options)
        assert {t.outputs["from"] for t in run.trials} == {"epoch 2"}
    before = len(experiment.history(root))
    with pytest.raises(ConfigError, match="no checkpoint"):
        experiment.search(finetune, {"x": [1]}, num_trials=1, init_from=run.trials[0], **options)
    assert len(experiment.history(root)) == before


# ---- repeats


class RecordingSampler(optuna.samplers.RandomSampler):
    """A sampler that records the results it receives, and fails if a value is not finite."""

    def __init__(self) -> None:
        super().__init__(seed=0)
        self.results: list[tuple[str, list[float] | None]] = []

    def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
        assert values is None or all(map(math.isfinite, values)), values
        self.results.append((state.name, values and list(values)))


def test_sampler_receives_the_mean_of_repeats(root: str) -> None:
    def train(x: int) -> float:
        return x + {0: 0.0, 1: 3.0, 2: -0.9}[context.trial % 3]

    sampler = RecordingSampler()
    options = quiet(root, parallelism=1, initial_params=[{"x": 1}, {"x": 2}])
    run = experiment.search(
        train, {"x": [1, 2]}, algorithm=sampler, num_trials=2, repeats=3, **options
    )
    assert [t.params["x"] for t in run.trials] == [1, 1, 1, 2, 2, 2]
    assert [t.configuration for t in run.trials] == [0, 0, 0, 1, 1, 1]
    assert len({t.seed for t in run.trials}) == 6
    assert [state for state, _ in sampler.results] == ["COMPLETE", "COMPLETE"]
    means = [told[0] for _, told in sampler.results if told]
    assert means == pytest.approx([1.7, 2.7])
    assert run.best.configuration == 1
    assert run.means()[0] == pytest.approx((1.7, 2.042058), rel=1e-4)
    assert re.search(r"1\.70000 ± 2\b", str(run))


def test_best_is_chosen_by_the_mean_of_repeats(root: str) -> None:
    def train(x: int) -> float:
        return {0: 9.0, 1: -9.0, 2: 1.0, 3: 1.0}[context.trial]

    options = quiet(root, parallelism=1, initial_params=[{"x": 1}, {"x": 2}])
    run = experiment.search(train, {"x": [1, 2]}, num_trials=2, repeats=2, **options)
    assert run.best.params == {"x": 2}
    assert experiment.load(run.path).best.params == {"x": 2}


def test_pruned_configuration_runs_no_further_repeats(root: str, tmp_path: Path) -> None:
    def train(x: int) -> float:
        Path(tmp_path, f"call-{context.trial}").touch()
        for step in range(10_000):
            context.report(float(x), step)
            time.sleep(0.02)
        return float(x)

    run = experiment.search(
        train,
        {"x": [0]},
        num_trials=1,
        repeats=3,
        pruner=optuna.pruners.ThresholdPruner(lower=0.5),
        **quiet(root, parallelism=1),
    )
    assert set(states(run)) == {"PRUNED"}
    assert len(list(tmp_path.glob("call-*"))) == 1


# ---- stopping rules


def test_stop_ends_a_search_at_its_target(root: str, tmp_path: Path) -> None:
    def train(x: int) -> float:
        Path(tmp_path, f"started{x}").touch()
        if x == 0:
            time.sleep(300)
        while not Path(tmp_path, "started0").exists():
            time.sleep(0.01)
        return x / 10

    first = [{"x": x} for x in range(10)]
    run = experiment.search(
        train,
        {"x": list(range(10))},
        num_trials=10,
        stop={"accuracy": 0.3},
        initial_params=first,
        **quiet(root, metric="accuracy", parallelism=2),
    )
    assert run.state == "COMPLETE"
    assert re.fullmatch(r"stop: trial 3 has accuracy 0\.3, of 0\.3", run.reason or "")
    assert states(run)[:4] == ["CANCELLED", *["COMPLETE"] * 3]
    assert set(states(run)[4:]) <= {"CANCELLED"}
    assert run.best.value == 0.3
    assert "the run was stopped: stop: trial 3" in (run.trials[0].error or "")
    assert eventually(lambda: not processes_of(run.id))


def test_patience_ends_a_search_without_improvement(root: str) -> None:
    values = [{"x": x} for x in (3, 5, 1, 2, 4, 9)]
    options = quiet(root, parallelism=1, initial_params=values, direction="max")
    run = experiment.search(lambda x: x, {"x": list(range(10))}, patience=3, **options)
    assert run.state == "COMPLETE"
    assert run.reason == "patience=3 configurations brought nothing better"
    assert [t.value for t in run.trials] == [3, 5, 1, 2, 4]


def test_patience_ends_a_search_in_which_all_trials_fail(root: str) -> None:
    def train(x: float) -> float:
        raise InvalidTrial("never")

    with pytest.raises(AllTrialsFailedError, match="InvalidTrial: never"):
        options = quiet(root, timeout_s=300)
        experiment.search(train, {"x": spaces.Float(0, 1)}, patience=3, **options)
    run = experiment.load(experiment.history(root)["path"][0])
    assert "patience=3" in (run.reason or "")
    assert len(run.trials) <= 3 + 2


def test_max_slot_hours_ends_a_search(root: str) -> None:
    def train(x: float) -> float:
        time.sleep(0.3)
        return x

    options = quiet(root, max_slot_hours=4 / 3600)
    run = experiment.search(train, {"x": spaces.Float(0, 1)}, **options)
    assert run.state == "COMPLETE"
    assert "max_slot_hours" in (run.reason or "")
    # The driver sees a moment late that a trial runs.
    assert 1 <= run.counts()["COMPLETE"] <= 2 * 4 / 0.3


def test_max_slot_hours_counts_very_short_trials(root: str) -> None:
    """A trial may end before the driver sees it running; its slot time counts nevertheless."""
    options = quiet(root, max_slot_hours=0.2 / 3600, timeout_s=300)
    run = experiment.search(lambda x: x, {"x": spaces.Float(0, 1)}, **options)
    assert run.state == "COMPLETE"
    used = sum(t.usage.starting_s + t.usage.running_s for t in run.trials)
    assert used < 0.2 + 8 * max(t.duration_s for t in run.trials)


@pytest.mark.parametrize(("count", "state"), [(50, "CANCELLED"), (None, "COMPLETE")])
def test_timeout_ends_a_search(root: str, count: int | None, state: str) -> None:
    """A search whose only stopping rule is the time limit ends COMPLETE."""

    def train(x: float) -> float:
        if context.trial > 1:
            time.sleep(300)
        return x

    options = quiet(root, timeout_s=600, wait=False)
    run = experiment.search(train, {"x": spaces.Float(0, 1)}, num_trials=count, **options)
    assert eventually(lambda: run.counts().get("COMPLETE") == 2)
    limit_s = end_soon(run)
    run = run.wait() if state == "COMPLETE" else stopped(run.wait)
    assert (run.state, run.reason) == (state, f"timeout_s={limit_s:g} is over")
    assert states(run)[:2] == ["COMPLETE"] * 2
    assert set(states(run)[2:]) == {"CANCELLED"}
    assert run.best.value is not None
    assert eventually(lambda: not processes_of(run.id))


def test_max_failed_trials_ends_a_search(root: str) -> None:
    def train(x: float) -> float:
        if context.trial:
            raise OSError("disk full")
        return x

    options = quiet(root, max_failed_trials=2, parallelism=1)
    space = {"x": spaces.Float(0, 1)}
    run = stopped(lambda: experiment.search(train, space, num_trials=50, **options))
    assert run.state == "FAILED"
    assert run.reason == "more than max_failed_trials=2 trials failed"
    assert states(run) == ["COMPLETE", "FAILED", "FAILED", "FAILED"]

    def never(x: float) -> float:
        raise OSError("disk full")

    with pytest.raises(AllTrialsFailedError, match="disk full") as caught:
        experiment.search(
            never,
            {"x": spaces.Float(0, 1)},
            num_trials=50,
            **quiet(root, fail_fast_identical=3),
        )
    assert isinstance(caught.value.__cause__, OSError)
    last = experiment.load(experiment.history(root)["path"][0])
    assert "failed alike: OSError: disk full" in (last.reason or "")
    assert last.counts()["FAILED"] <= 3 + 2


# ---- values that are not numbers


@pytest.mark.acceptance("A15")
def test_three_of_nine_trials_without_a_number_are_invalid(root: str) -> None:
    def train(x: int) -> float | None:
        return {0: float("nan"), 4: None, 8: float("inf")}.get(x, x / 10)

    sampler = RecordingSampler()
    order = [{"x": x} for x in range(9)]
    options = quiet(root, metric="score", initial_params=order)
    run = experiment.search(
        train, {"x": list(range(9))}, algorithm=sampler, num_trials=9, **options
    )
    assert [t.params["x"] for t in run.trials if t.state == "INVALID"] == [0, 4, 8]
    assert (run.best.value, run.best.params) == (0.7, {"x": 7})
    assert experiment.load(run.path).best.number == run.best.number
    assert sorted(state for state, _ in sampler.results) == ["COMPLETE"] * 6 + ["FAIL"] * 3
    assert "metric 'score' is nan" in str(run)


@pytest.mark.acceptance("A15")
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_best_trial_is_right_whatever_the_order_of_invalid_ones(
    root: str, order: tuple[int, ...]
) -> None:
    def train(x: int) -> float:
        return [math.nan, 0.25, -math.inf][x]

    first = [{"x": x} for x in order]
    options = quiet(root, parallelism=1, initial_params=first, direction="min")
    run = experiment.search(train, {"x": [0, 1, 2]}, num_trials=3, **options)
    assert run.best.params == {"x": 1}
    assert run.top(3) == [run.best]


@pytest.mark.parametrize("returned", [None, {"a": 1.0, "b": 2.0}, {}, "text"])
def test_search_without_a_metric_makes_trials_invalid(root: str, returned: Any) -> None:
    """Without a single number and without metric=, trials cannot be compared."""
    with pytest.raises(AllTrialsFailedError, match="metric"):
        experiment.search(lambda x: returned, {"x": [1, 2]}, num_trials=2, **quiet(root))
    run = experiment.load(experiment.history(root)["path"][0])
    assert states(run) == ["INVALID", "INVALID"]
    assert not processes_of(run.id)


def test_reports_that_are_not_finite_do_not_end_a_search(root: str) -> None:
    def train(x: int) -> float:
        for step in range(3):
            context.report([math.nan, math.inf, -math.inf, 1.0][x], step)
        return float(x)

    sampler = RecordingSampler()
    order = [{"x": x} for x in (3, 0, 1, 2, 3)]
    pruner = optuna.pruners.MedianPruner(n_startup_trials=0)
    options = quiet(root, parallelism=1, initial_params=order)
    run = experiment.search(
        train, {"x": [0, 1, 2, 3]}, algorithm=sampler, num_trials=5, pruner=pruner, **options
    )
    assert run.state == "COMPLETE"
    assert len(sampler.results) == 5
    assert experiment.load(run.path).best.number == run.best.number


def test_search_continues_after_invalid_and_failed_trials(root: str) -> None:
    def train(x: int) -> float:
        if x == 0:
            raise InvalidTrial("does not fit")
        if x == 1:
            raise KeyError("mine")
        if x == 2:
            raise InvalidTrial
        return x

    options = quiet(root, initial_params=[{"x": x} for x in range(4)])
    run = experiment.search(train, {"x": list(range(4))}, num_trials=4, **options)
    assert states(run) == ["INVALID", "FAILED", "INVALID", "COMPLETE"]
    assert run.trials[0].error == "InvalidTrial: does not fit"
    assert run.trials[2].error == "InvalidTrial: "
    assert f'{__file__}", line' in (run.trials[1].error or "")
    assert run.best.value == 3


def test_search_raises_when_all_trials_fail(root: str) -> None:
    class Mine(Exception):
        pass

    def train(x: int) -> float:
        raise Mine(f"x={x}")

    with pytest.raises(AllTrialsFailedError, match="0 of 3 trials complete, 3 failed") as caught:
        experiment.search(train, {"x": [1, 2, 3]}, num_trials=3, **quiet(root))
    assert isinstance(caught.value.__cause__, Mine)


# ---- several metrics


def test_two_metrics_give_a_pareto_front(root: str) -> None:
    def train(x: int) -> dict[str, float]:
        return {"accuracy": x, "latency": {0: 1.0, 1: 3.0, 2: 2.0, 3: 4.0, 4: math.nan}[x]}

    run = experiment.search(
        train,
        {"x": [0, 1, 2, 3, 4]},
        algorithm="grid",
        metric=["accuracy", "latency"],
        direction=["max", "min"],
        **quiet(root),
    )
    assert [str(t.state) for t in run.trials if t.params["x"] == 4] == ["INVALID"]
    assert {t.params["x"] for t in run.pareto} == {0, 2, 3}
    assert {t.params["x"] for t in experiment.load(run.path).pareto} == {0, 2, 3}
    with pytest.raises(NoCompleteTrialError, match=r"run\.pareto"):
        run.best  # noqa: B018
    assert "Best:" not in str(run)
    assert "latency" in str(run)


@pytest.mark.parametrize(
    ("metric", "direction", "message"),
    [
        (["a", "b"], ["max"], "a direction for each"),
        (["a", "a"], ["max", "min"], "different names"),
        ([], [], "different names"),
        (["a", "val_loss"], None, "direction='min'"),
        (["a", 3], ["max", "min"], "metric is 3"),
        (["a", "b"], ["max", "up"], "direction is 'up'"),
    ],
)
def test_search_refuses_invalid_metrics_and_directions(
    root: str, metric: Any, direction: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        experiment.search(
            bowl, SPACE, num_trials=1, metric=metric, direction=direction, **quiet(root)
        )
    assert os.listdir(root) == []


# ---- trials of several workers


def test_trials_of_two_workers_run_one_after_the_other(root: str) -> None:
    """With two slots and two processes per trial, trials run one at a time and all of them end."""

    def train(x: int) -> float | None:
        from sparkdl.distribute.strategies import choose

        assert context.world_size == 2
        # `distribute.strategy()` is that of both workers, which TF_CONFIG names.
        assert choose(context.current()) == "multi_worker"
        assert len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]) == 2
        return x if context.is_chief else None

    run = experiment.search(train, {"x": [1, 2]}, num_trials=2, workers_per_trial=2, **quiet(root))
    assert states(run) == ["COMPLETE"] * 2
    assert run.best.value == max(t.params["x"] for t in run.trials)
    assert eventually(lambda: not processes_of(run.id))


def test_trials_with_too_many_workers_are_refused(root: str, spark: SparkSession) -> None:
    before = jobs_so_far(spark)
    with pytest.raises(SlotsError, match="3"):
        experiment.search(lambda x: x, {"x": [1]}, num_trials=1, workers_per_trial=3, **quiet(root))
    assert jobs_so_far(spark) == before
    assert os.listdir(root) == []


def test_objective_with_two_workers_is_refused(root: str) -> None:
    def objective(trial: optuna.Trial) -> float:
        return trial.suggest_float("x", 0, 1)

    options = quiet(root, timeout_s=300)
    try:
        run = experiment.search(objective, num_trials=1, workers_per_trial=2, **options)
    except ConfigError as refused:
        assert "space" in str(refused)
        assert os.listdir(root) == []
    else:
        assert states(run) == ["COMPLETE"]


@pytest.mark.parametrize("kind", ["ring", "gloo"])
def test_ranks_of_a_pruned_trial_stop_at_the_same_step(root: str, kind: str) -> None:
    """A rank that went on for a step more would wait for the other, and the trial be killed."""
    if kind == "gloo":
        pytest.importorskip("torch")

    def train(x: int, kind: str) -> int:
        from pathlib import Path

        import numpy

        from sparkdl import context, distribute

        if kind == "gloo":
            import torch

            torch.distributed.init_process_group("gloo")
        for step in range(1_000_000):
            if context.should_stop() or x:
                break
            if kind == "gloo":
                torch.distributed.all_reduce(torch.ones(2))
            else:
                distribute.allreduce(numpy.ones(2))
            if context.is_chief and step == 20:
                context.report(float(x), 0)
        Path("model").mkdir()
        Path("model", f"step-{context.rank}.txt").write_text(f"{step}")
        context.report({}, step=step, checkpoint="model", sharded=True)
        return x

    run = experiment.search(
        train,
        {"x": [0, 1], "kind": [kind]},
        num_trials=2,
        initial_params=[{"x": 0, "kind": kind}, {"x": 1, "kind": kind}],
        workers_per_trial=2,
        framework="torch" if kind == "gloo" else None,
        pruner=optuna.pruners.ThresholdPruner(lower=0.5),
        **quiet(root),
    )
    assert states(run) == ["PRUNED", "COMPLETE"]
    (saved,) = run.trials[0].checkpoints
    steps = [(Path(saved.url) / f"step-{rank}.txt").read_text() for rank in range(2)]
    assert steps[0] == steps[1] != "999999"


def test_pruned_trial_of_two_workers_frees_its_slots(root: str) -> None:
    def train(x: int) -> float | None:
        if context.is_chief:
            context.report(float(x), 0)
        if x < 1:
            time.sleep(300)  # Neither rank reports again.
        return x if context.is_chief else None

    run = experiment.search(
        train,
        {"x": [-1, 0, 1]},
        num_trials=3,
        initial_params=[{"x": 0}, {"x": 1}, {"x": -1}],
        workers_per_trial=2,
        pruner=optuna.pruners.ThresholdPruner(lower=0.5),
        **quiet(root),
    )
    assert states(run) == ["PRUNED", "COMPLETE", "PRUNED"]
    assert eventually(lambda: not processes_of(run.id))
    assert run.trials[0].metrics == {"value": 0.0}
    assert experiment.load(run.path).trials[0].metrics == {"value": 0.0}


# ---- credentials


def test_credentials_in_params_are_refused_or_masked(root: str) -> None:
    def objective(trial: optuna.Trial) -> float:
        trial.suggest_categorical("api_key", [kept["word"], "other"])
        return 1.0

    def space(trial: optuna.Trial) -> dict[str, Any]:
        return {"x": trial.suggest_float("x", 0, 1), "password": kept["word"]}

    def with_password(x: float, password: str) -> float:
        assert password == kept["word"]
        return x

    # The source of the program is stored, and this file is the program.
    kept = {"word": "".join(("hun", "ter22"))}
    horse = "".join(("correct", "-horse"))
    secret = quiet(root, env={"SERVICE_KEY": horse})
    words = {"x": [1], "who": [horse]}
    calls: list[Callable[[], Any]] = [
        lambda: experiment.search(objective, num_trials=2, **quiet(root)),
        lambda: experiment.search(with_password, space, num_trials=2, **quiet(root)),
        lambda: experiment.search(lambda x, who: x, words, num_trials=1, **secret),
    ]
    for call in calls:
        try:
            call()
        except (ConfigError, AllTrialsFailedError) as refused:
            assert "credential" in str(refused)
    texts = {p: p.read_bytes() for p in Path(root).rglob("*") if p.is_file()}
    for path, text in texts.items():
        assert kept["word"].encode() not in text, path
        assert horse.encode() not in text, path
    tokens = {"token": ["abc123", "efg456"]}
    with pytest.raises(ConfigError, match="look like credentials"):
        experiment.search(lambda token: 1, tokens, num_trials=1, **quiet(root))


# ---- validation before any job


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"n_trials": 3}, ConfigError, "mean 'num_trials'"),
        ({"num_samples": 3}, ConfigError, "mean 'num_trials'"),
        ({"max_evals": 3}, ConfigError, "mean 'num_trials'"),
        ({"max_trials": 3}, ConfigError, "mean 'num_trials'"),
        ({"num_trials": 3, "mode": "max"}, ConfigError, "mean 'direction'"),
        ({"num_trials": 3, "sampler": "tpe"}, ConfigError, "mean 'algorithm'"),
        ({"num_trials": 3, "search_alg": "tpe"}, ConfigError, "mean 'algorithm'"),
        ({"num_trials": 3, "scheduler": "asha"}, ConfigError, "mean 'pruner'"),
        ({"num_trials": 3, "points_to_evaluate": []}, ConfigError, "mean 'initial_params'"),
        ({"num_trials": 3, "num_workers": 2}, ConfigError, "mean 'workers_per_trial'"),
        ({"num_trials": 3, "n_jobs": 2}, ConfigError, "mean 'parallelism'"),
        ({"num_trials": 3, "algorithm": "hyperopt"}, ConfigError, "mean 'tpe'"),
        ({"num_trials": 3, "algorithm": object()}, ConfigError, "an Optuna sampler"),
        ({"num_trials": 3, "algorithm": optuna.samplers.TPESampler}, ConfigError, "sampler"),
        ({"num_trials": 3, "pruner": optuna.samplers.TPESampler()}, ConfigError, "pruner"),
        ({"num_trials": 3, "initial_params": {"x": 1.0}}, ConfigError, "initial_params"),
        ({"num_trials": 3, "initial_params": [{"y": 1.0}]}, ConfigError, "unknown parameter 'y'"),
        ({"num_trials": 3, "stop": 0.98}, ConfigError, "stop"),
        ({"num_trials": 3, "stop": {"loss": 1}}, ConfigError, "stop has 'loss'"),
        ({"num_trials": 3, "space": {"x": 1.0}}, ConfigError, r"Write \[1\.0\]"),
        ({"num_trials": 3, "space": {}}, ConfigError, "expected a dict"),
        ({"num_trials": 3, "space": {"y": [1]}}, FunctionError, "'y'"),
        ({"num_trials": 3, "space": None}, FunctionError, "search got no space"),
        ({"num_trials": 3, "workers_per_trial": 0}, ConfigError, "workers_per_trial is 0"),
        ({"num_trials": 3, "workers_per_trial": "two"}, ConfigError, "workers_per_trial"),
        ({}, ConfigError, "the search has no stopping rule"),
        ({"num_trials": 3, "learn_from": ["nowhere"]}, FileNotFoundError, "no run at"),
        ({"num_trials": 3, "init_from": "nowhere"}, ConfigError, "no checkpoint"),
    ],
)
def test_invalid_arguments_are_refused_before_any_job(
    given: dict[str, Any],
    error: type[Exception],
    message: str,
    spark: SparkSession,
    root: str,
) -> None:
    def train(x: float, second: float) -> float:
        return x + second

    before = jobs_so_far(spark)
    space = given.get("space", {"x": spaces.Float(0, 1), "second": [1]})
    rest = {name: value for name, value in given.items() if name != "space"}
    with pytest.raises(error, match=message):
        experiment.search(train, space, **rest, **quiet(root))
    assert jobs_so_far(spark) == before
    assert os.listdir(root) == []


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_missing_package_of_an_algorithm_is_named(root: str) -> None:
    with pytest.raises(ConfigError, match=r"sparkdl-platform\[gp\]"):
        experiment.search(bowl, SPACE, algorithm="gp", num_trials=3, **quiet(root))
    assert os.listdir(root) == []


def test_learn_from_accepts_a_run_or_its_path(root: str) -> None:
    """A single run without a list is accepted, or refused with a message."""
    options = quiet(root, metric="score")
    first = experiment.search(bowl, {"x": [0, 1]}, num_trials=2, **options)
    for one in (first, first.path):
        try:
            run = experiment.search(bowl, {"x": [0, 1]}, num_trials=1, learn_from=one, **options)
        except ConfigError as refused:
            assert "learn_from" in str(refused)
        else:
            assert states(run) == ["COMPLETE"]


def test_run_id_of_a_search_with_another_space_is_refused(root: str) -> None:
    options = quiet(root, run_id="nightly", metric="score", if_exists="resume")
    space = {"x": spaces.Float(0, 1)}
    run = experiment.search(bowl, space, num_trials=2, **options)
    with pytest.raises(RunExistsError, match="space was"):
        experiment.search(bowl, {"x": [0, 5]}, num_trials=2, **options)
    more = experiment.search(bowl, space, num_trials=5, **options)
    assert (more.id, len(more.trials)) == (run.id, 5)
    assert [t.params for t in more.trials[:2]] == [t.params for t in run.trials]


# ---- output and usage


def test_usage_and_idle_time_are_recorded(root: str) -> None:
    def train(x: int) -> float:
        time.sleep(0.3)
        for step in range(50):
            context.report(float(step), step)
        return x

    run = experiment.search(train, {"x": [1, 2, 3]}, num_trials=3, **quiet(root))
    for trial in [*run.trials, *experiment.load(run.path).trials]:
        used = trial.usage
        assert 0.3 <= used.first_step_s <= used.running_s
        assert 0 < used.reporting_s < used.running_s
        assert used.queued_s >= 0
        assert used.starting_s > 0
    assert re.fullmatch(r"\d+ % idle(: .+)?", run.idle or "")
    assert experiment.load(run.path).idle == run.idle


def test_progress_prints_lines_without_a_terminal(root: str, capsys: Any) -> None:
    def train(x: int) -> float:
        print("hello", x)
        return x / 8

    options: dict[str, Any] = {
        "root": root,
        "metric": "score",
        "initial_params": [{"x": x} for x in range(8)],
    }
    run = experiment.search(train, {"x": list(range(8))}, num_trials=8, **options)
    out = capsys.readouterr().out
    assert "8 trials, 2 at once (2 slots of local[2])" in out
    for trial in run.trials:
        assert f"[trial {trial.number}] hello {trial.params['x']}" in out
    lines = re.findall(r"^\[(\d)/8\] trial (\d) x=\d COMPLETE: score", out, re.MULTILINE)
    assert [int(done) for done, _ in lines] == list(range(1, 9))
    assert sorted(int(number) for _, number in lines) == list(range(8))
    assert run.idle
    assert run.idle in out


def test_live_search_can_be_watched_and_cancelled(root: str, tmp_path: Path) -> None:
    def train(x: float) -> float:
        Path(tmp_path, f"began-{context.trial}").touch()
        if context.trial > 1:
            time.sleep(300)
        return x

    options = quiet(root, wait=False)
    run = experiment.search(train, {"x": spaces.Float(0, 1)}, num_trials=30, **options)
    try:
        assert run.state == "RUNNING"
        assert eventually(lambda: len(list(tmp_path.glob("began-*"))) == 4)
        assert eventually(lambda: run.counts().get("RUNNING") == 2)
        one = next(trial for trial in run.trials if trial.state == "RUNNING")
        run.cancel(one)
        assert eventually(lambda: one.state == "CANCELLED")
        assert run.state == "RUNNING"
        # The slot is reused.
        assert eventually(lambda: len(list(tmp_path.glob("began-*"))) == 5)
    finally:
        run.cancel()
    assert stopped(run.wait) is run
    assert (run.state, run.reason) == ("CANCELLED", "cancelled")
    assert run.counts() == {"COMPLETE": 2, "CANCELLED": len(run.trials) - 2}
    assert eventually(lambda: not processes_of(run.id))


def test_two_searches_run_at_the_same_time(root: str) -> None:
    runs = [
        experiment.search(
            lambda x, base=base: x + base,
            {"x": [1, 2, 3]},
            algorithm="grid",
            **quiet(root, wait=False),
        )
        for base in (0, 100)
    ]
    for run, base in zip(runs, (0, 100), strict=True):
        run.wait()
        assert sorted(t.value or 0 for t in run.trials) == [base + 1, base + 2, base + 3]


# ---- a run directory on S3


def test_search_stores_its_run_on_s3(s3: str) -> None:
    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_int("x", 0, 1)
        trial.report(float(x), 0)
        if trial.should_prune():
            raise optuna.TrialPruned
        return x

    def train(x: int) -> float:
        for step in range(1000):
            context.report(float(x), step)
            if x == 1:
                break
            time.sleep(0.1)
        return x

    options: dict[str, Any] = {
        "pruner": optuna.pruners.ThresholdPruner(lower=0.5),
        "initial_params": [{"x": 0}, {"x": 1}],
        "num_trials": 2,
    }
    for run in (
        experiment.search(objective, **options, **quiet(s3)),
        experiment.search(train, {"x": [0, 1]}, **options, **quiet(s3)),
    ):
        assert run.path.startswith("s3://")
        assert states(run) == ["PRUNED", "COMPLETE"]
        kept = experiment.load(run.path)
        assert states(kept) == states(run)
        assert kept.trials[0].metrics["value"] == 0.0
        assert eventually(lambda run=run: not processes_of(run.id))


# ---- trials that prune themselves


def test_trial_that_raises_trial_pruned_is_pruned(root: str) -> None:
    def train(x: int) -> float:
        if x == 0:
            raise TrialPruned("I know better")
        if x == 1:
            raise optuna.TrialPruned
        return x

    options = quiet(root, initial_params=[{"x": x} for x in range(3)])
    run = experiment.search(train, {"x": [0, 1, 2]}, num_trials=3, **options)
    assert states(run) == ["PRUNED", "PRUNED", "COMPLETE"]
    assert run.best.value == 2
    assert "optuna" in sys.modules
