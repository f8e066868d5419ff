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

    def __init__(
        self, direction: str = "max", seed: int = 1, num_trials: int | None = None, **fields: Any
    ) -> None:
        self.population = Population(settings_of(**fields), direction, seed)
        self.trials: list[Trial] = []
        self.num_trials = num_trials

    def start(self) -> Trial | None:
        interval = self.population.next(self.trials, self.num_trials)
        if interval is None:
            return None
        trial = Trial(len(self.trials), interval.params, "", parent=interval.parent)
        trial.member = interval.member
        self.trials.append(trial)
        return trial

    def begin(self) -> Trial:
        trial = self.start()
        assert trial is not None
        return trial

    def run(self, value: float | None) -> Trial:
        return ended(self.begin(), value)

    def generation(self, *values: float | None) -> list[Trial]:
        """Train an interval of as many members at once."""
        trials = [self.begin() for _ in values]
        for trial, value in zip(trials, values, strict=True):
            ended(trial, value)
        return trials


def ended(trial: Trial, value: float | None) -> Trial:
    trial.state = TrialState.FAILED if value is None else TrialState.COMPLETE
    trial.value = value
    return trial


# ---- exploit and explore


def test_worst_members_continue_from_the_best_and_others_from_themselves() -> None:
    simulation = Simulation(algorithm={"pbt": {"population": 8, "quantile": 0.25}})
    first = simulation.generation(*map(float, (3, 0, 7, 1, 6, 2, 5, 4)))
    assert [trial.member for trial in first] == [*range(8)]
    assert all(trial.parent is None for trial in first)
    second = simulation.generation(*[0.0] * 8)
    assert [trial.member for trial in second] == [*range(8)]
    for trial in second:
        if trial.member in (1, 3):  # The values 0 and 1 are replaced by 7 or 6.
            assert trial.parent in (2, 4)
        else:
            assert trial.parent == trial.member
            assert trial.params == first[trial.parent].params


def test_smaller_values_are_better_with_direction_min() -> None:
    simulation = Simulation(direction="min")
    simulation.generation(3.0, 0.0, 7.0, 1.0)
    assert [trial.parent for trial in simulation.generation(*[0.0] * 4)] == [0, 1, 1, 3]


def test_member_is_compared_with_the_latest_value_of_each_other_member() -> None:
    """A member does not wait for the others: it is compared with those that have a value."""
    simulation = Simulation()
    first = [simulation.begin() for _ in range(4)]
    ended(first[0], 1.0)
    again = simulation.begin()
    assert (again.member, again.parent) == (0, 0)  # There is no other yet.
    ended(first[1], 9.0)
    assert simulation.begin().parent == 1
    ended(again, 2.0)
    third = simulation.begin()
    assert (third.member, third.parent) == (0, 1)  # 2 in its second interval, 9 in a first one.
    ended(first[2], 0.5)
    assert simulation.begin().parent == 1  # The 2 of member 0 is better, but not the best.


def test_fast_member_waits_and_is_replaced_like_any_other() -> None:
    """A member that is the worst takes no intervals of others, however fast it is."""
    simulation = Simulation(num_trials=24)
    slow = [simulation.begin() for _ in range(4)]
    for _ in range(3):
        ended(simulation.trials[-1] if len(simulation.trials) > 4 else slow[0], 0.0)
        following = simulation.start()
    assert following is None  # It has trained three intervals, the others none.
    for trial in slow[1:]:
        ended(trial, 1.0)
    parents = {t.member: t.parent for t in simulation.generation(*[1.0] * 4)}
    assert parents[0] in (1, 2, 3)


@pytest.mark.parametrize(("num_trials", "shares"), [(12, [3, 3, 3, 3]), (14, [4, 4, 3, 3])])
def test_each_member_gets_its_share_of_the_trials(num_trials: int, shares: list[int]) -> None:
    """Member 0 is ten times as fast, and member 1 always fails at once."""
    simulation = Simulation(num_trials=num_trials)
    running: list[tuple[float, Trial]] = []
    now = 0.0
    while True:
        while trial := simulation.start() if len(simulation.trials) < num_trials else None:
            running.append((now + {0: 0.1, 1: 0.01}.get(trial.member or 0, 1.0), trial))
        if not running:
            break
        running.sort(key=lambda entry: entry[0])
        now, trial = running.pop(0)
        ended(trial, None if trial.member == 1 else float(trial.number))
    counts = Counter(trial.member for trial in simulation.trials)
    assert [counts[member] for member in range(4)] == shares
    failing = [trial for trial in simulation.trials if trial.member == 1]
    assert failing[0].parent is None
    assert all(simulation.trials[t.parent or 0].member != 1 for t in failing[1:])


def test_nothing_is_proposed_while_all_members_train() -> None:
    simulation = Simulation()
    trials = [simulation.begin() for _ in range(4)]
    assert simulation.start() is None
    ended(trials[2], 1.0)
    following = simulation.begin()
    assert (following.member, following.parent) == (2, 2)
    assert simulation.start() is None


def test_failed_member_continues_from_another_one() -> None:
    simulation = Simulation()
    first = simulation.generation(1.0, None, 3.0, 2.0)
    retry = simulation.begin()  # It has trained least.
    assert (retry.member, retry.parent) == (1, 2)
    assert retry.params != first[1].params
    # While it trains again, others continue from themselves.
    assert [simulation.begin().parent for _ in range(3)] == [0, 2, 3]


def test_member_that_fails_when_no_other_one_is_good_continues_from_its_last_good_interval() -> (
    None
):
    simulation = Simulation()
    simulation.generation(1.0, 2.0, 3.0, 4.0)
    second = simulation.generation(None, None, None, None)
    assert [trial.member for trial in second] == [0, 1, 2, 3]
    third = simulation.generation(None, None, None, None)
    assert [trial.parent for trial in third] == [0, 1, 2, 3]


def test_members_that_fail_wait_for_the_first_checkpoint() -> None:
    simulation = Simulation()
    first = [simulation.begin() for _ in range(4)]
    for trial in first[:3]:
        ended(trial, None)
        assert simulation.start() is None
    ended(first[3], 1.0)
    retries = [simulation.begin() for _ in range(3)]
    assert [(trial.member, trial.parent) for trial in retries] == [(0, 3), (1, 3), (2, 3)]


def test_first_generation_that_fails_is_drawn_anew() -> None:
    simulation = Simulation()
    first = simulation.generation(*[None] * 4)
    again = simulation.begin()
    assert (again.member, again.parent) == (0, None)
    assert again.params not in [trial.params for trial in first]
    assert simulation.start() is None  # The others wait for it.
    ended(again, 1.0)
    assert [simulation.begin().parent for _ in range(3)] == [4, 4, 4]


@given(
    st.lists(st.none() | st.floats(-10, 10), min_size=20, max_size=40),
    st.integers(1, 4),
    st.integers(0, 99),
)
def test_population_never_stands_still_and_shares_its_trials(
    values: list[Any], num_slots: int, seed: int
) -> None:
    draw = random.Random(seed)
    simulation = Simulation(seed=seed, num_trials=len(values))
    running: list[Trial] = []
    while values or running:
        num_left = len(simulation.trials) < (simulation.num_trials or 0)
        trial = simulation.start() if num_left and len(running) < num_slots else None
        if trial is None:
            assert running, "nothing runs, and nothing is proposed"
            ended(running.pop(draw.randrange(len(running))), values.pop())
            continue
        assert trial.member not in {t.member for t in running}
        running.append(trial)
        assert SPACE.has(trial.params)
        if trial.parent is not None:
            assert simulation.trials[trial.parent].state == TrialState.COMPLETE
    counts = Counter(trial.member for trial in simulation.trials)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_explored_parameters_are_near_the_winner_or_new() -> None:
    simulation = Simulation(algorithm={"pbt": {"population": 4, "resample": 0.0}})
    firsts = simulation.generation(3.0, 0.0, 1.0, 2.0)
    explored = simulation.generation(1.0, 1.0)[1]
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
    # A factor that is smaller than half a step moves by a whole one.
    assert {Int(10, 20).perturb(12, 1.02, draw) for _ in range(20)} == {11, 13}
    assert {Float(10, 20, step=1).perturb(12.0, 1.02, draw) for _ in range(20)} == {11.0, 13.0}
    assert Categorical(["a", "b"]).perturb("a", 1.2, draw) == "a"


def test_values_between_the_steps_are_not_in_the_range() -> None:
    tenths = Float(0.1, 0.9, step=0.1)
    assert [tenths.has(number / 20) for number in range(1, 20)] == [False, *[True, False] * 9]


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
    source.observe_end(trial)


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
        source.observe_end(trial)
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
