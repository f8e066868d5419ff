"""The rules of a search, without Spark: validation, stopping rules, and the sampler's data."""

import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.errors import ConfigError
from sparkdl.options import Options
from sparkdl.runner.loop.idle_time import idle_sentence
from sparkdl.runner.loop.stop_rules import Stop, StopRules
from sparkdl.runs import RunState, Trial, TrialState
from sparkdl.runs.events import TrialChanged, event_from_dict
from sparkdl.runs.opening import OpenRun, RunDescription, continue_run, open_run
from sparkdl.runs.ranking import pareto_front
from sparkdl.search.settings import ALGORITHMS, SearchSettings
from sparkdl.search.space.spaces import Float, Int, Space
from sparkdl.search.study import Study
from sparkdl.search.study_source import StudySource

SPACE = Space.of({"x": Float(0.0, 1.0), "kind": ["a", "b"]})
UP = {"score": "max"}


# ---- validation


@pytest.mark.parametrize(
    ("fields", "metrics", "message"),
    [
        ({"algorithm": "TPEE"}, ["m"], "mean 'tpe'"),
        ({"algorithm": "bayesian"}, ["m"], "mean 'tpe'"),
        ({"algorithm": "Random Search"}, ["m"], "mean 'random'"),
        ({"pruner": "successive_halving"}, ["m"], "mean 'asha'"),
        ({"pruner": "mediam"}, ["m"], "mean 'median'"),
        ({"num_trials": None}, ["m"], "the search has no stopping rule"),
        ({"num_trials": 0}, ["m"], "num_trials is 0"),
        ({"num_trials": True}, ["m"], "num_trials is True"),
        ({"num_trials": 2.5}, ["m"], r"num_trials is 2\.5"),
        ({"patience": -1}, ["m"], "patience is -1"),
        ({"repeats": 0}, ["m"], "repeats is 0"),
        ({"max_slot_hours": 0}, ["m"], "max_slot_hours is 0"),
        ({"stop": {"accurcy": 0.9}}, ["accuracy"], "mean 'accuracy'"),
        ({"stop": {"m": "high"}}, ["m"], "expected a number"),
        ({"stop": {"m": float("nan")}}, ["m"], "expected a number"),
        ({"pruner": "hyperband"}, ["m", "latency"], "needs 'max_reports' in a search with several"),
        ({"initial_params": [{"y": 1}]}, ["m"], "unknown parameter 'y'; the space has x, kind"),
        ({"initial_params": [{"x": 2.0}]}, ["m"], "x=2.0 is not a value of Float"),
        (
            {"space": dict, "initial_params": [{"x": 1}, {"db": {"password": "hunter" + "22"}}]},
            ["m"],
            r"initial_params\[1\] has values that look like credentials",
        ),
        ({"algorithm": "grid"}, ["m"], r"needs a step in space\['x'\]"),
        ({"algorithm": "grid", "space": None}, ["m"], "requires space= to be a dict"),
        ({"space": Space.of({"api_key": ["a", "b"]})}, ["m"], "look like credentials"),
    ],
)
def test_settings_refuse_invalid_values(
    fields: dict[str, Any], metrics: list[str], message: str
) -> None:
    search = SearchSettings(**{"space": SPACE, "num_trials": 3, **fields})
    with pytest.raises(ConfigError, match=message):
        search.check(metrics, None)
        _ = search.max_configurations


def test_grid_needs_no_stopping_rule_and_others_accept_any_rule() -> None:
    grid = Space.of({"x": Float(0, 1, step=0.25), "n": Int(1, 3)})
    assert SearchSettings(space=grid, algorithm="grid").max_configurations == 15
    limited = SearchSettings(space=grid, algorithm="grid", num_trials=4)
    assert limited.max_configurations == 4
    SearchSettings(space=grid, algorithm="grid").check(["m"], None)
    rules: list[dict[str, Any]] = [{"stop": {"m": 1}}, {"patience": 2}, {"max_slot_hours": 1}]
    for rule in rules:
        SearchSettings(space=SPACE, **rule).check(["m"], None)
    SearchSettings(space=SPACE).check(["m"], timeout_s=5)


def test_points_are_counted_one_by_one_only_as_far_as_that_takes_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sparkdl.search.settings.MAX_COUNTED", 20)
    for size, counted in ((4, 6), (5, 10), (9, 36)):
        space = Space.of({"x": Int(1, size), "y": Int(1, size)})
        fields: dict[str, Any] = {"space": space, "constraints": ["x < y"]}
        assert SearchSettings(algorithm="grid", **fields).num_points == counted
        # Other algorithms do without the number.
        expected = counted if size**2 <= 20 else None
        assert SearchSettings(algorithm="random", **fields).num_points == expected
    assert SearchSettings(space=SPACE, algorithm="random").num_points is None


@pytest.mark.parametrize(
    ("algorithm", "num_trials", "is_open"),
    [("grid", None, False), ("tpe", None, True), ("tpe", 5, False), ("grid", 5, False)],
)
def test_a_search_without_a_number_of_trials_is_open_ended(
    algorithm: str, num_trials: int | None, is_open: bool
) -> None:
    search = SearchSettings(space=SPACE, algorithm=algorithm, num_trials=num_trials)
    assert search.is_open_ended is is_open


@pytest.mark.parametrize("algorithm", [n for n in ALGORITHMS if n not in ("grid", "gp")])
def test_settings_round_trip_through_their_dict(algorithm: str) -> None:
    search = SearchSettings(
        space=SPACE,
        algorithm=algorithm,
        pruner="median",
        num_trials=7,
        stop={"m": 1.0},
        patience=3,
        max_slot_hours=0.5,
        initial_params=[{"x": 0.5}],
        repeats=2,
    )
    stored = json.loads(json.dumps(search.to_dict()))
    assert stored.pop("style") == "space"
    again = SearchSettings(**{**stored, "space": Space.from_dict(stored["space"])})
    assert again == search


# ---- stopping rules


def ended(number: int, value: float | None, state: str = "COMPLETE", **fields: Any) -> Trial:
    fields = {"params": {}, "configuration": number, **fields}
    return Trial(number, path="", state=TrialState(state), value=value, **fields)


def stops(objectives: dict[str, str] | None = None, **fields: Any) -> StopRules:
    return StopRules(Options(), SearchSettings(space=SPACE, **fields), objectives or UP)


def first_stop(rule: StopRules, trials: Sequence[Trial]) -> tuple[int, Stop] | None:
    """At which trial the run ends, and why."""
    found = ((trial.number, rule.trial_ended(trial)) for trial in trials)
    return next(((number, why) for number, why in found if why), None)


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30),
    st.floats(-1e6, 1e6),
    st.sampled_from(["max", "min"]),
)
def test_stop_ends_at_the_first_trial_that_reaches_the_target(
    values: list[float], target: float, direction: str
) -> None:
    rule = stops({"score": direction}, stop={"score": target})
    good = [v >= target if direction == "max" else v <= target for v in values]
    found = first_stop(rule, [ended(i, v) for i, v in enumerate(values)])
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
    found = first_stop(rule, [ended(i, v) for i, v in enumerate(values)])
    assert (found[0] if found else None) == expected


@pytest.mark.parametrize("state", ["FAILED", "INVALID", "PRUNED"])
def test_patience_ends_a_search_in_which_no_trial_completes(state: str) -> None:
    """No other rule would end such a search."""
    rule = stops(patience=3)
    found = first_stop(rule, [ended(i, None, state, error="ValueError: no") for i in range(10)])
    assert found is not None
    assert found[0] == 2


def test_patience_ignores_a_worse_repeat_of_the_best_configuration() -> None:
    """A worse repeat is not a further configuration without an improvement."""
    rule = stops(patience=1, repeats=2)
    pair = [ended(0, 5.0, configuration=0), ended(1, 4.0, configuration=0)]
    assert first_stop(rule, pair) is None


def repeated(*values: float | None) -> list[Trial]:
    """Trials of configurations with three repeats each; without a value a trial is INVALID."""
    return [
        ended(i, value, "INVALID" if value is None else "COMPLETE", configuration=i // 3)
        for i, value in enumerate(values)
    ]


def test_patience_compares_the_means_of_whole_configurations() -> None:
    lucky = repeated(0.99, None, None, 0.5, 0.5, 0.5, 0.6, 0.6, 0.6, 0.7, 0.7, 0.7)
    assert first_stop(stops(patience=2, repeats=3), lucky) is None
    worse = repeated(0.5, 0.5, 0.5, 0.9, 0.1, 0.1, 0.9, 0.2, None, 0.9, 0.9, 0.9)
    found = first_stop(stops(patience=2, repeats=3), worse)
    assert found is not None
    assert found[0] == 8  # When the third repeat of the third configuration has ended.
    # A driver that takes the run over counts the same.
    search = SearchSettings(space=SPACE, patience=2, repeats=3)
    events = [TrialChanged(number=trial.number, state=trial.state) for trial in worse[:5]]
    taken_over = StopRules(Options(), search, UP, trials=worse[:5], events=events)
    assert first_stop(taken_over, worse[5:]) == found


@pytest.mark.parametrize("direction", ["max", "min"])
def test_stop_compares_the_means_of_whole_configurations(direction: str) -> None:
    sign = 1 if direction == "max" else -1
    values = (0.9, 0.1, 0.1, 0.9, None, 0.9, 0.7, 0.9, 0.8, 0.9)
    trials = repeated(*(None if value is None else sign * value for value in values))
    rule = stops({"score": direction}, stop={"score": sign * 0.75}, repeats=3)
    reason = f"stop: configuration 2 has a mean score of {sign * 0.8:g}, of {sign * 0.75:g}"
    assert first_stop(rule, trials) == (8, (RunState.COMPLETE, reason))


def test_stop_uses_a_second_metric_and_only_complete_trials() -> None:
    rule = stops({"score": "max", "ms": "min"}, stop={"ms": 5})
    assert rule.trial_ended(ended(0, 1.0, metrics={"score": 1.0, "ms": 6.0})) is None
    assert rule.trial_ended(ended(1, None, "PRUNED", metrics={"ms": 1.0})) is None
    why = rule.trial_ended(ended(2, 1.0, metrics={"score": 1.0, "ms": 4.0}))
    assert why == (RunState.COMPLETE, "stop: trial 2 has ms 4, of 5")
    rule = stops({"score": "max", "ms": "min"}, stop={"ms": 5}, repeats=2)
    fast = {"configuration": 0, "metrics": {"score": 1.0, "ms": 1.0}}
    repeats = [ended(0, 1.0, **fast), ended(1, None, "PRUNED", **fast)]
    assert first_stop(rule, repeats) is None


def test_failures_end_a_run() -> None:
    def failing(**limits: Any) -> StopRules:
        return StopRules(Options(**limits), SearchSettings(space=SPACE, num_trials=9), UP)

    same = [ended(i, None, "FAILED", error="ValueError: no") for i in range(9)]
    assert first_stop(failing(max_failed_trials=2), same) is not None
    assert first_stop(failing(max_failed_trials=9), same) is None
    found = first_stop(failing(fail_fast_identical=3), same)
    assert found is not None
    assert found[0] == 2
    assert "ValueError: no" in found[1][1]
    one_good = [ended(0, 1.0), *same[1:]]
    assert first_stop(failing(fail_fast_identical=3), one_good) is None
    other = [same[0], ended(1, None, "FAILED", error="OSError: no"), *same[2:]]
    assert first_stop(failing(fail_fast_identical=3), other) is None


def test_failures_of_one_member_of_a_population_do_not_end_a_search() -> None:
    def failing(members: Sequence[int]) -> tuple[int, Stop] | None:
        search = {"algorithm": {"pbt": {"population": 4}}, "num_trials": 40}
        rule = stops(**search)
        error = "ValueError: diverged"
        trials = [ended(i, None, "FAILED", error=error, member=m) for i, m in enumerate(members)]
        return first_stop(rule, trials)

    assert failing([2] * 40) is None
    assert failing([0, 1, 2] * 13) is None
    found = failing([*[0] * 20, 1, 2, 3])
    assert found is not None
    assert found[0] == 22
    assert "the first 23 trials failed alike: ValueError: diverged" in found[1][1]
    found = failing([0, 1, 2, 3] * 10)
    assert found is not None
    assert found[0] == 9


RULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "patience": ({}, {"patience": 3}),
    "patience of repeats": ({}, {"patience": 2, "repeats": 2}),
    "stop": ({}, {"stop": {"score": 3.0}}),
    "stop of repeats": ({}, {"stop": {"score": 2.0}, "repeats": 2}),
    "max_failed_trials": ({"max_failed_trials": 2}, {"num_trials": 12}),
    "fail_fast_identical": ({"fail_fast_identical": 2}, {"num_trials": 12}),
    "smoke": ({"smoke": True}, {"num_trials": 12}),
    "metric": ({"metric": "score"}, {"num_trials": 12}),
}
ENDS = st.one_of(
    st.integers(0, 4).map(float), st.sampled_from(["pause", "PRUNED", "FAILED", "INVALID"])
)


def event_of(number: int, end: float | str) -> TrialChanged:
    if isinstance(end, float):
        metrics = {"score": end}
        return TrialChanged(
            number=number, state=TrialState.COMPLETE, value=end, metrics=metrics, time=1.0
        )
    state = TrialState.PAUSED if end == "pause" else TrialState(end)
    error = {
        "FAILED": "ValueError: no",
        "INVALID": "metric 'score' was neither returned nor reported",
    }.get(end)
    outputs = {"loss": 1.0} if end == "INVALID" else None
    return TrialChanged(number=number, state=state, error=error, outputs=outputs, time=1.0)


def after(events: Sequence[TrialChanged], repeats: int) -> list[Trial]:
    trials = [Trial(i, {}, "", configuration=i // repeats) for i in range(12)]
    for event in events:
        trials[event.number].apply(event)
    return trials


@pytest.mark.parametrize("name", RULES)
@given(st.permutations(range(12)), st.lists(ENDS, min_size=12, max_size=12), st.data())
def test_rules_end_a_run_whose_driver_is_killed_where_they_would_have_ended_it(
    name: str, order: list[int], ends: list[float | str], data: st.DataObject
) -> None:
    options, fields = Options(**RULES[name][0]), {"space": SPACE, **RULES[name][1]}
    rules = (options, SearchSettings(**fields), UP, 1)
    repeats = int(fields.get("repeats", 1))
    # Trials that pause end later.
    events = [event_of(number, ends[number]) for number in order]
    paused = [number for number in order if ends[number] == "pause"]
    events += [event_of(n, data.draw(ENDS.filter(lambda e: e != "pause"))) for n in paused]

    def follow(begin: int) -> tuple[int, Stop] | None:
        """Start a driver after some of the events; return when and why it ends the run."""
        trials = after(events[:begin], repeats)
        rule = StopRules(*rules, trials, events[:begin])
        if rule.reached_stop:
            return begin, rule.reached_stop
        for i, event in enumerate(events[begin:], begin + 1):
            trial = trials[event.number]
            trial.apply(event)
            is_paused = event.state == TrialState.PAUSED
            if stop := rule.trial_paused(trial) if is_paused else rule.trial_ended(trial):
                return i, stop
        return None

    expected = follow(0)
    for begin in range(expected[0] + 1 if expected else len(events)):
        assert follow(begin) == expected


def test_slot_hours_include_ended_and_running_trials() -> None:
    hour = 3600.0
    before = [ended(0, 1.0, spans=[(0.0, hour)])]
    # By the wall clock, which has jumped, it has been running since 1970.
    running = [Trial(1, {}, "", state=TrialState.RUNNING, spans=[(0.0, None)])]

    def used(slots: int, hours: float) -> Stop | None:
        search = SearchSettings(space=SPACE, max_slot_hours=hours)
        stopping = StopRules(Options(), search, UP, slots, before)
        assert stopping.used_up(running, 0.0) is None
        return stopping.used_up([], hour)

    assert used(1, 1.9) == (RunState.COMPLETE, "max_slot_hours=1.9 are used up")
    assert used(1, 2.1) is None
    assert used(2, 3.9) is not None  # Two slots a trial.
    # Before the first look nothing has run.
    first = StopRules(Options(), SearchSettings(space=SPACE, max_slot_hours=0.5), UP)
    assert first.used_up([], hour) is None
    late = StopRules(Options(timeout_s=5), None, UP).used_up([], 5.1)
    assert late == (RunState.CANCELLED, "timeout_s=5 is over")


# ---- idle time of the slots


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(0.01, 50)).map(lambda s: (s[0], s[0] + s[1])),
        max_size=20,
    ),
    st.integers(1, 8),
)
def test_idle_is_a_share_of_the_slots_time(spans: list[tuple[float, float]], slots: int) -> None:
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


# ---- the Pareto front


@given(st.dictionaries(st.integers(0, 40), st.tuples(st.integers(0, 5), st.integers(0, 5))))
def test_pareto_front_is_all_points_that_no_point_dominates(
    points: dict[int, tuple[int, int]],
) -> None:
    def beaten(mine: tuple[int, int]) -> bool:
        return any(
            all(a <= b for a, b in zip(p, mine, strict=True)) and p != mine for p in points.values()
        )

    assert pareto_front(points) == sorted(k for k, p in points.items() if not beaten(p))


# ---- the sampler's data


class RecordingSampler(optuna.samplers.RandomSampler):
    """A sampler that records the results it receives, and fails if a value is not finite."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.results: list[tuple[str, tuple[float, ...] | None]] = []

    def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
        assert values is None or all(map(math.isfinite, values)), values
        self.results.append((state.name, None if values is None else tuple(values)))


def settings_of(algorithm: Any, pruner: Any = None, num_trials: int = 20) -> SearchSettings:
    return SearchSettings(space=SPACE, algorithm=algorithm, pruner=pruner, num_trials=num_trials)


def study_of(sampler: Any, pruner: Any = None, objectives: Mapping[str, str] = UP) -> Study:
    return Study(settings_of(sampler, pruner), objectives, 1)


def contents(study: Study) -> list[tuple[Any, ...]]:
    """Return all data of a study that a sampler can read."""
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
def test_study_passes_no_value_that_is_not_finite_to_the_sampler(value: float) -> None:
    sampler = RecordingSampler()
    study = study_of(sampler, "median")
    for configuration in range(3):
        study.ask(configuration)
    study.report(0, 0, 0.5)
    study.report(0, 1, value)
    study.tell(0, TrialState.PRUNED)
    study.tell(1, TrialState.COMPLETE, [value])
    study.tell(2, TrialState.INVALID, None)
    assert [state for state, _ in sampler.results] == ["PRUNED", "FAIL", "FAIL"]
    assert [row[-1] for row in contents(study)] == [(0.5,), None, None]


def source_of(opened: OpenRun, algorithm: Any) -> tuple[StudySource, Study]:
    search = settings_of(algorithm, "median")
    study = Study(search, UP, opened.seed)
    return StudySource(opened, search, study, lambda _: None), study


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
def test_study_of_a_resumed_run_has_the_contents_of_the_first_study(
    outcomes: list[tuple[str, float, list[float]]], algorithm: str
) -> None:
    """The journal stores all data of a study, for every outcome of the trials."""
    with tempfile.TemporaryDirectory() as root:
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
            facts={},
            count=20,
        )
        opened = open_run(root, description, "error")
        source, first = source_of(opened, algorithm)
        for state, value, reports in outcomes:
            trial = source.next()
            said: dict[str, Any] = {"event": "trial", "number": trial.number, "attempt": 0}
            opened.record(event_from_dict({**said, "state": "RUNNING"}))
            for step, reported in enumerate(reports):
                source.observe_reports([(trial, step, {"score": reported})])
            told = {"value": value, "metrics": {"score": value}} if state == "COMPLETE" else {}
            opened.record(event_from_dict({**said, "state": state, **told}))
            source.observe_end(trial)
        running = source.next()
        opened.record(TrialChanged(number=running.number, state=TrialState.RUNNING))
        opened.owner.release()
        opened = continue_run(f"{root}/run", reopen=True)
        again, second = source_of(opened, algorithm)
        opened.owner.release()
        assert contents(second) == contents(first)
        # The running trial continues under its own number, with its own values.
        assert opened.run.trials[running.number].params == running.params
        for study in (first, second):
            study.tell(running.configuration, TrialState.COMPLETE, [1.0])
        assert contents(second) == contents(first)
        assert again.num_left == source.num_left == 20 - len(outcomes) - 1


def test_initial_params_come_first_and_once() -> None:
    search = SearchSettings(
        space=SPACE,
        algorithm="random",
        num_trials=4,
        initial_params=[{"x": 0.25}, {"kind": "b"}],
    )
    study = Study(search, UP, 3)
    study.queue_initial()
    asked = [study.ask(i) for i in range(4)]
    assert asked[0]["x"] == 0.25
    assert asked[1]["kind"] == "b"
    assert len({a["x"] for a in asked}) == 4
    resumed = Study(search, UP, 4)
    resumed.queue_initial(num_done=1)
    assert resumed.ask(1)["kind"] == "b"
    assert resumed.ask(2)["x"] != 0.25


@pytest.mark.parametrize("initial", [[], [{"n": 2, "k": "b"}], [{"n": 3}], [{"n": 1}, {"k": "b"}]])
def test_grid_has_every_point_once(initial: list[dict[str, Any]]) -> None:
    """For all initial params, and for a resume after any number of points."""
    space = Space.of({"n": Int(1, 3), "k": ["a", "b"]})
    search = SearchSettings(space=space, algorithm="grid", initial_params=initial)
    for stopped in range(7):
        first, again = Study(search, UP, 0), Study(search, UP, 9)
        first.queue_initial()
        done = [first.ask(i) for i in range(stopped)]
        again.queue_initial(num_done=stopped)
        points = done + [again.ask(i) for i in range(stopped, 6)]
        assert sorted((p["n"], p["k"]) for p in points) == [
            (n, k) for n in (1, 2, 3) for k in ("a", "b")
        ]


def test_report_uses_the_first_value_of_each_step() -> None:
    study = study_of("random", optuna.pruners.ThresholdPruner(lower=0.5))
    study.ask(0)
    study.report(0, 0, 0.9)
    study.report(0, 0, 0.1)
    assert not study.should_prune(0)
    study.report(0, 1, 0.1)
    assert study.should_prune(0)


def test_learn_adds_complete_trials_in_the_space() -> None:
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
    assert contents(study) == [("COMPLETE", {"x": 0.5, "kind": "a"}, {}, (1.0,))]


def replayed(pruner: optuna.pruners.BasePruner, journal: list[dict[str, Any]]) -> set[int]:
    """Return the trials that this pruner stops, given the events of a journal in their order."""
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
def test_study_stops_the_same_trials_as_the_pruner_alone(
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
