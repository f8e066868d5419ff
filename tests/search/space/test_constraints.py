"""Constraints: expressions that are true for the parameters of every trial."""

import random
from importlib.util import find_spec
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.errors import ConfigError
from sparkdl.runs.states import TrialState
from sparkdl.search.population import Population
from sparkdl.search.settings import ALGORITHMS, SearchSettings
from sparkdl.search.space.constraints import Constraints
from sparkdl.search.space.dimensions import Categorical, Dimension, Float, Int
from sparkdl.search.space.points import UntriedPoints
from sparkdl.search.space.spaces import Space
from sparkdl.search.study import Study

NAMES = ["a", "b", "kind"]
FINITE = Space.of({"a": Int(1, 6), "b": Float(0, 1, step=0.25), "kind": ["x", "y"]})
ENDLESS = Space.of({"a": Int(1, 6), "b": Float(0, 1), "kind": ["x", "y"]})
RULES = ["a * b <= 2", "kind == 'x' or a > 2"]
KNOWN = [name for name in ALGORITHMS if name != "gp" or find_spec("torch")]


def holds(params: dict[str, Any]) -> bool:
    return params["a"] * params["b"] <= 2 and (params["kind"] == "x" or params["a"] > 2)


def settings_of(space: Space, **fields: Any) -> SearchSettings:
    search = SearchSettings(**{"space": space, "num_trials": 50, "constraints": RULES, **fields})
    search.check(["m"], None)
    return search


@pytest.mark.parametrize("algorithm", KNOWN)
def test_all_points_that_satisfy_the_constraints_are_tried(algorithm: str) -> None:
    search = settings_of(FINITE, algorithm=algorithm)
    allowed = [params for point in FINITE.points() if holds(params := FINITE.params(point))]
    assert search.num_points == search.max_configurations == len(allowed) < 50
    study = Study(search, {"m": "max"}, 1)
    study.queue_initial()
    tried = []
    for number in range(len(allowed)):
        tried.append(study.ask(number))
        study.tell(number, TrialState.COMPLETE, [tried[-1]["b"]])
    assert sorted(map(str, tried)) == sorted(map(str, allowed))


@pytest.mark.parametrize("algorithm", [name for name in KNOWN if name not in ("grid", "gp")])
def test_endless_space_is_searched_within_the_constraints(algorithm: str) -> None:
    search = settings_of(ENDLESS, algorithm=algorithm, initial_params=[{"a": 6}])
    assert (search.num_points, search.max_configurations) == (None, 50)
    study = Study(search, {"m": "max"}, 1)
    study.queue_initial()
    tried = []
    for number in range(40):
        tried.append(study.ask(number))
        study.tell(number, TrialState.COMPLETE, [tried[-1]["a"] * tried[-1]["b"]])
    assert tried[0]["a"] == 6
    assert all(map(holds, tried))
    # The best points are at the border.
    assert max(params["a"] * params["b"] for params in tried) > 1.5


def test_constraint_does_not_apply_without_its_parameter() -> None:
    space = Space.of({"kind": {"sgd": {"momentum": [0.0, 0.5]}, "adam": {}}, "rate": [1, 2]})
    search = settings_of(space, constraints="rate * momentum < 1")
    points = [space.params(point) for point in space.points()]
    assert [p for p in points if not search.parsed_constraints.allow(p)] == [
        {"kind": "sgd", "momentum": 0.5, "rate": 2}
    ]
    assert search.num_points == len(points) - 1


def test_many_points_are_not_counted() -> None:
    large = Space.of({"a": Int(1, 1000), "b": Int(1, 1000)})
    assert settings_of(large, constraints=["a < b"]).num_points is None
    assert settings_of(large, constraints=[]).num_points == 10**6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a <", "the constraint 'a <' is no Python expression"),
        ("a = 3", "is no Python expression"),
        ("c < 3", "names 'c'; the parameters of the space are a, b, kind"),
        ("kinds == 'x'", "Did you mean 'kind'"),
        ("a.real < 3", r"contains 'a.real'. Only parameters"),
        ("kind[0] == 'x'", r"contains 'kind\[0\]'"),
        ("open('x')", "names 'open'; the functions are abs, len, max, min, round"),
        ("__import__('os')", "names '__import__'; the functions are"),
        ("min < 3", "names 'min'; the parameters"),
        ("(lambda: 1)()", "contains"),
        ("[x for x in kind]", "contains"),
        (lambda a: a < 3, "expected an expression as text"),
    ],
)
def test_what_is_no_expression_of_parameters_is_refused(text: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Constraints([text], NAMES)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"constraints": ["a > 6"]}, r"no parameters in the space satisfy constraints=\['a > 6'\]"),
        ({"constraints": ["a > kind"]}, r"cannot be evaluated with .*TypeError.*Change them"),
        ({"constraints": 3}, "constraints is 3; expected a list of expressions"),
        ({"constraints": [3]}, "constraints contains 3, an int; expected an expression as text"),
        ({"initial_params": [{"a": 6, "b": 1.0}]}, r"break the constraint 'a \* b <= 2'"),
        ({"space": None}, "constraints= requires space= to be a dict"),
        (
            {"algorithm": optuna.samplers.GridSampler({"a": [1]})},
            "constraints= cannot be combined with GridSampler object",
        ),
    ],
)
def test_constraints_that_cannot_hold_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_of(**{"space": ENDLESS, **fields})


def test_values_may_be_compared_in_any_way() -> None:
    text = "abs(a - 3) <= 1 and not kind in ('y', 'z') and (max(a, b) if b else -a) != round(2.4)"
    constraints = Constraints([text], NAMES)
    assert constraints.allow({"a": 3, "b": 1, "kind": "x"})
    assert not constraints.allow({"a": 3, "b": 1, "kind": "y"})
    assert not constraints.allow({"a": 2, "b": 1, "kind": "x"})
    assert constraints.broken({"a": 5, "b": 1, "kind": "x"}) == text


DIMENSIONS: list[Dimension] = [
    *(Float(0, 1), Float(1e-4, 1e3, log=True), Float(0, 1, step=0.3), Float(2, 2)),
    Float(0.5, 0.999, log=True, mirror=1),
    *(Int(1, 100, log=True), Int(1, 10, step=4), Int(3, 5, mirror=8), Int(0, 10**12)),
    Categorical(["x", [1, 2], None]),
]


@given(st.sampled_from(DIMENSIONS), st.integers(0, 10**6))
def test_random_values_are_in_the_dimension(dimension: Dimension, seed: int) -> None:
    value = dimension.value(dimension.draw(random.Random(seed)))
    assert dimension.has(value)


def test_random_values_cover_the_dimension() -> None:
    draw = random.Random(0)
    whole = [Int(1, 8, log=True).draw(draw) for _ in range(300)]
    assert {*whole} == {*range(1, 9)} and whole.count(1) > 2 * whole.count(8)
    rates = [Float(1e-4, 1, log=True).draw(draw) for _ in range(400)]
    assert 130 < sum(rate < 1e-2 for rate in rates) < 270
    assert {Int(1, 9, step=4).draw(draw) for _ in range(50)} == {1, 5, 9}


def test_no_point_is_found_where_none_is() -> None:
    never = Constraints(["a > 6"], NAMES)
    assert UntriedPoints(ENDLESS, never).draw(random.Random(0)) is None
    assert UntriedPoints(FINITE, never, 0).draw(random.Random(0)) is None


RARE = Space.of({"x": Float(0.0, 1.0), "b": Int(0, 60)})


def test_point_where_a_constraint_cannot_be_evaluated_is_said_before_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    search = SearchSettings(space=RARE, num_trials=9, constraints=["x / b < 3"])
    search.check(["m"], None)
    (record,) = caplog.records
    assert record.getMessage() == (
        "the constraint 'x / b < 3' cannot be evaluated with {'b': 0, 'x': 0.0}: "
        "ZeroDivisionError: float division by zero. Such parameters are not tried."
    )


@pytest.mark.parametrize("algorithm", ["random", "tpe", "nsga2", "qmc", "pbt"])
def test_search_never_tries_a_point_where_a_constraint_cannot_be_evaluated(
    algorithm: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The values at which the constraint fails are not ends of the space."""
    space = Space.of({"x": Float(0.0, 1.0), "b": Int(-2, 2)})
    constraints = ["x / (b - 1) < 3"]
    search = SearchSettings(
        space=space, num_trials=60, constraints=constraints, algorithm=algorithm
    )
    search.check(["m"], None)
    if algorithm == "pbt":
        population = Population(search, "max", 1)
        tried = [population.first_params(member) for member in range(60)]
    else:
        study = Study(search, {"m": "max"}, 1)
        tried = []
        for number in range(60):
            tried.append(study.ask(number))
            study.tell(number, TrialState.COMPLETE, [tried[-1]["x"]])
    assert {params["b"] for params in tried} == {-2, -1, 0, 2}
    assert len([r for r in caplog.records if "cannot be evaluated" in r.getMessage()]) == 1


def test_parameters_of_the_user_where_a_constraint_cannot_be_evaluated_are_refused() -> None:
    search = SearchSettings(
        space=RARE, num_trials=9, constraints=["x / b < 3"], initial_params=[{"x": 0.5, "b": 0}]
    )
    with pytest.raises(ConfigError, match=r"'b': 0} break the constraint 'x / b < 3'"):
        search.check(["m"], None)


def test_points_where_a_constraint_cannot_be_evaluated_are_not_counted() -> None:
    space = Space.of({"a": Int(0, 3), "b": Int(0, 3)})
    search = SearchSettings(space=space, algorithm="grid", constraints=["a / b < 2"])
    assert search.num_points == 12 - 2  # All but those with b = 0, 2 / 1 and 3 / 1.
