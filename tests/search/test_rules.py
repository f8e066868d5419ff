"""The rules of a search, without Spark: what is refused, what ends it, what the sampler hears."""

import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.errors import ConfigError
from sparkdl.options import Options
from sparkdl.runner.stopping import Stop, Stopping
from sparkdl.runs import RunState, Trial, TrialState
from sparkdl.runs.idle_time import idle_sentence
from sparkdl.runs.opening import OpenRun, Wanted, continue_run, open_run
from sparkdl.runs.ranking import pareto_front
from sparkdl.search.settings import ALGORITHMS, Search
from sparkdl.search.space.spaces import Float, Int, Space
from sparkdl.search.study import Study
from sparkdl.search.study_source import Proposals

SPACE = Space.of({"x": Float(0.0, 1.0), "kind": ["a", "b"]})
UP = {"score": "max"}


# ---- what is refused


@pytest.mark.parametrize(
    ("fields", "metrics", "said"),
    [
        ({"algorithm": "TPEE"}, ["m"], "mean 'tpe'"),
        ({"algorithm": "bayesian"}, ["m"], "mean 'tpe'"),
        ({"algorithm": "Random Search"}, ["m"], "mean 'random'"),
        ({"pruner": "successive_halving"}, ["m"], "mean 'asha'"),
        ({"pruner": "mediam"}, ["m"], "mean 'median'"),
        ({"num_trials": None}, ["m"], "a search without an end"),
        ({"num_trials": 0}, ["m"], "num_trials is 0"),
        ({"num_trials": True}, ["m"], "num_trials is True"),
        ({"num_trials": 2.5}, ["m"], r"num_trials is 2\.5"),
        ({"patience": -1}, ["m"], "patience is -1"),
        ({"repeats": 0}, ["m"], "repeats is 0"),
        ({"max_slot_hours": 0}, ["m"], "max_slot_hours is 0"),
        ({"stop": {"accurcy": 0.9}}, ["accuracy"], "mean 'accuracy'"),
        ({"stop": {"m": "high"}}, ["m"], "expected a number"),
        ({"pruner": "asha"}, ["m", "latency"], "prunes by one number only"),
        ({"initial_params": [{"y": 1}]}, ["m"], "'y' is no parameter"),
        ({"initial_params": [{"x": 2.0}]}, ["m"], "x=2.0 does not lie"),
        ({"algorithm": "grid"}, ["m"], r"needs a step in space\['x'\]"),
        ({"algorithm": "grid", "space": None}, ["m"], "needs a space that is written down"),
        ({"space": Space.of({"api_key": ["a", "b"]})}, ["m"], "look like credentials"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], metrics: list[str], said: str) -> None:
    search = Search(**{"space": SPACE, "num_trials": 3, **fields})
    with pytest.raises(ConfigError, match=said):
        search.check(metrics, None)
        _ = search.count


def test_a_grid_ends_by_itself_and_others_by_any_rule() -> None:
    grid = Space.of({"x": Float(0, 1, step=0.25), "n": Int(1, 3)})
    assert Search(grid, "grid").count == 15
    assert Search(grid, "grid", num_trials=4).count == 4
    Search(grid, "grid").check(["m"], None)
    for ends in ({"stop": {"m": 1}}, {"patience": 2}, {"max_slot_hours": 1}):
        Search(SPACE, **ends).check(["m"], None)
    Search(SPACE).check(["m"], timeout_s=5)


@pytest.mark.parametrize("named", [n for n in ALGORITHMS if n not in ("grid", "gp")])
def test_what_is_kept_makes_the_same_search(named: str) -> None:
    search = Search(SPACE, named, "median", 7, {"m": 1.0}, 3, 0.5, [{"x": 0.5}], 2)
    kept = json.loads(json.dumps(search.kept()))
    assert kept.pop("style") == "space"
    again = Search(**{**kept, "space": Space.restored(kept["space"])})
    assert again == search


# ---- when it is enough


def ended(number: int, value: float | None, state: str = "COMPLETE", **fields: Any) -> Trial:
    fields = {"params": {}, "configuration": number, **fields}
    return Trial(number, path="", state=TrialState(state), value=value, **fields)


def stops(objectives: dict[str, str] | None = None, **fields: Any) -> Stopping:
    return Stopping(Options(), Search(SPACE, **fields), objectives or UP)


def fate(rule: Stopping, trials: Sequence[Trial]) -> tuple[int, Stop] | None:
    """At which trial the run ends, and why."""
    found = ((trial.number, rule.trial_ended(trial)) for trial in trials)
    return next(((number, why) for number, why in found if why), None)


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30),
    st.floats(-1e6, 1e6),
    st.sampled_from(["max", "min"]),
)
def test_stop_ends_at_the_first_that_is_good_enough(
    values: list[float], target: float, direction: str
) -> None:
    rule = stops({"score": direction}, stop={"score": target})
    good = [v >= target if direction == "max" else v <= target for v in values]
    found = fate(rule, [ended(i, v) for i, v in enumerate(values)])
    assert (found[0] if found else None) == (good.index(True) if any(good) else None)
    if found:
        state, why = found[1]
        assert state == RunState.COMPLETE
        assert f"trial {found[0]} has score" in why


@given(
    st.lists(st.floats(-10, 10), min_size=1, max_size=30),
    st.integers(1, 5),
    st.sampled_from(["max", "min"]),
)
def test_patience_counts_configurations_in_a_row(
    values: list[float], patience: int, direction: str
) -> None:
    best, row, expected = -math.inf, 0, None
    for i, value in enumerate(values):
        signed = value if direction == "max" else -value
        row = 0 if signed > best else row + 1
        best = max(best, signed)
        if row >= patience and expected is None:
            expected = i
    rule = stops({"score": direction}, patience=patience)
    found = fate(rule, [ended(i, v) for i, v in enumerate(values)])
    assert (found[0] if found else None) == expected


@pytest.mark.parametrize("state", ["FAILED", "INVALID", "PRUNED"])
def test_patience_ends_what_only_goes_wrong(state: str) -> None:
    """Nothing else would end it."""
    rule = stops(patience=3)
    found = fate(rule, [ended(i, None, state, error="ValueError: no") for i in range(10)])
    assert found is not None
    assert found[0] == 2


def test_patience_with_repeats_leaves_the_best_alone() -> None:
    """A worse repeat of the best configuration is not one more without anything better."""
    rule = stops(patience=1, repeats=2)
    pair = [ended(0, 5.0, configuration=0), ended(1, 4.0, configuration=0)]
    assert fate(rule, pair) is None


def test_stop_of_a_second_metric_and_none_of_what_did_not_complete() -> None:
    rule = stops({"score": "max", "ms": "min"}, stop={"ms": 5})
    assert rule.trial_ended(ended(0, 1.0, metrics={"score": 1.0, "ms": 6.0})) is None
    assert rule.trial_ended(ended(1, None, "PRUNED", metrics={"ms": 1.0})) is None
    why = rule.trial_ended(ended(2, 1.0, metrics={"score": 1.0, "ms": 4.0}))
    assert why == (RunState.COMPLETE, "stop: trial 2 has ms 4, of 5")


def test_failures_end_a_run() -> None:
    def failing(**limits: Any) -> Stopping:
        return Stopping(Options(**limits), Search(SPACE, num_trials=9), UP)

    same = [ended(i, None, "FAILED", error="ValueError: no") for i in range(9)]
    assert fate(failing(max_failed_trials=2), same) is not None
    assert fate(failing(max_failed_trials=9), same) is None
    found = fate(failing(fail_fast_identical=3), same)
    assert found is not None
    assert found[0] == 2
    assert "ValueError: no" in found[1][1]
    one_good = [ended(0, 1.0), *same[1:]]
    assert fate(failing(fail_fast_identical=3), one_good) is None
    other = [same[0], ended(1, None, "FAILED", error="OSError: no"), *same[2:]]
    assert fate(failing(fail_fast_identical=3), other) is None


def test_slot_hours_count_what_ran_before_and_what_runs_now() -> None:
    hour, now = 3600.0, time.time()
    before = [ended(0, 1.0, spans=[(0.0, hour)])]
    running = [Trial(1, {}, "", state=TrialState.RUNNING, spans=[(now - hour, None)])]

    def used(slots: int, hours: float) -> Stop | None:
        search = Search(SPACE, max_slot_hours=hours)
        return Stopping(Options(), search, UP, slots, before).used_up(running, 0.0)

    assert used(1, 1.9) == (RunState.COMPLETE, "max_slot_hours=1.9 are used up")
    assert used(1, 2.1) is None
    assert used(2, 3.9) is not None  # Two slots a trial.
    late = Stopping(Options(timeout_s=5), None, UP).used_up([], 5.1)
    assert late == (RunState.CANCELLED, "timeout_s=5 is over")


# ---- the slots' time


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(0.01, 50)).map(lambda s: (s[0], s[0] + s[1])),
        max_size=20,
    ),
    st.integers(1, 8),
)
def test_idle_is_a_share(spans: list[tuple[float, float]], slots: int) -> None:
    said = idle_sentence(spans, slots, 0.0, 150.0)
    if not spans:
        assert said is None
        return
    assert said is not None
    used = sum(end - begin for begin, end in spans)
    share = max(0.0, 1 - used / (slots * 150.0))
    assert said.startswith(f"{100 * share:.0f} % idle")


def test_idle_names_the_largest_cause() -> None:
    late = idle_sentence([(50, 100), (50, 100)], 2, 0, 100)
    assert late == "50 % idle: the first trial started after 50.0 s"
    wave = idle_sentence([(0, 10)] * 8 + [(10, 40)] * 3, 8, 0, 40)
    assert wave == "47 % idle: last wave 3 trials on 8 slots"
    gaps = idle_sentence([(0, 1), (9, 10)], 1, 0, 10)
    assert gaps == "80 % idle: between trials"
    assert idle_sentence([(0, 10), (0, None)], 2, 0, 10) == "0 % idle"
    assert idle_sentence([(-5, 3)], 2, 0, 10) is None  # Of an earlier driver.


# ---- the front


@given(st.dictionaries(st.integers(0, 40), st.tuples(st.integers(0, 5), st.integers(0, 5))))
def test_the_front_is_what_nothing_beats(points: dict[int, tuple[int, int]]) -> None:
    def beaten(mine: tuple[int, int]) -> bool:
        return any(
            all(a <= b for a, b in zip(p, mine, strict=True)) and p != mine for p in points.values()
        )

    assert pareto_front(points) == sorted(k for k, p in points.items() if not beaten(p))


# ---- what the sampler hears


class Hearing(optuna.samplers.RandomSampler):
    """A sampler that keeps what it is told, and bears nothing that is not finite."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.told: list[tuple[str, tuple[float, ...] | None]] = []

    def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
        assert values is None or all(map(math.isfinite, values)), values
        self.told.append((state.name, None if values is None else tuple(values)))


def study_of(sampler: Any, pruner: Any = None, objectives: Mapping[str, str] = UP) -> Study:
    return Study(Search(SPACE, sampler, pruner, 20), objectives, 1)


def all_told(study: Study) -> list[tuple[Any, ...]]:
    """All that a sampler can see of a study."""
    trials = study._study.get_trials(deepcopy=False)
    return [
        (
            t.state.name,
            dict(t.params),
            dict(t.intermediate_values),
            None if t.values is None else tuple(t.values),
        )
        for t in trials
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nothing_infinite_is_told(value: float) -> None:
    sampler = Hearing()
    study = study_of(sampler, "median")
    for configuration in range(3):
        study.ask(configuration)
    study.report(0, 0, 0.5)
    study.report(0, 1, value)
    study.tell(0, TrialState.PRUNED)
    study.tell(1, TrialState.COMPLETE, [value])
    study.tell(2, TrialState.INVALID, None)
    assert [state for state, _ in sampler.told] == ["PRUNED", "FAIL", "FAIL"]
    assert [told[-1] for told in all_told(study)] == [(0.5,), None, None]


def proposals(opened: OpenRun, algorithm: Any) -> tuple[Proposals, Study]:
    search = Search(SPACE, algorithm, "median", 20)
    study = Study(search, UP, opened.seed)
    return Proposals(opened, search, study, lambda _: None), study


OUTCOMES = st.lists(
    st.tuples(
        st.sampled_from(["COMPLETE", "PRUNED", "FAILED", "INVALID", "CANCELLED"]),
        st.floats(-100, 100),
        st.lists(st.floats(-100, 100) | st.sampled_from([math.nan, math.inf]), max_size=4),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=25)
@given(OUTCOMES, st.sampled_from(["random", "tpe", "cmaes", "nsga2", "qmc"]))
def test_a_study_that_was_told_again_knows_what_the_first_one_knew(
    outcomes: list[tuple[str, float, list[float]]], algorithm: str
) -> None:
    """Whatever happened, the journal has all of it."""
    with tempfile.TemporaryDirectory() as root:
        wanted = Wanted("run", "run", "search", None, "score", "max", None, 1, (), {}, 20)
        opened = open_run(root, wanted, "error")
        source, first = proposals(opened, algorithm)
        for state, value, reports in outcomes:
            trial = source.next()
            said: dict[str, Any] = {"event": "trial", "number": trial.number, "attempt": 0}
            opened.record({**said, "state": "RUNNING"})
            for step, reported in enumerate(reports):
                source.saw([(trial, step, {"score": reported})])
            told = {"value": value, "metrics": {"score": value}} if state == "COMPLETE" else {}
            opened.record({**said, "state": state, **told})
            source.ended(trial)
        running = source.next()
        opened.record({"event": "trial", "number": running.number, "state": "RUNNING"})
        opened.owner.release()
        opened = continue_run(f"{root}/run", again=True)
        again, second = proposals(opened, algorithm)
        opened.owner.release()
        assert all_told(second) == all_told(first)
        # What was running goes on under its own number, with its own values.
        assert opened.run.trials[running.number].params == running.params
        for study in (first, second):
            study.tell(running.configuration, TrialState.COMPLETE, [1.0])
        assert all_told(second) == all_told(first)
        assert again.left == source.left == 20 - len(outcomes) - 1


def test_the_first_configurations_come_first_and_once() -> None:
    search = Search(SPACE, "random", None, 4, initial_params=[{"x": 0.25}, {"kind": "b"}])
    study = Study(search, UP, 3)
    study.plan()
    asked = [study.ask(i) for i in range(4)]
    assert asked[0]["x"] == 0.25
    assert asked[1]["kind"] == "b"
    assert len({a["x"] for a in asked}) == 4
    resumed = Study(search, UP, 4)
    resumed.plan(done=1)
    assert resumed.ask(1)["kind"] == "b"
    assert resumed.ask(2)["x"] != 0.25


@pytest.mark.parametrize("initial", [[], [{"n": 2, "k": "b"}], [{"n": 3}], [{"n": 1}, {"k": "b"}]])
def test_a_grid_has_every_point_once(initial: list[dict[str, Any]]) -> None:
    """Whatever comes first, and wherever it is resumed."""
    space = Space.of({"n": Int(1, 3), "k": ["a", "b"]})
    search = Search(space, "grid", initial_params=initial)
    for stopped in range(7):
        first, again = Study(search, UP, 0), Study(search, UP, 9)
        first.plan()
        done = [first.ask(i) for i in range(stopped)]
        again.plan(done=stopped)
        points = done + [again.ask(i) for i in range(stopped, 6)]
        assert sorted((p["n"], p["k"]) for p in points) == [
            (n, k) for n in (1, 2, 3) for k in ("a", "b")
        ]


def test_a_report_of_a_lost_attempt_counts_once() -> None:
    study = study_of("random", optuna.pruners.ThresholdPruner(lower=0.5))
    study.ask(0)
    study.report(0, 0, 0.9)
    study.report(0, 0, 0.1)
    assert not study.should_prune(0)
    study.report(0, 1, 0.1)
    assert study.should_prune(0)


def test_learning_takes_what_lies_in_the_space() -> None:
    def read(trial: Trial, name: str) -> Any:
        return trial.value

    study = study_of("tpe")
    given_trials = [
        Trial(0, {"x": 0.5, "kind": "a"}, "", state=TrialState.COMPLETE, value=1.0),
        Trial(1, {"x": 5.0, "kind": "a"}, "", state=TrialState.COMPLETE, value=9.0),
        Trial(2, {"x": 0.5}, "", state=TrialState.COMPLETE, value=9.0),
        Trial(3, {"x": 0.5, "kind": "b"}, "", state=TrialState.FAILED),
        Trial(4, {"x": 0.1, "kind": "b"}, "", state=TrialState.PRUNED),
    ]
    assert study.learn(given_trials, read) == 1
    assert all_told(study) == [("COMPLETE", {"x": 0.5, "kind": "a"}, {}, (1.0,))]


def replayed(pruner: optuna.pruners.BasePruner, journal: list[dict[str, Any]]) -> set[int]:
    """Which trials this pruner stops, given the events of a journal in their order."""
    study = optuna.create_study(direction="maximize", pruner=pruner)
    trials: dict[int, optuna.Trial] = {}
    stopped: set[int] = set()
    for event in journal:
        for number, step, value in event.get("reports", ()):
            trials.setdefault(number, study.ask()).report(value, step)
            if trials[number].should_prune():
                stopped.add(number)
    return stopped


@pytest.mark.parametrize(
    "make",
    [
        lambda: optuna.pruners.MedianPruner(n_startup_trials=1),
        lambda: optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2),
    ],
)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1)), max_size=30))
@settings(deadline=None)
def test_stops_are_those_of_the_pruner_alone(
    make: Callable[[], optuna.pruners.BasePruner], reports: list[tuple[int, float]]
) -> None:
    study = study_of("random", make())
    for configuration in range(4):
        study.ask(configuration)
    steps = dict.fromkeys(range(4), -1)
    journal: list[dict[str, Any]] = [{"reports": [[i, 0, 0.5]]} for i in range(4)]
    for number, value in reports:
        steps[number] += 1
        journal.append({"reports": [[number, steps[number] + 1, value]]})
    stopped = set()
    for event in journal:
        for number, step, value in event["reports"]:
            study.report(number, step, value)
            if study.should_prune(number):
                stopped.add(number)
    assert stopped == replayed(make(), journal)
