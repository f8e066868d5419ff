"""The trials that run when their run is resumed, and what a user may ask for with `retry=`."""

from typing import Any

import pytest

from sparkdl.errors import ConfigError
from sparkdl.runs import Trial
from sparkdl.runs.retry_choice import (
    OUTSIDE,
    STOPPED,
    check_retry,
    is_chosen,
    not_tried_again,
    parse_retry,
    waits_again,
)
from sparkdl.runs.states import TrialState


def trial(number: int, state: str, error: str | None = None) -> Trial:
    return Trial(number, {}, "", state=TrialState(state), error=error)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, set()),
        ("failed", {"failed"}),
        (["failed", "cancelled"], {"failed", "cancelled"}),
        (0, {0}),
        ([3, 7, 3], {3, 7}),
        (range(2), {0, 1}),
        ((), set()),
    ],
)
def test_retry_is_a_state_or_numbers_of_trials(value: Any, expected: set[Any]) -> None:
    assert parse_retry(value) == expected


@pytest.mark.parametrize(
    "value", ["complete", "FAILED", True, [True], [1.0], 1.5, [None], {"a": 1}]
)
def test_any_other_retry_is_refused(value: Any) -> None:
    with pytest.raises(
        ConfigError, match="expected 'failed', 'invalid', 'cancelled' or a list of numbers"
    ):
        parse_retry(value)


def test_numbers_are_those_of_trials_without_a_result() -> None:
    states = ("FAILED", "COMPLETE", "PRUNED", "INVALID", "CANCELLED", "WAITING")
    trials = [trial(number, state) for number, state in enumerate(states)]
    check_retry(frozenset({0, 3, 4, 5, "failed"}), trials)
    for number, state in ((1, "COMPLETE"), (2, "PRUNED")):
        with pytest.raises(ConfigError, match=f"trial {number} is {state}"):
            check_retry(frozenset({0, number}), trials)
    for number in (-1, 6):
        with pytest.raises(ConfigError, match=f"contains {number}, but .* the trials 0 to 5"):
            check_retry(frozenset({number}), trials)


@pytest.mark.parametrize(
    ("state", "error", "by_itself", "retry"),
    [
        ("WAITING", None, True, None),
        ("RUNNING", None, True, None),
        ("PAUSED", None, True, None),
        ("LOST", None, True, None),
        ("COMPLETE", None, False, None),
        ("PRUNED", None, False, None),
        ("INVALID", "metric 'a' is nan", False, None),
        ("FAILED", "ValueError", False, "failed"),
        ("FAILED", f"{STOPPED}, said the function", False, "failed"),
        ("CANCELLED", "by its user", False, "cancelled"),
        ("CANCELLED", None, False, "cancelled"),
        ("CANCELLED", f"{STOPPED}: Ctrl-C", True, "cancelled"),
        ("CANCELLED", OUTSIDE, True, "cancelled"),
    ],
)
def test_trials_run_again_by_themselves_or_if_they_are_chosen(
    state: str, error: str | None, by_itself: bool, retry: str | None
) -> None:
    ended = trial(5, state, error)
    assert waits_again(ended) is by_itself
    for name in ("failed", "cancelled"):
        assert is_chosen(ended, frozenset({name})) is (name == retry)
        assert waits_again(ended, frozenset({name})) is (by_itself or name == retry)
    assert waits_again(ended, frozenset({5})) is is_chosen(ended, frozenset({5})) is True
    assert is_chosen(ended, frozenset({4})) is False


def test_a_sentence_counts_the_trials_that_are_not_run_again() -> None:
    trials = [
        trial(0, "FAILED"),
        trial(1, "FAILED"),
        trial(2, "CANCELLED"),
        trial(3, "CANCELLED", STOPPED),
        trial(4, "COMPLETE"),
    ]
    failed = "2 failed trials are not run again; retry='failed' does so."
    cancelled = "1 cancelled trial is not run again; retry='cancelled' does so."
    assert not_tried_again(trials) == f"{failed} {cancelled}"
    assert not_tried_again(trials, frozenset({"failed"})) == cancelled
    assert not_tried_again(trials, frozenset({"cancelled", 1})) == failed.replace(
        "2 failed trials are", "1 failed trial is"
    )
    assert not_tried_again(trials[3:]) == ""
