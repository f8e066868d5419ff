"""A search of a finite space tries no point twice, and ends when it has tried all."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.runs import Trial
from sparkdl.runs.events import CommandHandled, TrialChanged
from sparkdl.runs.opening import OpenRun, RunDescription, continue_run, open_run
from sparkdl.runs.states import TrialState
from sparkdl.search.settings import ALGORITHMS, SearchSettings
from sparkdl.search.space.points import UntriedPoints
from sparkdl.search.space.spaces import Float, Int, Space
from sparkdl.search.study import Study
from sparkdl.search.study_source import StudySource

SPACE = Space.of({"x": Float(0, 0.4, step=0.1), "n": Int(1, 2), "kind": ["a", [1, 2]]})
KNOWN = [name for name in ALGORITHMS if name != "gp" or find_spec("torch")]


@contextmanager
def opened_run(root: str) -> Iterator[OpenRun]:
    names = {"id": "run", "name": "run", "kind": "search", "description": None}
    goal: dict[str, Any] = {"metric": "score", "direction": "max", "params": None, "seed": 1}
    facts = {"request": {"search": {}}}
    opened = open_run(root, RunDescription(**names, **goal, secrets=(), facts=facts), "error")
    try:
        yield opened
    finally:
        opened.owner.release()


def source_of(opened: OpenRun, notes: list[str] | None = None, **fields: Any) -> StudySource:
    search = SearchSettings(**{"space": SPACE, "num_trials": 100, **fields})
    return StudySource.create(opened, search, (), (notes if notes is not None else []).append)


def end(opened: OpenRun, source: StudySource, trial: Trial) -> None:
    state = TrialState.FAILED if trial.number % 5 == 3 else TrialState.COMPLETE
    score = trial.params["x"] - trial.params["n"]
    told = {"value": score, "metrics": {"score": score}} if state == TrialState.COMPLETE else {}
    opened.record(TrialChanged(number=trial.number, state=state, **told))
    source.observe_end(trial)


def run_all(opened: OpenRun, source: StudySource, draw: random.Random, most: int = 1000) -> None:
    """Create trials, of which up to four run at once, and end them in any order."""
    running = [trial for trial in opened.run.trials if not trial.state.is_final]
    while (source.num_left and most) or running:
        while source.num_left and most and len(running) < 4:
            running.append(source.next())
            most -= 1
        if most:
            end(opened, source, running.pop(draw.randrange(len(running))))
        else:
            return


def distinct(opened: OpenRun) -> int:
    return len({str(trial.params) for trial in opened.run.trials})


@pytest.mark.parametrize("algorithm", [*KNOWN, "object"])
def test_each_point_is_tried_once_also_after_a_resume(root: str, algorithm: str) -> None:
    fields: dict[str, Any] = {"algorithm": algorithm}
    if algorithm == "object":
        fields["algorithm"] = optuna.samplers.TPESampler(seed=1)
    notes: list[str] = []
    draw = random.Random(3)
    with opened_run(root) as opened:
        run_all(opened, source_of(opened, notes, **fields), draw, most=11)
    assert notes == [
        "Note: the space has 20 points, fewer than num_trials=100. Each is tried once, and the "
        "search ends with the last one."
    ]
    opened = continue_run(f"{root}/run", reopen=True)
    source = source_of(opened, **fields)
    assert source.num_left == 9
    run_all(opened, source, draw)
    opened.owner.release()
    assert len(opened.run.trials) == distinct(opened) == 20
    assert all(trial.state.is_final for trial in opened.run.trials)


def test_fewer_trials_than_points_and_repeats(root: str) -> None:
    with opened_run(root) as opened:
        source = source_of(opened, algorithm="random", num_trials=19, repeats=2)
        assert source.num_left == 38
        run_all(opened, source, random.Random(1))
        assert (len(opened.run.trials), distinct(opened)) == (38, 19)


def test_initial_params_are_completed_to_different_points(root: str) -> None:
    """Rows that were tried, or all of whose points were tried, are left out."""
    rows = [{"x": 0.1, "n": 1, "kind": "a"}] * 2 + [{"n": 2, "x": 0.3}] * 3 + [{"n": 1}]
    with opened_run(root) as opened:
        source = source_of(opened, algorithm="tpe", initial_params=rows)
        run_all(opened, source, random.Random(1))
        params = [trial.params for trial in opened.run.trials]
    assert params[0] == rows[0]
    assert [(p["x"], p["n"]) for p in params[1:3]] == [(0.3, 2), (0.3, 2)]
    assert params[3]["n"] == 1
    assert len(params) == distinct(opened) == 20


def test_point_that_the_user_enqueues_is_tried_again(root: str) -> None:
    command = CommandHandled(action="enqueue", arguments={}, by="ann@laptop", pid=1)
    with opened_run(root) as opened:
        source = source_of(opened, algorithm="random", num_trials=None, patience=99)
        first = source.next()
        trials, _ = source.enqueue(first.params, command)
        assert trials[0].params == first.params
        assert source.num_left == 19
        run_all(opened, source, random.Random(1))
        assert (len(opened.run.trials), distinct(opened)) == (21, 20)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize(
    ("make", "fixed"),
    [
        (lambda: optuna.samplers.GridSampler({"x": [0.1], "n": [1], "kind": ["a", "[1, 2]"]}), 2),
        (lambda: optuna.samplers.PartialFixedSampler({"n": 2}, optuna.samplers.TPESampler()), 10),
    ],
)
def test_sampler_with_rules_of_its_own_is_not_corrected(root: str, make: Any, fixed: int) -> None:
    with opened_run(root) as opened:
        source = source_of(opened, algorithm=make(), num_trials=30)
        assert source.num_left == 30
        run_all(opened, source, random.Random(1))
        assert distinct(opened) <= fixed


@pytest.mark.parametrize("algorithm", [n for n in KNOWN if n not in ("grid", "gp")])
def test_proposals_are_those_of_optuna_until_one_repeats(algorithm: str) -> None:
    """None repeats here, as the space has 10**6 points."""
    names = ("a", "b")
    finite = Space.of({name: Float(0, 1, step=0.001) for name in names})
    assert finite.num_points() == 1001**2
    corrected = Study(SearchSettings(space=finite, algorithm=algorithm), {"m": "max"}, 5)
    plain = Study(SearchSettings(space=finite, algorithm=algorithm), {"m": "max"}, 5)
    plain._study.sampler = plain._study.sampler._sampler
    for number in range(20):
        params = corrected.ask(number)
        assert plain.ask(number) == params
        for study in (corrected, plain):
            study.tell(number, TrialState.COMPLETE, [params["a"] - params["b"]])


def test_continuous_space_is_not_limited() -> None:
    search = SearchSettings(space=Space.of({"x": Float(0, 1), "n": [1]}), num_trials=7)
    assert (search.num_points, search.max_configurations) == (None, 7)
    assert Study(search, {"m": "max"}, 1).num_untried is None
    assert SearchSettings(space=SPACE, patience=3).is_open_ended
    assert SearchSettings(space=SPACE, patience=3).max_configurations == 20
    assert not SearchSettings(space=SPACE, algorithm="grid").is_open_ended


@given(
    st.sets(st.integers(0, 19)), st.sets(st.sampled_from(["x", "n", "kind"])), st.integers(0, 19)
)
def test_untried_points_are_the_difference(tried: set[int], names: set[str], like: int) -> None:
    every = [*SPACE.points()]
    points = UntriedPoints(SPACE, size=20)
    for index in tried:
        points.remove(every[index])
    fixed = {name: every[like][name] for name in names}
    left = [
        point
        for index, point in enumerate(every)
        if index not in tried and fixed.items() <= point.items()
    ]
    assert points.num_left(fixed) == len(left)
    assert [point for point in every if points.has(point)] == [
        point for index, point in enumerate(every) if index not in tried
    ]
    drawn = points.draw(random.Random(like), fixed)
    assert (drawn in left) if left else (drawn is None)


def test_sums_of_steps_are_the_same_points() -> None:
    points = UntriedPoints(Space.of({"x": Float(0, 1, step=0.1)}), size=11)
    points.remove({"x": 0.1 + 0.2})
    assert not points.has({"x": 0.3})
    assert points.num_left() == 10
