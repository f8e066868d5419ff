"""Parameters that exist only with a choice: points, values, and the search of such a space."""

import json
import random
from importlib.util import find_spec
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.errors import ConfigError, FunctionError
from sparkdl.experiment.trials import search as search_verb
from sparkdl.runs.states import TrialState
from sparkdl.search.settings import ALGORITHMS, SearchSettings
from sparkdl.search.space.points import UntriedPoints
from sparkdl.search.space.spaces import Conditional, Float, Int, Space
from sparkdl.search.study import Study
from sparkdl.search.trial_records import TrialRecord

GIVEN: dict[str, Any] = {
    "optimizer": {
        "adam": {"rate": Float(0.1, 0.3, step=0.1)},
        "sgd": {"rate": Float(1, 2, step=1), "momentum": [0.0, 0.9]},
        "none": {},
    },
    "layers": {
        1: {"first": [8, 16]},
        2: {"first": [8, 16], "second": {4: {"bias": [True]}, 6: {}}},
    },
    "dropout": [0.5],
}
SPACE = Space.of(GIVEN)
NUM_POINTS = (3 + 2 * 2 + 1) * (2 + 2 * 2)


def every_point() -> list[dict[str, Any]]:
    """Return the parameters of all points, by loops instead of recursion."""
    optimizers: list[dict[str, Any]] = [{"optimizer": "none"}]
    optimizers += [{"optimizer": "adam", "rate": rate} for rate in (0.1, 0.2, 0.3)]
    optimizers += [
        {"optimizer": "sgd", "rate": rate, "momentum": momentum}
        for rate in (1.0, 2.0)
        for momentum in (0.0, 0.9)
    ]
    layers: list[dict[str, Any]] = []
    for first in (8, 16):
        layers.append({"layers": 1, "first": first})
        layers.append({"layers": 2, "first": first, "second": 6})
        layers.append({"layers": 2, "first": first, "second": 4, "bias": True})
    return [{**a, **b, "dropout": 0.5} for a in optimizers for b in layers]


def text(params: Any) -> str:
    return json.dumps(params, sort_keys=True)


def test_points_are_those_of_each_choice() -> None:
    points = [*SPACE.points()]
    assert len(points) == SPACE.num_points() == NUM_POINTS
    params = [SPACE.params(point) for point in points]
    assert sorted(map(text, params)) == sorted(map(text, every_point()))
    for point, values in zip(points, params, strict=True):
        assert SPACE.has(values) and SPACE.is_point(point)
        assert SPACE.sampled(values) == point
        assert point.keys() <= SPACE.distributions().keys()


def test_space_round_trips_through_json() -> None:
    stored = json.loads(json.dumps(SPACE.to_dict()))
    restored = Space.from_dict(stored)
    assert restored == SPACE and restored.to_dict() == stored
    assert isinstance(restored.dimensions["layers"], Conditional)
    assert restored.dimensions["layers"].choices == (1, 2)


def test_equal_dimensions_share_a_name_and_others_do_not() -> None:
    """Optuna has one distribution for each name."""
    assert set(SPACE.distributions()) == {
        *("optimizer", "optimizer='adam'.rate", "optimizer='sgd'.rate", "momentum"),
        *("layers", "first", "second", "bias", "dropout"),
    }
    distinct = Space.of({"a": {1: {"p": [1]}, "1": {"p": [2]}}})
    assert set(distinct.distributions()) == {"a", "a=1.p", "a='1'.p"}


def test_names_of_parameters_that_exist_together() -> None:
    sets = {tuple(sorted(names)) for names in SPACE.name_sets()}
    assert sets == {tuple(sorted(point)) for point in every_point()}
    assert Space.of({"x": [1], "y": [2]}).name_sets() == {frozenset({"x", "y"})}


@given(st.data())
def test_counts_of_points_with_fixed_values(data: st.DataObject) -> None:
    """Against a count over all points, for values that the user may fix."""
    points = [*SPACE.points()]
    like = data.draw(st.sampled_from(every_point()))
    names = set(data.draw(st.sets(st.sampled_from(sorted(like)))))
    names |= {"optimizer"} if names & {"rate", "momentum"} else set()
    names |= {"layers"} if names & {"first", "second", "bias"} else set()
    names |= {"second"} if "bias" in names else set()
    chosen = {name: value for name, value in like.items() if name in names}
    SPACE.check(chosen)
    fixed = SPACE.sampled(chosen)
    matching = [point for point in points if fixed.items() <= point.items()]
    assert SPACE.num_points(fixed) == len(matching)
    assert [*map(text, SPACE.points(fixed))] == [*map(text, matching)]
    untried = UntriedPoints(SPACE, size=NUM_POINTS)
    for point in data.draw(st.lists(st.sampled_from(points))):
        untried.remove(point)
    assert untried.num_left(fixed) == sum(map(untried.has, matching))
    assert SPACE.has(chosen) == (len(chosen) == len(like))


KNOWN = [name for name in ALGORITHMS if name != "gp" or find_spec("torch")]


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("algorithm", [*KNOWN, "multivariate"])
def test_every_algorithm_searches_all_points(algorithm: str) -> None:
    sampler: Any = algorithm
    if algorithm == "multivariate":
        sampler = optuna.samplers.TPESampler(seed=2, multivariate=True)
    search = SearchSettings(space=SPACE, algorithm=sampler, initial_params=[{"optimizer": "sgd"}])
    study = Study(search, {"m": "max"}, 3)
    study.queue_initial()
    asked = []
    for number in range(NUM_POINTS):
        asked.append(study.ask(number))
        study.tell(number, TrialState.COMPLETE, [asked[-1].get("rate", 0.0)])
    assert asked[0]["optimizer"] == "sgd"
    assert sorted(map(text, asked)) == sorted(map(text, every_point()))
    assert study.num_untried == 0


@pytest.mark.parametrize("algorithm", [n for n in KNOWN if n not in ("grid", "gp")])
def test_continuous_conditional_space_is_searched_and_resumed(algorithm: str) -> None:
    space = Space.of(
        {
            "kind": {"near": {"x": Float(0, 1)}, "far": {"x": Float(10, 20), "n": Int(1, 3)}},
            "y": Float(0, 1),
        }
    )
    search = SearchSettings(space=space, algorithm=algorithm, num_trials=30)
    study, again = (Study(search, {"m": "max"}, seed) for seed in (3, 4))
    seen = []
    for number in range(15):
        params = study.ask(number)
        assert space.has(params)
        assert params["x"] >= 10 if params["kind"] == "far" else params["x"] <= 1
        value = params["y"] - params["x"] / 10
        seen.append((params, value))
        study.tell(number, TrialState.COMPLETE, [value])
    assert {params["kind"] for params, _ in seen} == {"near", "far"}
    for params, value in seen[:-1]:
        again.add_finished(params, TrialState.COMPLETE, [value])
    again.resume(14, seen[-1][0], TrialRecord())
    again.tell(14, TrialState.COMPLETE, [seen[-1][1]])
    trials = [s._study.get_trials(deepcopy=False) for s in (study, again)]
    assert [t.params for t in trials[0]] == [t.params for t in trials[1]]
    assert space.has(again.ask(15))


def test_quasi_random_sequence_has_the_parameters_of_all_trials(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While trials run, and after they have ended, whichever parameters the first trial has."""
    momentum = {"momentum": Float(0, 0.99)}
    space = Space.of({"x": Float(0, 1), "optimizer": {"adam": {}, "sgd": momentum}})
    optuna.logging.enable_propagation()
    try:
        study = Study(SearchSettings(space=space, algorithm="qmc"), {"value": "max"}, 5)
        seen = [study.ask(number) for number in range(8)]
        for number in range(8):
            study.tell(number, TrialState.COMPLETE, [0.0])
        seen += [study.ask(number) for number in range(8, 16)]
    finally:
        optuna.logging.disable_propagation()
    assert "conditions" not in caplog.text
    # The first 16 points of the sequence have one value in each sixteenth.
    assert sorted(int(params["x"] * 16) for params in seen) == [*range(16)]
    if int(optuna.__version__.split(".")[0]) >= 5:  # Before, choices are drawn at random.
        assert sorted(params["optimizer"] for params in seen) == ["adam"] * 8 + ["sgd"] * 8


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6))
def test_tpe_finds_the_better_choice(seed: int) -> None:
    """Values of one choice teach nothing wrong about the other."""
    space = Space.of({"kind": {"a": {"x": Float(0, 1)}, "b": {"x": Float(5, 6)}}})
    study = Study(SearchSettings(space=space, num_trials=40), {"m": "max"}, seed)
    draw = random.Random(seed)
    best = []
    for number in range(40):
        params = study.ask(number)
        value = 2 - params["x"] if params["kind"] == "a" else (params["x"] - 5) / 2
        best.append((value, params["kind"]))
        study.tell(number, TrialState.COMPLETE, [value + draw.random() * 0.01])
    assert max(best)[1] == "a"
    assert sum(kind == "a" for _, kind in best[20:]) > 10


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"a": {"x": 1}}, r"space\['a'\]\['x'\] is 1; expected a dict of the parameters that ex"),
        ({"a": {"x": {"p": 1}}}, r"space\['a'\]\['x'\]\['p'\] is 1, an int; expected search.Float"),
        ({"a": {}}, r"space\['a'\] is \{\}, a dict; expected search.Float"),
        ({"a": {"x": {"a": [1]}}}, "the choices of 'a' have a parameter 'a', too"),
        ({"a": {"x": {"p": [1]}}, "p": [2]}, "two parameters 'p', in 'a' and in 'p', which may"),
        ({"a": {"x": {"p": [1]}}, "b": {"y": {"p": [1]}}}, "two parameters 'p', in 'a' and in 'b'"),
        ({"a": {"x": {"b c": [1]}}}, "'b c' is not a parameter name"),
    ],
)
def test_invalid_conditional_spaces_are_refused(space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Space.of(space)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"momentum": 0.9}, "'momentum' does not exist with these parameters"),
        ({"optimizer": "adam", "momentum": 0.9}, "'momentum' does not exist with these param"),
        ({"optimizer": "adam", "rate": 2.0}, "rate=2.0 is not a value of Float"),
        ({"optimizer": "lamb"}, "optimizer='lamb' is not a value of"),
        ({"optimiser": "sgd"}, "unknown parameter 'optimiser'.*Did you mean 'optimizer'"),
    ],
)
def test_params_that_do_not_exist_together_are_refused(params: Any, message: str) -> None:
    search = SearchSettings(space=SPACE, num_trials=3, initial_params=[params])
    with pytest.raises(ConfigError, match=message):
        search.check(["m"], None)
    assert not SPACE.has(params)


def test_continuous_parameter_of_a_choice_is_no_grid() -> None:
    space = Space.of({"a": {"x": {"p": Float(0, 1)}, "y": {}}})
    search = SearchSettings(space=space, algorithm="grid")
    with pytest.raises(ConfigError, match=r"algorithm='grid' needs a step in space\['p'\]"):
        _ = search.max_configurations
    assert space.num_points() is None


def test_credentials_among_the_parameters_of_a_choice_are_refused() -> None:
    space = Space.of({"a": {"x": {"api_key": ["hunter" + "22", "b"]}, "y": {}}})
    with pytest.raises(ConfigError, match="look like credentials"):
        SearchSettings(space=space, num_trials=3).check(["m"], None)


def test_function_must_take_every_choice() -> None:
    with pytest.raises(FunctionError, match="needs 'momentum', which space does not contain"):
        search_verb(
            lambda optimizer, momentum: 0.0,
            {"optimizer": {"adam": {}, "sgd": {"momentum": [0.9]}}},
            num_trials=2,
        )
    with pytest.raises(FunctionError, match="space contains 'momentum'"):
        search_verb(
            lambda optimizer: 0.0,
            {"optimizer": {"adam": {}, "sgd": {"momentum": [0.9]}}},
            num_trials=2,
        )
