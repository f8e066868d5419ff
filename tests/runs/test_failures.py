"""Failed trials are compared with the others, and chance is not told as a clue."""

import itertools
import random
from typing import Any

import pytest

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
    assert in_common(trials_of(GRID, {8, 9})) == [
        "All 2 failed trials have units=64, and 2 of the 10 others"
    ]


@pytest.mark.parametrize("failed", [set(), {9}, set(range(12)), {0, 5}])
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
    params: list[dict[str, Any]] = [{"a": True}, {"a": True}, {"a": 1}, {"a": 1}]
    assert in_common(trials_of(params, {0, 1})) == [
        "All 2 failed trials have a=true, and none of the 2 others"
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
