"""Population based training: its rules, without Spark."""

import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl import checkpoints
from sparkdl.errors import ConfigError, FunctionError
from sparkdl.runs import Trial, TrialState
from sparkdl.runs.events import CommandHandled, TrialChanged
from sparkdl.runs.opening import OpenRun, RunDescription, continue_run, open_run
from sparkdl.search.interval_sources import IntervalSource
from sparkdl.search.population import Population, first_intervals
from sparkdl.search.population_settings import PopulationSettings
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.dimensions import Categorical, Dimension, Float, Int
from sparkdl.search.space.spaces import Space
from sparkdl.search.trial_source import RequestRefused

SPACE = Space.of({"rate": Float(1e-4, 1.0, log=True), "size": Int(8, 64), "kind": ["a", "b"]})


def settings_of(**fields: Any) -> SearchSettings:
    given: dict[str, Any] = {"algorithm": {"pbt": {"population": 4}}, "num_trials": 12}
    return SearchSettings(**{"space": SPACE, **given, **fields})


class Simulation:
    """The trials of a population, in the order in which they are created."""

    def __init__(self, direction: str = "max", seed: int = 1, **fields: Any) -> None:
        self.population = Population(settings_of(**fields), direction, seed)
        self.trials: list[Trial] = []

    def start(self) -> Trial | None:
        interval = self.population.next(self.trials)
        if interval is None:
            return None
        trial = Trial(len(self.trials), interval.params, "", parent=interval.parent)
        trial.member = interval.member
        self.trials.append(trial)
        return trial

    def run(self, value: float | None) -> Trial:
        trial = self.start()
        assert trial is not None
        return ended(trial, value)


def ended(trial: Trial, value: float | None) -> Trial:
    trial.state = TrialState.FAILED if value is None else TrialState.COMPLETE
    trial.value = value
    return trial


# ---- exploit and explore


def test_worst_members_continue_from_the_best_and_others_from_themselves() -> None:
    simulation = Simulation(algorithm={"pbt": {"population": 8, "quantile": 0.25}})
    first = [simulation.run(float(value)) for value in (3, 0, 7, 1, 6, 2, 5, 4)]
    assert [trial.member for trial in first] == [*range(8)]
    assert all(trial.parent is None for trial in first)
    second = [simulation.run(0.0) for _ in range(8)]
    assert [trial.member for trial in second] == [*range(8)]
    for trial in second:
        if trial.member in (1, 3):  # The values 0 and 1 are replaced by 7 or 6.
            assert trial.parent in (2, 4)
        else:
            assert trial.parent == trial.member
            assert trial.params == first[trial.parent].params


def test_smaller_values_are_better_with_direction_min() -> None:
    simulation = Simulation(direction="min")
    for value in (3.0, 0.0, 7.0, 1.0):
        simulation.run(value)
    parents = [simulation.run(0.0).parent for _ in range(4)]
    assert parents == [0, 1, 1, 3]


def test_member_is_compared_with_the_same_generation_only() -> None:
    """A member that has trained longer has no advantage."""
    simulation = Simulation()
    first = [simulation.start() for _ in range(4)]
    for trial, value in zip(first[:3], (1.0, 2.0, 3.0), strict=True):
        ended(trial, value)  # type: ignore[arg-type]
    # With three results no quarter is a member.
    assert [simulation.run(100.0).parent for _ in range(3)] == [0, 1, 2]
    ended(first[3], 0.5)  # type: ignore[arg-type]
    last = simulation.start()
    assert (last.member, last.parent) == (3, 2)  # type: ignore[union-attr]


def test_nothing_is_proposed_while_all_members_train() -> None:
    simulation = Simulation()
    trials = [simulation.start() for _ in range(4)]
    assert None not in trials
    assert simulation.start() is None
    ended(trials[2], 1.0)  # type: ignore[arg-type]
    following = simulation.start()
    assert following is not None and (following.member, following.parent) == (2, 2)
    assert simulation.start() is None


def test_failed_member_continues_from_another_one() -> None:
    simulation = Simulation()
    for value in (1.0, None, 3.0, 2.0):
        simulation.run(value)
    parents = [simulation.run(None).parent for _ in range(4)]
    assert parents[1] == 2
    assert [parents[0], *parents[2:]] == [0, 2, 3]
    # All have failed: each tries again from where it began.
    again = [simulation.run(1.0) for _ in range(4)]
    assert [trial.parent for trial in again] == parents


def test_first_generation_that_fails_is_drawn_near_itself() -> None:
    simulation = Simulation()
    for _ in range(4):
        simulation.run(None)
    again = [simulation.run(1.0) for _ in range(4)]
    assert [trial.parent for trial in again] == [None] * 4
    assert all(t.params != simulation.trials[i].params for i, t in enumerate(again))


@given(st.lists(st.none() | st.floats(-10, 10), min_size=20, max_size=40), st.integers(0, 99))
def test_lines_of_descent_are_of_one_generation_each(values: list[Any], seed: int) -> None:
    """A parent has trained as long as the member that it replaces, unless intervals failed."""
    draw = random.Random(seed)
    simulation = Simulation(seed=seed)
    running: list[Trial] = []
    generation: dict[int, int] = {}
    while values:
        trial = simulation.start() if len(running) < 3 else None
        if trial is not None:
            running.append(trial)
            counts = Counter(t.member for t in simulation.trials[:-1])
            before = counts[trial.member]
            busy = {t.member for t in running[:-1]}
            assert before == min(counts[m] for m in range(4) if m not in busy)
            if trial.parent is not None:
                parent = simulation.trials[trial.parent]
                assert parent.state == TrialState.COMPLETE
                assert generation[trial.parent] <= before
            generation[trial.number] = before + 1
            assert SPACE.has(trial.params)
        else:
            ended(running.pop(draw.randrange(len(running))), values.pop())


def test_explored_parameters_are_near_the_winner_or_new() -> None:
    simulation = Simulation(algorithm={"pbt": {"population": 4, "resample": 0.0}})
    firsts = [simulation.run(value) for value in (3.0, 0.0, 1.0, 2.0)]
    simulation.run(1.0)
    explored = simulation.run(1.0)
    winner = firsts[0].params
    assert explored.parent == 0
    assert explored.params["rate"] / winner["rate"] == pytest.approx(1.2) or explored.params[
        "rate"
    ] / winner["rate"] == pytest.approx(1 / 1.2)
    assert explored.params["kind"] == winner["kind"]
    assert explored.params["size"] in (
        min(64, round(winner["size"] * 1.2)),
        max(8, round(winner["size"] / 1.2)),
    )


def test_constraints_and_initial_params_hold() -> None:
    fields: dict[str, Any] = {
        "constraints": ["size * rate < 1"],
        "initial_params": [{"kind": "b", "size": 64}, {"kind": "a"}],
    }
    simulation = Simulation(**fields)
    draw = random.Random(0)
    for _ in range(60):
        simulation.run(draw.random())
    params = [trial.params for trial in simulation.trials]
    assert all(p["size"] * p["rate"] < 1 for p in params)
    assert (params[0]["kind"], params[0]["size"], params[1]["kind"]) == ("b", 64, "a")
    assert first_intervals(settings_of(**fields), 1, 9) == params[:4]


@pytest.mark.parametrize(
    "dimension",
    [
        *(Float(1e-4, 1, log=True), Float(0, 1), Float(-3, 3), Float(0, 1, step=0.1)),
        Float(0.5, 0.999, log=True, mirror=1),
        *(Int(1, 4), Int(0, 100), Int(-5, 5, step=2), Int(8, 512, log=True)),
    ],
)
def test_perturbed_numbers_stay_in_the_range_and_go_both_ways(dimension: Dimension) -> None:
    draw = random.Random(0)
    ways = set()
    for _ in range(200):
        before = dimension.draw(draw)
        after = dimension.perturb(before, 1.2, draw)
        assert dimension.has(dimension.value(after))
        ways.add((after > before) - (after < before))
    assert {-1, 1} <= ways


def test_zero_and_small_whole_numbers_can_be_left() -> None:
    draw = random.Random(0)
    assert {Float(-1, 1).perturb(0.0, 1.2, draw) for _ in range(20)} == {-0.2, 0.2}
    assert {Int(0, 9).perturb(0, 1.2, draw) for _ in range(20)} == {0, 1}
    assert {Int(1, 9).perturb(2, 1.2, draw) for _ in range(20)} == {1, 3}
    assert Categorical(["a", "b"]).perturb("a", 1.2, draw) == "a"


# ---- the source, and what it keeps


def opened_run(root: str) -> OpenRun:
    names = {"id": "run", "name": "run", "kind": "search", "description": None}
    goal: dict[str, Any] = {"metric": "score", "direction": "max", "params": None, "seed": 1}
    facts = {"request": {"search": {}}}
    return open_run(root, RunDescription(**names, **goal, secrets=(), facts=facts), "error")


def end(opened: OpenRun, source: IntervalSource, trial: Trial, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir(exist_ok=True)
    (folder / "state").write_text("1")
    checkpoints.commit(str(folder), trial.path, 0, {}, 0)
    value = trial.params["rate"]
    state = TrialState.COMPLETE
    opened.record(TrialChanged(number=trial.number, state=state, value=value))
    source.ended(trial)


def test_resumed_population_continues_as_if_it_had_not_stopped(root: str, tmp_path: Path) -> None:
    opened = opened_run(f"{root}/whole")
    source = IntervalSource(opened, settings_of())
    while source.num_left:
        end(opened, source, source.next(), tmp_path)
    opened.owner.release()
    whole = [(t.member, t.parent, t.params, t.seed) for t in opened.run.trials]
    assert any(parent != number for _, parent, _, number in whole[4:])

    opened = opened_run(root)
    source = IntervalSource(opened, settings_of())
    for _ in range(7):
        end(opened, source, source.next(), tmp_path)
    opened.owner.release()
    opened = continue_run(f"{root}/run", reopen=True)
    source = IntervalSource(opened, settings_of())
    assert source.num_left == 5
    for _ in range(5):
        end(opened, source, source.next(), tmp_path)
    opened.owner.release()
    assert [(t.member, t.parent, t.params, t.seed) for t in opened.run.trials] == whole


def test_trial_without_a_checkpoint_and_enqueue_are_refused(root: str) -> None:
    opened = opened_run(root)
    source = IntervalSource(opened, settings_of())
    trial = source.next()
    opened.record(TrialChanged(number=0, state=TrialState.COMPLETE, value=1.0))
    with pytest.raises(FunctionError, match="trial 0 has committed no checkpoint"):
        source.ended(trial)
    command = CommandHandled(action="enqueue", arguments={}, by="ann@laptop", pid=1)
    with pytest.raises(RequestRefused, match="continue from one another"):
        source.enqueue({}, command)
    opened.owner.release()


def test_replay_follows_its_schedule_and_stops_at_a_failure(root: str, tmp_path: Path) -> None:
    schedule = [{"params": {"rate": rate}, "seed": seed} for rate, seed in ((0.5, 7), (0.25, 9))]
    algorithm = json.loads(json.dumps({"replay": {"run": "a", "trial": 3, "schedule": schedule}}))
    opened = opened_run(root)
    source = IntervalSource(opened, settings_of(algorithm=algorithm, num_trials=2))
    first = source.next()
    assert not source.is_ready
    end(opened, source, first, tmp_path)
    assert source.is_ready
    second = source.next()
    assert [(t.params, t.seed, t.parent) for t in (first, second)] == [
        ({"rate": 0.5}, 7, None),
        ({"rate": 0.25}, 9, 0),
    ]
    assert source.num_left == 0
    opened.owner.release()


# ---- validation


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"algorithm": "PBT"}, "mean 'pbt'"),
        ({"algorithm": "population"}, "mean 'pbt'"),
        ({"algorithm": {"pbt": {"population_size": 4}}}, "Did you mean 'population'"),
        ({"algorithm": {"pbt": {"population": 1}}}, "at least 2"),
        ({"algorithm": {"pbt": {"population": 3}}}, "less than one of 3 members"),
        ({"algorithm": {"pbt": {"quantile": 0.6}}}, "'quantile' of algorithm 'pbt' is 0.6"),
        ({"algorithm": {"pbt": {"resample": "x"}}}, "'resample' of algorithm 'pbt' is 'x'"),
        ({"algorithm": {"pbt": {"factor": math.nan}}}, "expected a number from 1 to 10"),
        ({"algorithm": {"tpe": {}}}, "expected a name, an Optuna sampler, or a dict"),
        ({"algorithm": {"pbt": 4}}, "expected a name, an Optuna sampler, or a dict"),
        ({"pruner": "asha"}, "pruner is 'asha', but algorithm is 'pbt'"),
        ({"repeats": 2}, "repeats is 2, but"),
        ({"space": None}, "space is None, but algorithm is 'pbt', which can perturb only a dict"),
        ({"num_trials": 3}, "whose population has 4 members"),
    ],
)
def test_invalid_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_of(**fields).check(["m"], None)


def test_several_metrics_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"metric is \['m', 'n'\], but algorithm is 'pbt'"):
        settings_of().check(["m", "n"], None)


def test_settings_round_trip_through_json() -> None:
    settings_of().check(["m"], None)
    stored = json.loads(json.dumps(settings_of().to_dict()))
    assert stored["algorithm"] == {"pbt": {"population": 4}}
    assert PopulationSettings.of("pbt").population == 8
    assert settings_of(algorithm="pbt").max_configurations == 12
    assert settings_of(space=Space.of({"x": [1, 2]}), num_trials=40).max_configurations == 40
