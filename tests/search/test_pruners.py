"""Pruners by name count reports, take arguments, and are noticed where they do harm or nothing."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import optuna
import pytest

from sparkdl.errors import ConfigError
from sparkdl.runs import Trial, TrialState
from sparkdl.runs.events import RunEnded, TrialChanged
from sparkdl.runs.opening import OpenRun, RunDescription, continue_run, open_run
from sparkdl.runs.states import RunState
from sparkdl.search.pruners import NamedPruner
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Float, Space
from sparkdl.search.study_source import StudySource

SPACE = Space.of({"x": Float(0.0, 1.0)})


# ---- arguments


@pytest.mark.parametrize(
    ("pruner", "message"),
    [
        ({"asha": {"grace_period": 3}}, r"no argument 'grace_period'.*Did you mean 'grace'"),
        ({"asha": {"eta": 3}}, "Did you mean 'reduction'"),
        ({"asha": {"startup": 3}}, "Its arguments are grace, reduction"),
        ({"median": {"startup": -1}}, "'startup' of pruner 'median' is -1"),
        ({"asha": {"reduction": 1}}, "at least 2"),
        ({"asha": {"grace": 2.5}}, "whole number"),
        ({"asha": 3}, "expected one of median, asha, hyperband, a dict"),
        ({"asha": {}, "median": {}}, "expected one of median, asha, hyperband, a dict"),
        ({"ashaa": {}}, "expected one of median, asha, hyperband, a dict"),
        ({}, "expected one of median, asha, hyperband, a dict"),
    ],
)
def test_arguments_of_pruners_are_validated(pruner: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SearchSettings(space=SPACE, num_trials=3, pruner=pruner).check(["m"], None)


@pytest.mark.parametrize(
    ("pruner", "attributes"),
    [
        ("asha", {"_min_resource": 1, "_reduction_factor": 4}),
        ({"asha": {"grace": 3, "reduction": 2}}, {"_min_resource": 3, "_reduction_factor": 2}),
        ({"median": {"grace": 4, "startup": 9}}, {"_n_warmup_steps": 4, "_n_startup_trials": 9}),
        ({"hyperband": {"grace": 2, "max_reports": 81}}, {"_min_resource": 2, "_max_resource": 81}),
        ("hyperband", {"_min_resource": 1, "_max_resource": "auto", "_reduction_factor": 3}),
    ],
)
def test_arguments_reach_the_pruner(pruner: Any, attributes: dict[str, Any]) -> None:
    SearchSettings(space=SPACE, num_trials=3, pruner=pruner).check(["m"], None)
    built = NamedPruner.of(pruner).build()
    assert {name: getattr(built, name) for name in attributes} == attributes


def test_arguments_are_written_and_read_back() -> None:
    settings = SearchSettings(space=SPACE, num_trials=3, pruner={"asha": {"grace": 3}})
    assert settings.to_dict()["pruner"] == {"asha": {"grace": 3}}


def test_a_pruner_hears_every_rung_and_few_others() -> None:
    pruner = NamedPruner.of({"asha": {"grace": 5, "reduction": 3}})
    heard = [number for number in range(100_000) if pruner.hears(number)]
    assert {5 * 3**i for i in range(9)} <= set(heard)
    assert heard[:60] == list(range(60))
    assert len(heard) < 500


# ---- a search of 200 trials, 16 at once


@contextmanager
def opened_run(root: str) -> Iterator[OpenRun]:
    description = RunDescription(
        id="run",
        name="run",
        kind="search",
        description=None,
        metric="score",
        direction="max",
        params=None,
        seed=1,
        secrets=(),
        facts={"request": {"search": {}}},
    )
    opened = open_run(root, description, "error")
    try:
        yield opened
    finally:
        opened.owner.release()


def source_of(opened: OpenRun, pruner: Any, notes: list[str], **fields: Any) -> StudySource:
    search = SearchSettings(
        space=SPACE, algorithm="random", pruner=pruner, num_trials=200, **fields
    )
    return StudySource.create(opened, search, (), notes.append)


def end(opened: OpenRun, source: StudySource, trial: Trial, state: str, value: float = 0.0) -> None:
    fields = {"value": value, "metrics": {"score": value}} if state == "COMPLETE" else {}
    opened.record(TrialChanged(number=trial.number, state=TrialState(state), **fields))
    source.observe_end(trial)


def quality_of(trial: Trial) -> float:
    return float(trial.params["x"])


def simulate(
    root: str, pruner: Any, step_of: Callable[[int], int], num_reports: int = 16, at_once: int = 16
) -> tuple[list[Trial], dict[int, int], list[str]]:
    """Return the trials, the number of reports of each, and the notes."""
    notes: list[str] = []
    counts: dict[int, int] = {}
    draw = random.Random(0)
    with opened_run(root) as opened:
        source = source_of(opened, pruner, notes)
        running: list[Trial] = []
        while running or source.num_left:
            while len(running) < at_once and source.num_left:
                running.append(source.next())
                counts[running[-1].number] = 0
            trial = draw.choice(running)
            number = counts[trial.number]
            counts[trial.number] += 1
            score = quality_of(trial) * (1 - 0.5 ** (number + 1))
            stopped = source.observe_reports([(trial, step_of(number), {"score": score})])
            if stopped or counts[trial.number] == num_reports:
                running.remove(trial)
                end(opened, source, trial, "PRUNED" if stopped else "COMPLETE", score)
        return list(opened.run.trials), counts, notes


STEPS: dict[str, Callable[[int], int]] = {
    "from 0": lambda number: number,
    "from 1": lambda number: number + 1,
    "hundreds": lambda number: 100 * (number + 1),
    "thousands": lambda number: 10_000 * (number + 1),
}


@pytest.mark.parametrize("pruner", ["asha", "median"])
def test_named_pruners_do_the_same_whatever_the_steps_are(root: str, pruner: str) -> None:
    results = {}
    for name, step_of in STEPS.items():
        trials, counts, notes = simulate(f"{root}/{name}", pruner, step_of)
        assert not notes
        assert not [t for t in trials if t.state == "PRUNED" and counts[t.number] == 1]
        results[name] = [(str(t.state), counts[t.number]) for t in trials]
    assert results["from 0"] == results["from 1"] == results["hundreds"] == results["thousands"]
    states = [state for state, _ in results["hundreds"]]
    assert states.count("COMPLETE") >= 10
    assert states.count("PRUNED") >= 100


def test_asha_finds_the_best_at_large_steps(root: str) -> None:
    trials, counts, _ = simulate(root, "asha", STEPS["hundreds"])
    complete = [quality_of(t) for t in trials if t.state == "COMPLETE"]
    assert max(complete) > 0.98
    # The rungs are the second, the fifth and the seventeenth report.
    assert {counts[t.number] for t in trials if t.state == "PRUNED"} == {2, 5}


def test_grace_and_reduction_move_the_rungs(root: str) -> None:
    trials, counts, _ = simulate(
        root, {"asha": {"grace": 3, "reduction": 2}}, STEPS["hundreds"], num_reports=14
    )
    assert {counts[t.number] for t in trials if t.state == "PRUNED"} == {4, 7, 13}


def test_hyperband_by_name_stops_trials_with_a_maximum(root: str) -> None:
    pruner = {"hyperband": {"max_reports": 16}}
    trials, counts, _ = simulate(root, pruner, STEPS["hundreds"])
    stopped = {counts[t.number] for t in trials if t.state == "PRUNED"}
    assert stopped
    assert stopped <= {2, 4, 10}


def test_many_reports_of_one_look_are_judged_at_each_rung(root: str) -> None:
    """Quick epochs: the driver hears of 500 reports at once."""
    with opened_run(root) as opened:
        source = source_of(opened, "asha", [])
        trials = [source.next() for _ in range(12)]
        num_stopped = 0
        for trial in trials:
            reports = [(trial, s, {"score": quality_of(trial) * (s + 1)}) for s in range(500)]
            stopped = source.observe_reports(reports)
            earlier = [quality_of(t) for t in trials[: trial.number]]
            assert not (stopped and quality_of(trial) > max(earlier, default=0.0))
            num_stopped += len(stopped)
        assert num_stopped >= 4


def test_an_attempt_that_repeats_steps_counts_them_once(root: str) -> None:
    with opened_run(root) as opened:
        source = source_of(opened, {"asha": {"grace": 3}}, [])
        good, bad = source.next(), source.next()
        for step in (10, 20, 30, 40):
            source.observe_reports([(good, step, {"score": 9.0})])
        for step in (10, 20, 10, 20, 30):  # The executor was lost after the second report.
            assert source.observe_reports([(bad, step, {"score": 1.0})]) == []
        assert source.observe_reports([(bad, 40, {"score": 1.0})]) == [bad]


def test_a_resumed_search_goes_on_counting(root: str) -> None:
    with opened_run(root) as opened:
        source = source_of(opened, {"asha": {"grace": 3}}, [])
        good, bad = source.next(), source.next()
        for step in (10, 20, 30, 40):
            source.observe_reports([(good, step, {"score": 9.0})])
        for step in (10, 20, 30):
            source.observe_reports([(bad, step, {"score": 1.0})])
        opened.record(RunEnded(state=RunState.CANCELLED))
    opened = continue_run(f"{root}/run", reopen=True)
    source = source_of(opened, {"asha": {"grace": 3}}, [])
    bad = opened.run.trials[1]
    for step in (20, 30):  # From its checkpoint.
        assert source.observe_reports([(bad, step, {"score": 1.0})]) == []
    assert source.observe_reports([(bad, 40, {"score": 1.0})]) == [bad]
    opened.owner.release()


# ---- notes


def test_a_note_says_that_most_trials_end_at_their_first_report(root: str) -> None:
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1)
    _, _, notes = simulate(f"{root}/object", pruner, STEPS["hundreds"])
    assert len(notes) == 1
    assert "11 of the first 20 trials were stopped at their first report" in notes[0]
    assert "step 100" in notes[0]
    assert "pruner='asha', which counts reports" in notes[0]


def test_a_note_says_that_nothing_was_reported(root: str) -> None:
    notes: list[str] = []
    with opened_run(root) as opened:
        source = source_of(opened, "asha", notes)
        for _ in range(3):
            end(opened, source, source.next(), "COMPLETE", 0.5)
    assert len(notes) == 1
    assert "no report from trial 0" in notes[0]
    assert "Call context.report" in notes[0]


def test_a_note_says_that_another_metric_was_reported(root: str) -> None:
    notes: list[str] = []
    with opened_run(root) as opened:
        source = source_of(opened, "asha", notes)
        trial = source.next()
        source.observe_reports([(trial, 0, {"loss": 0.5})])
        end(opened, source, trial, "COMPLETE", 0.5)
    assert len(notes) == 1
    assert "no value of 'score' from trial 0, which reported loss" in notes[0]


# ---- repeats and several metrics


def test_a_configuration_counts_as_failed_if_a_repeat_has_failed(root: str) -> None:
    with opened_run(root) as opened:
        source = source_of(opened, None, [], repeats=3)
        trials = [source.next() for _ in range(9)]
        states = ["COMPLETE", "INVALID", "INVALID"] + ["COMPLETE"] * 3
        states += ["COMPLETE", "COMPLETE", "FAILED"]
        for trial, state in zip(trials, states, strict=True):
            end(opened, source, trial, state, 0.99 if trial.number < 3 else 0.95)
        told = source._study._study.get_trials(deepcopy=False)
        assert [t.state.name for t in told] == ["FAIL", "COMPLETE", "FAIL"]
        assert told[1].value == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"algorithm": "cmaes"}, "algorithm is 'cmaes'.*CMA-ES optimizes one metric only"),
        (
            {"algorithm": optuna.samplers.CmaEsSampler()},
            "algorithm is .*CmaEsSampler.*CMA-ES optimizes one metric only",
        ),
        ({"patience": 3}, "patience is 3.*better in another metric"),
        ({"pruner": optuna.pruners.MedianPruner()}, "MedianPruner.*compare one metric only"),
    ],
)
def test_settings_for_one_metric_are_refused_with_several(
    fields: dict[str, Any], message: str
) -> None:
    search = SearchSettings(**{"space": SPACE, "num_trials": 3, **fields})
    with pytest.raises(ConfigError, match=message):
        search.check(["score", "latency"], None)
    search.check(["score"], None)


def test_large_seeds_and_whole_numbers_of_numpy_are_taken(root: str) -> None:
    search = SearchSettings(space=SPACE, num_trials=np.int64(50), repeats=np.int32(2))
    search.check(["score"], None)
    assert {type(search.num_trials), type(search.repeats)} == {int}
    for algorithm in ("random", "tpe", "nsga2", "qmc", "cmaes"):
        description = RunDescription(
            id=algorithm,
            name="run",
            kind="search",
            description=None,
            metric="score",
            direction="max",
            params=None,
            seed=2**40,
            secrets=(),
            facts={"request": {"search": {}}},
        )
        opened = open_run(root, description, "error")
        settings = SearchSettings(space=SPACE, algorithm=algorithm, num_trials=2)
        source = StudySource.create(opened, settings, (), lambda line: None)
        assert 0.0 <= quality_of(source.next()) <= 1.0
        opened.owner.release()
