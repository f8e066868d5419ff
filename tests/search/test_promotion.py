"""The rules by which paused trials go on, without Spark."""

import math
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.errors import ConfigError
from sparkdl.search.promotion import Hyperband, Promotion, promotion_of
from sparkdl.search.pruners import NamedPruner
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Float, Space

SPACE = Space.of({"x": Float(0.0, 1.0)})


def rule_of(name: str, direction: str = "max", **arguments: Any) -> Promotion:
    return promotion_of(NamedPruner.of({name: {"promote": True, **arguments}}), direction)


class Simulation:
    """Trials of a rule, some at once, whose values come in any order."""

    def __init__(self, rule: Promotion, values: list[float], at_once: int, seed: int) -> None:
        self.rule, self.values, self.at_once = rule, values, at_once
        self.draw = random.Random(seed)
        self.reached: Counter[int] = Counter()  # By the number of rungs that were passed.
        self.complete: list[int] = []
        self.dropped: list[int] = []
        self.num_begun = 0

    def next(self) -> int | None:
        if self.num_begun == len(self.values):
            self.rule.close()
        if promotable := self.rule.promotable():
            self.rule.promote(promotable[0])
            return promotable[0]
        if self.num_begun == len(self.values):
            return None
        self.rule.add(self.num_begun)
        self.num_begun += 1
        return self.num_begun - 1

    def run(self, failing: frozenset[int] = frozenset()) -> "Simulation":
        running: list[int] = []
        while True:
            while len(running) < self.at_once and (number := self.next()) is not None:
                running.append(number)
            self._drop()
            if not running:
                return self
            number = running.pop(self.draw.randrange(len(running)))
            if number in failing or not self.rule.rungs(number):
                self.complete += [] if number in failing else [number]
                self.rule.end(number, has_failed=number in failing)
            else:
                self.reached[self.rule.rungs(number)[0]] += 1
                if self.rule.reach(number, self.values[number]):
                    running.append(number)

    def _drop(self) -> None:
        for dropped in self.rule.trials_to_drop():
            self.rule.end(dropped)
            self.dropped.append(dropped)


def test_asha_lets_the_best_quarter_of_each_rung_go_on() -> None:
    values = [random.Random(seed).random() for seed in range(64)]
    rule = rule_of("asha", max_reports=64)
    simulation = Simulation(rule, values, at_once=4, seed=0).run()
    assert simulation.reached[1] == 64
    assert simulation.reached[4] >= 16 and simulation.reached[16] >= 4
    assert set(simulation.reached) == {1, 4, 16}
    best = values.index(max(values))
    assert best in simulation.complete
    assert not rule.promotable()


def test_place_of_a_failed_trial_is_that_of_the_next_best() -> None:
    rule = rule_of("asha", max_reports=8)
    for number in range(5):
        rule.add(number)
    assert not any(rule.reach(number, 0.1 * number) for number in range(3))
    assert rule.reach(3, 0.9) is True
    assert rule.promotable() == []
    rule.end(3, has_failed=True)
    assert rule.promotable() == [2]
    rule.promote(2)
    rule.end(2)  # With a result, which keeps its place.
    assert rule.promotable() == []


def test_asha_promotes_a_trial_later_when_enough_others_have_come() -> None:
    rule = rule_of("asha", "min", reduction=2, max_reports=8)
    for number in range(4):
        rule.add(number)
    assert rule.reach(0, 0.5) is False  # One of one is no half.
    assert rule.promotable() == []
    assert rule.reach(1, 0.9) is False
    assert rule.promotable() == [0]  # One of two.
    rule.promote(0)
    assert rule.rungs(0) == (2, 4)
    assert rule.reach(2, 0.1) is True  # Goes on without a pause.
    assert rule.reach(0, 0.4) is False
    assert rule.reach(2, 0.2) is True
    assert rule.promotable() == []  # 0 is the second of two at the second rung.
    rule.end(2)
    assert rule.promotable() == []


@pytest.mark.parametrize("num_trials", [1, 3, 20])
def test_asha_of_few_trials_trains_one_to_the_end(num_trials: int) -> None:
    values = [random.Random(seed).random() for seed in range(num_trials)]
    simulation = Simulation(rule_of("asha", max_reports=64), values, at_once=2, seed=0).run()
    assert values.index(max(values)) in simulation.complete


def test_higher_rungs_come_first() -> None:
    rule = rule_of("asha", reduction=2, max_reports=8)
    for number in range(8):
        rule.add(number)
    assert [rule.reach(n, v) for n, v in ((0, 0.9), (1, 0.2))] == [False, False]
    rule.promote(0)
    assert rule.reach(0, 0.9) is False
    assert [rule.reach(n, v) for n, v in ((2, 0.3), (3, 0.4))] == [False, True]
    assert rule.reach(3, 0.1) is False
    assert rule.promotable() == [0]
    assert [rule.reach(n, v) for n, v in ((4, 0.25), (5, 0.1), (6, 0.05))] == [False] * 3
    assert rule.promotable() == [0, 2]


@given(
    st.lists(st.floats(allow_nan=True), min_size=1, max_size=40),
    st.integers(1, 6),
    st.integers(0, 99),
    st.sampled_from([("asha", {"max_reports": 20, "reduction": 3}), ("asha", {"reduction": 2})]),
    st.sets(st.integers(0, 39)),
)
def test_every_trial_ends_or_pauses_and_none_climbs_twice(
    values: list[float], at_once: int, seed: int, which: Any, failing: set[int]
) -> None:
    name, arguments = which
    rule = rule_of(name, **arguments)
    if "max_reports" not in arguments:
        values = values[:8]
    simulation = Simulation(rule, values, at_once, seed).run(frozenset(failing))
    assert simulation.num_begun == len(values)
    assert len(set(simulation.complete)) == len(simulation.complete)
    for number in range(len(values)):
        assert number in simulation.complete or rule.is_paused(number) or number in failing
    assert all(math.isfinite(values[number]) for number in simulation.complete)


def test_brackets_are_those_of_the_paper() -> None:
    """Table 1 of Li et al. (2017): R = 81 and eta = 3."""
    rule = rule_of("hyperband", max_reports=81)
    assert isinstance(rule, Hyperband)
    assert rule.plan == [
        (81, (1, 3, 9, 27)),
        (34, (3, 9, 27)),
        (15, (9, 27)),
        (8, (27,)),
        (5, ()),
    ]
    one = rule_of("hyperband", max_reports=81, brackets=1)
    assert isinstance(one, Hyperband)
    assert one.plan == rule.plan[:1]
    odd = rule_of("hyperband", max_reports=100, grace=2)
    assert isinstance(odd, Hyperband)
    assert odd.plan == [(27, (3, 11, 33)), (12, (11, 33)), (6, (33,)), (4, ())]


@pytest.mark.parametrize("at_once", [1, 5, 200])
def test_hyperband_halves_each_bracket(at_once: int) -> None:
    values = [random.Random(seed).random() for seed in range(143)]
    rule = rule_of("hyperband", max_reports=81)
    simulation = Simulation(rule, values, at_once, seed=1).run()
    assert simulation.reached == {1: 81, 3: 27 + 34, 9: 9 + 11 + 15, 27: 3 + 3 + 5 + 8}
    assert len(simulation.complete) == 1 + 1 + 1 + 2 + 5
    # The best of a whole bracket goes on, in whatever order its trials have come.
    assert values.index(max(values[:81])) in simulation.complete
    assert sorted(simulation.complete + simulation.dropped) == list(range(143))


def test_hyperband_waits_for_the_last_trial_of_a_rung() -> None:
    rule = rule_of("hyperband", max_reports=9, brackets=1)
    for number in range(9):
        rule.add(number)
    assert not any(rule.reach(number, float(number)) for number in range(8))
    assert (rule.promotable(), rule.trials_to_drop()) == ([], [])
    rule.add(9)  # Of the next bracket, which does not wait.
    assert rule.reach(9, 100.0) is False
    rule.end(8)  # It has failed.
    assert rule.promotable() == [7, 6, 5]
    assert rule.trials_to_drop() == [4, 3, 2, 1, 0]


def test_hyperband_begins_a_new_bracket_after_one_that_was_closed() -> None:
    rule = rule_of("hyperband", max_reports=9)
    rule.add(0)
    assert rule.rungs(0) == (1, 3)
    rule.close()
    rule.add(1)
    assert rule.rungs(1) == (3,)


@settings(max_examples=50)
@given(
    st.lists(st.floats(allow_nan=True), min_size=1, max_size=60),
    st.integers(1, 6),
    st.integers(0, 99),
    st.sets(st.integers(0, 59)),
)
def test_small_last_bracket_and_failures_leave_nobody_waiting(
    values: list[float], at_once: int, seed: int, failing: set[int]
) -> None:
    rule = rule_of("hyperband", max_reports=9)
    simulation = Simulation(rule, values, at_once, seed).run(frozenset(failing))
    for number in range(len(values)):
        assert (number in simulation.complete) or number in {*simulation.dropped, *failing}


# ---- arguments


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pruner": {"asha": {"promote": 1}}}, "'promote' of pruner 'asha' is 1; expected True"),
        ({"pruner": {"median": {"promote": True}}}, "cannot promote trials; asha and hyperband"),
        ({"pruner": {"asha": {"max_reports": 9}}}, "needs {'promote': True}"),
        ({"pruner": {"hyperband": {"brackets": 1}}}, "needs {'promote': True}"),
        ({"pruner": {"hyperband": {"promote": True}}}, "needs 'max_reports'"),
        ({"pruner": {"asha": {"promote": True, "eta": 3}}}, "Did you mean 'reduction'"),
        (
            {"pruner": {"asha": {"promote": True, "max_reports": 4, "grace": 4}}},
            "'max_reports' of pruner 'asha' is 4, and its 'grace' is 4",
        ),
        (
            {"pruner": {"hyperband": {"promote": True, "max_reports": 5, "grace": 2}}},
            "would pause. Set max_reports to at least 6",
        ),
        ({"space": None}, "space is None, but the pruner promotes trials"),
        ({"repeats": 2}, "repeats is 2, but the pruner promotes trials"),
        ({"algorithm": "pbt"}, "algorithm is 'pbt', which replaces bad members itself"),
        ({"algorithm": "bohb", "pruner": "asha"}, "algorithm='bohb' learns from trials that pause"),
    ],
)
def test_invalid_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"space": SPACE, "num_trials": 9, "pruner": {"asha": {"promote": True}}}
    with pytest.raises(ConfigError, match=message):
        SearchSettings(**{**given, **fields}).check(["m"], None)
    SearchSettings(**given).check(["m"], None)


@pytest.mark.parametrize(
    ("arguments", "rungs"),
    [
        ({"max_reports": 64}, (1, 4, 16)),
        ({"max_reports": 65}, (1, 4, 16, 64)),
        ({"max_reports": 64, "grace": 2, "reduction": 3}, (2, 6, 18, 54)),
        ({"max_reports": 54, "grace": 2, "reduction": 3}, (2, 6, 18)),
        ({"max_reports": 2}, (1,)),
    ],
)
def test_rungs_of_asha_begin_with_the_grace_and_end_before_the_last_report(
    arguments: dict[str, int], rungs: tuple[int, ...]
) -> None:
    rule = rule_of("asha", **arguments)
    rule.add(0)
    assert rule.rungs(0) == rungs
    # The rungs of a trial without a known end are those of one that reports very often.
    del arguments["max_reports"]
    endless = rule_of("asha", **arguments)
    endless.add(0)
    assert endless.rungs(0)[: len(rungs)] == rungs


@pytest.mark.parametrize("reduction", [2, 3, 4])
@pytest.mark.parametrize("most", [8, 9, 27, 81, 100])
@pytest.mark.parametrize("grace", [1, 2])
def test_brackets_are_those_of_the_algorithm(reduction: int, most: int, grace: int) -> None:
    """Li et al. (2017), algorithm 1, with R = most / grace."""
    rule = rule_of("hyperband", max_reports=most, grace=grace, reduction=reduction)
    assert isinstance(rule, Hyperband)
    s_max = max(s for s in range(9) if reduction**s <= most / grace)
    expected = [
        (
            math.ceil((s_max + 1) * reduction**s / (s + 1)),
            tuple(math.floor(most / reduction ** (s - i)) for i in range(s)),
        )
        for s in range(s_max, -1, -1)
    ]
    assert rule.plan == expected
