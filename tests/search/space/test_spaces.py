"""Spaces: sampled values, values for the training function, and the dict for JSON."""

import itertools
import json
import math
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.errors import ConfigError
from sparkdl.search.space.spaces import Categorical, Dimension, Float, Int, Space

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)
POSITIVE = st.floats(1e-6, 1e6, allow_nan=False)
WHOLE = st.integers(-(10**6), 10**6)


@st.composite
def floats(draw: st.DrawFn) -> Float:
    log = draw(st.booleans())
    low, high = sorted(draw(st.tuples(*[POSITIVE if log else NUMBERS] * 2)))
    kind = draw(st.sampled_from(["plain", "mirror"] if log else ["plain", "step", "mirror"]))
    if kind == "step":
        # Few digits, as in user code: with 17 digits Optuna's own sum of steps is inexact.
        return Float(round(low, 3), round(high, 3), step=round(draw(st.floats(1e-3, 1e3)), 3))
    # The smallest sampled value must survive the rounding of low + high.
    mirror = low + high if kind == "mirror" and low + high - high > 0 else None
    return Float(low, high, log=log, mirror=mirror)


@st.composite
def ints(draw: st.DrawFn) -> Int:
    log = draw(st.booleans())
    low, high = sorted(draw(st.tuples(*[st.integers(1, 10**6) if log else WHOLE] * 2)))
    kind = draw(st.sampled_from(["plain", "mirror"] if log else ["plain", "step", "mirror"]))
    if kind == "step":
        return Int(low, high, step=draw(st.integers(1, 10**4)))
    return Int(low, high, log=log, mirror=low + high if kind == "mirror" else None)


PLAIN = st.none() | st.booleans() | WHOLE | NUMBERS | st.text(max_size=5)
NESTED = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@st.composite
def categoricals(draw: st.DrawFn) -> Categorical:
    choices: list[Any] = []
    for choice in draw(st.lists(NESTED, min_size=1, max_size=6)):
        try:
            Categorical([*choices, choice])
        except ConfigError:
            continue
        choices.append(choice)
    return Categorical(choices)


DIMENSIONS = floats() | ints() | categoricals()
SPACES = st.dictionaries(st.from_regex(r"[a-z]{1,6}", fullmatch=True), DIMENSIONS, min_size=1)


def draw_one(dimension: Dimension, seed: int) -> Any:
    """Return a value that Optuna samples; a warning of Optuna fails the test."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return study.ask({"x": dimension.distribution()}).params["x"]


@pytest.fixture(autouse=True, scope="module")
def quiet_optuna() -> Any:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(before)


@given(SPACES)
def test_space_round_trips_through_its_dict(given_space: dict[str, Dimension]) -> None:
    space = Space.of(given_space)
    stored = json.loads(json.dumps(space.to_dict()))
    restored = Space.from_dict(stored)
    assert restored == space
    assert restored.to_dict() == stored
    assert restored.distributions() == space.distributions()


@given(DIMENSIONS, st.integers(0, 2**31))
def test_sampled_value_round_trips_through_the_parameter(dimension: Dimension, seed: int) -> None:
    sampled = draw_one(dimension, seed)
    value = dimension.value(sampled)
    assert dimension.has(value)
    assert dimension.has(json.loads(json.dumps(value)))
    back = dimension.sampled(value)
    if isinstance(dimension, Float) and dimension.mirror is not None:
        assert math.isclose(back, sampled, rel_tol=1e-9, abs_tol=1e-9 * max(1, dimension.high))
    else:
        assert back == sampled
        assert type(back) is type(sampled)


@given(floats() | ints())
def test_range_includes_its_bounds(dimension: Float) -> None:
    assert dimension.has(dimension.low)
    assert not dimension.has(dimension.low - 1)
    assert not dimension.has(dimension.high + 1)
    distribution = dimension.distribution()
    for sampled in (distribution.low, distribution.high):
        assert dimension.has(dimension.value(sampled))


@given(ints().filter(lambda dim: (dim.high - dim.low) // dim.step < 1000) | categoricals())
def test_grid_has_every_value_once(dimension: Int | Categorical) -> None:
    space = Space.of({"x": dimension})
    values = [dimension.value(point["x"]) for point in space.points()]
    assert len(values) == space.num_points()
    assert all(dimension.has(value) for value in values)
    if isinstance(dimension, Int):
        assert (
            len(values)
            == len(set(values))
            == (dimension.high - dimension.low) // dimension.step + 1
        )
    else:
        assert values == list(dimension.choices)


def test_grid_of_ranges_with_steps() -> None:
    space = Space.of({"a": Float(0, 1, step=0.3), "b": Int(1, 10, step=4), "c": ["x", [1, 2]]})
    points = [tuple(point.values()) for point in space.points()]
    assert points == [*itertools.product([0.0, 0.3, 0.6, 0.9], [1, 5, 9], ["x", "[1, 2]"])]
    assert [p["b"] for p in space.points({"a": 0.3, "c": "x"})] == [1, 5, 9]
    assert (space.num_points(), space.num_points({"a": 0.3, "c": "x"})) == (24, 3)
    assert [*Space.of({"a": Int(3, 5, mirror=8)}).points()] == [{"a": 3}, {"a": 4}, {"a": 5}]
    assert Space.of({"a": Float(0, 1), "b": [1]}).num_points() is None
    with pytest.raises(ConfigError, match=r"needs a step in space\['a'\], which is Float\(low=0"):
        Space.of({"a": Float(0, 1)}).check_finite()


def test_distribution_ends_at_the_last_step_in_the_range() -> None:
    """Optuna warns of other upper bounds, and warnings are errors in tests."""
    assert Float(0, 1, step=0.3).distribution().high == 0.9
    assert Float(0.1, 0.7, step=0.2).distribution().high == 0.7
    assert Int(1, 10, step=2).distribution().high == 9
    assert Int(1, 2, step=5).distribution().high == 1
    assert Float(0, 1, step=0.3).has(0.6) and not Float(0, 1, step=0.3).has(1)


def test_mirrored_log_scale_is_dense_near_the_upper_bound() -> None:
    momentum = Float(0.5, 0.999, log=True, mirror=1)
    assert momentum.distribution().low == pytest.approx(0.001)
    values = [momentum.value(draw_one(momentum, seed)) for seed in range(100)]
    assert all(0.5 <= value <= 0.999 for value in values)
    assert sum(value > 0.97 for value in values) > 35  # Half of the logarithms.
    units = Int(1, 100, log=True, mirror=101)
    assert (units.value(1), units.value(100), units.sampled(99)) == (100, 1, 2)


def test_has_checks_type_and_value() -> None:
    assert Float(0, 1).has(1) and Float(0, 1).has(0.5) and Float(0, 1).has(np.float64(0.5))
    assert not any(Float(0, 1).has(x) for x in (1.1, True, "0.5", None, math.nan, [0.5]))
    assert Int(0, 4, step=2).has(2)
    assert not any(Int(0, 4, step=2).has(x) for x in (1, 2.0, True, "2", 6))
    choice = Categorical(["a", 1, None, (3, 3), {"k": (1,), "j": 2}])
    assert all(choice.has(x) for x in ("a", 1, None, (3, 3), [3, 3], {"j": 2, "k": [1]}))
    assert not any(choice.has(x) for x in ("b", 1.0, True, "None", "[3, 3]", [3]))


def test_choices_of_dicts_ignore_the_order_of_keys() -> None:
    choice = Categorical([(3, 3), {"k": (1,), "j": 2}])
    assert choice.choices == ([3, 3], {"k": [1], "j": 2})
    assert choice.sampled((3, 3)) == choice.sampled([3, 3])
    assert choice.value(choice.sampled({"j": 2, "k": (1,)})) == {"k": [1], "j": 2}


def test_space_converts_and_checks_params() -> None:
    space = Space.of({"lr": Float(0.1, 1), "units": range(1, 3), "fixed": ["x"]})
    assert space.dimensions["units"] == Categorical([1, 2])
    params = space.params({"lr": 0.5, "units": 1, "fixed": "x"})
    assert params == {"lr": 0.5, "units": 1, "fixed": "x"} == space.sampled(params)
    assert space.has(params) and not space.has({"lr": 0.5})
    assert not space.has({**params, "other": 1}) and not space.has({**params, "lr": 2})
    space.check({"lr": 0.5})
    with pytest.raises(ConfigError, match="unknown parameter 'layers'; the space has lr, u"):
        space.check({"layers": 1})
    with pytest.raises(ConfigError, match=r"lr=2 is not a value of Float\(low=0.1, high=1"):
        space.check({"lr": 2})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Float("1", 2), r"low is '1'; expected a number"),
        (lambda: Float(0, None), r"high is None; expected a number"),
        (lambda: Float(True, 2), r"low is True; expected a number"),
        (lambda: Float(0, math.inf), r"high is inf; expected a number"),
        (lambda: Float(math.nan, 1), r"low is nan; expected a number"),
        (lambda: Float(0, 1, step="x"), r"step is 'x'; expected a number"),
        (lambda: Float(0, 1, mirror="x"), r"mirror is 'x'; expected a number"),
        (lambda: Float(2, 1), r"`low <= high` must hold; swap them"),
        (lambda: Float(0, 1, step=0), r"`step > 0` must hold"),
        (lambda: Float(0, 1, log=True), r"log=True requires bounds above 0; raise low"),
        (lambda: Float(0.5, 1, log=True, mirror=1), r"log=True requires bounds above 0"),
        (
            lambda: Float(1, 2, log=True, step=0.1),
            r"step cannot be combined with log=True or mirror",
        ),
        (
            lambda: Float(1, 2, mirror=3, step=0.1),
            r"step cannot be combined with log=True or mirror",
        ),
        (lambda: Int(1.0, 2), r"low is 1.0; expected a whole number"),
        (lambda: Int(1, 2, step=None), r"step is None; expected a whole number"),
        (lambda: Int(1, 2, step=0.5), r"step is 0.5; expected a whole number"),
        (lambda: Int(1, 2, mirror=3.0), r"mirror is 3.0; expected a whole number"),
        (lambda: Int(1, 2, step=-1), r"`step > 0` must hold"),
        (lambda: Int(3, 2), r"`low <= high` must hold; swap them"),
        (lambda: Int(0, 2, log=True), r"log=True requires bounds above 0; raise low"),
        (lambda: Int(1, 9, log=True, step=2), r"step cannot be combined with log=True or mirror"),
        (lambda: Categorical("adam"), r"choices is 'adam'; expected a list of values"),
        (lambda: Categorical({"a": 1}), r"choices is \{'a': 1\}; expected a list of values"),
        (lambda: Categorical(3), r"choices is 3; expected a list of values"),
        (lambda: Categorical([]), r"choices is empty; expected at least one value"),
        (lambda: Categorical([object()]), r"'choices' holds <object"),
        (lambda: Categorical([1, 1.0]), r"choices has 1 and 1.0, which cannot be distinguished"),
        (lambda: Categorical([True, 1]), r"choices has True and 1, which cannot"),
        (lambda: Categorical(["a", "a"]), r"choices has 'a' and 'a', which cannot"),
        (lambda: Categorical([[1], "[1]"]), r"choices has \[1\] and '\[1\]', which cannot"),
        (lambda: Categorical([0.0, math.nan]), r"choices has NaN, which is not equal to itself"),
        (lambda: Space.of({}), r"space is \{\}; expected a dict from each parameter to search.Fl"),
        (lambda: Space.of([1]), r"space is \[1\]; expected a dict"),
        (
            lambda: Space.of({"a": 1}),
            r"space\['a'\] is 1, an int; .* Write \[1\] for a constant value",
        ),
        (lambda: Space.of({"a": []}), r"space\['a'\] is \[\], a list; expected search.Float"),
        (lambda: Space.of({"a b": [1]}), r"'a b' is not a parameter name"),
    ],
)
def test_dimensions_and_spaces_refuse_invalid_values(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_bounds_may_be_numbers_of_numpy() -> None:
    whole = Int(np.int64(1), np.int32(4))  # type: ignore[arg-type]
    real = Float(np.float32(0.5), np.float64(1.0))  # type: ignore[arg-type]
    assert Space.from_dict(json.loads(json.dumps(Space.of({"a": whole, "b": real}).to_dict())))
    assert (whole, real) == (Int(1, 4), Float(0.5, 1.0))


def test_two_numbers_in_a_tuple_are_two_choices_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert Space.of({"lr": (0.1, 0.01)}).dimensions["lr"] == Categorical([0.1, 0.01])
    assert "two choices. For a range, pass search.Float(0.01, 0.1)" in caplog.text
    caplog.clear()
    Space.of({"lr": [0.1, 0.01], "size": (1, 2, 3), "flag": (True, False), "name": ("a", "b")})
    assert not caplog.text
