"""Failed trials are compared with the others, and chance is not told as a clue."""

import itertools
import random
from typing import Any

import pytest
import scipy.stats

from sparkdl.runs import Run, Trial
from sparkdl.runs.failures import in_common
from sparkdl.runs.states import TrialState


def trials_of(params: list[dict[str, Any]], failed: set[int]) -> list[Trial]:
    trials = [Trial(i, each, "", attempts=1) for i, each in enumerate(params)]
    for trial in trials:
        is_failed = trial.number in failed
        trial.state = TrialState.FAILED if is_failed else TrialState.COMPLETE
        trial.error = "ValueError: no\n\nTraceback" if is_failed else None
    return trials


GRID = [
    {"units": u, "lr": lr} for u, lr in itertools.product([16, 32, 64], [0.1, 0.01, 0.001, 0.0001])
]


def test_a_shared_value_is_told_first() -> None:
    failed = {i for i, p in enumerate(GRID) if p["units"] == 64}
    assert in_common(trials_of(GRID, failed)) == [
        "All 4 failed trials have units=64, and none of the 8 others"
    ]


def test_a_value_that_few_others_have_is_told_with_their_number() -> None:
    params = [{"units": 64 if i < 5 else i} for i in range(30)]
    assert in_common(trials_of(params, {0, 1, 2})) == [
        "All 3 failed trials have units=64, and 2 of the 27 others"
    ]


@pytest.mark.parametrize("num_trials, num_values", [(8, 2), (12, 3), (16, 2), (24, 4), (30, 3)])
def test_a_value_is_told_if_chance_rarely_brings_one(num_trials: int, num_values: int) -> None:
    params = [{"units": "abcd"[i % num_values]} for i in range(num_trials)]
    having = num_trials // num_values
    told = {}
    for num_failed in range(2, having + 1):
        failed = {i * num_values for i in range(num_failed)}
        others = having - num_failed
        # Each of the values could have been the one that all failed trials have.
        chance = num_values * scipy.stats.hypergeom.pmf(num_failed, num_trials, having, num_failed)
        is_clear = chance <= 0.05 and others <= 0.25 * (num_trials - num_failed)
        told[num_failed] = bool(in_common(trials_of(params, failed)))
        assert told[num_failed] == is_clear, (num_failed, chance)
    assert not told[2]
    assert told[having] == (num_trials > 8 or num_values == 2)


def test_random_failures_are_rarely_told_to_have_a_value_in_common() -> None:
    draw = random.Random(3)
    kinds = {"units": [16, 32, 64], "act": ["relu", "tanh"], "lr": [0.1, 0.01, 0.001, 0.0001]}
    grid = [dict(zip(kinds, values, strict=True)) for values in itertools.product(*kinds.values())]
    for num_failed, runs in ((2, 300), (3, 300)):
        chosen = [set(draw.sample(range(24), num_failed)) for _ in range(runs)]
        told = sum(bool(in_common(trials_of(grid, failed))) for failed in chosen)
        assert told <= 30  # Of 300 draws of 5 %, more come with a chance of 0.0001.


@pytest.mark.parametrize("failed", [set(), {9}, set(range(12)), {0, 5}, {8, 9}])
def test_nothing_is_told_without_something_in_common(failed: set[int]) -> None:
    assert in_common(trials_of(GRID, failed)) == []


def test_a_part_of_a_range_is_told_if_chance_does_not_bring_it() -> None:
    draw = random.Random(1)
    params = [{"lr": draw.random(), "decay": draw.random()} for _ in range(30)]
    by_lr = sorted(range(30), key=lambda i: params[i]["lr"])
    (clue,) = in_common(trials_of(params, {*by_lr[-4:]}))
    least = min(params[i]["lr"] for i in by_lr[-4:])
    assert clue == f"All 4 failed trials have lr >= {least:.6g}, and none of the 26 others"
    # Of three trials, some two are always at an end of some range.
    assert in_common(trials_of(params[:3], {0, 1})) == []


def test_random_failures_are_rarely_told_to_have_a_range_in_common() -> None:
    draw = random.Random(2)
    told = 0
    for _ in range(400):
        params = [{name: draw.random() for name in "abcdef"} for _ in range(20)]
        told += bool(in_common(trials_of(params, set(draw.sample(range(20), 3)))))
    # At most 5 %, by construction; 400 draws of 5 % are above 40 with a chance of 0.0003.
    assert told <= 40


def test_true_is_not_one_and_a_missing_parameter_is_no_value() -> None:
    params: list[dict[str, Any]] = [{"a": i < 4 or 1} for i in range(8)]
    assert in_common(trials_of(params, {0, 1, 2, 3})) == [
        "All 4 failed trials have a=true, and none of the 4 others"
    ]
    assert in_common(trials_of([{}, {"b": 1}, {"a": 1}, {"a": 2}], {0, 1})) == []


def test_the_table_tells_it_before_the_rows() -> None:
    failed = {i for i, p in enumerate(GRID) if p["units"] == 64}
    run = Run("r", "/runs/r", "r", "launch", trials=trials_of(GRID, failed))
    lines = str(run).splitlines()
    assert lines[1] == "All 4 failed trials have units=64, and none of the 8 others"
    assert "sparkdl logs /runs/r 8" in str(run)
    page = run._repr_html_()
    assert page.index("units=64") < page.index("<table>")


@pytest.mark.slow
def test_an_error_of_a_layer_of_keras_says_what_is_wrong() -> None:
    import keras
    import numpy as np

    model = keras.Sequential([keras.layers.Input((10,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError) as caught:
        model(np.zeros((2, 9)))
    summary = Trial(0, {}, "", error=f"ValueError: {caught.value}").summary
    assert summary.startswith("ValueError: Exception encountered when calling Sequential.call(). ")
    assert "expected axis -1 of input shape to have value 10" in summary
    assert "\n" not in summary and "\x1b" not in summary
