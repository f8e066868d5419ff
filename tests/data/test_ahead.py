"""Calls that run before their results are needed."""

import threading
from contextlib import closing

import pytest

from sparkdl.data.ahead import Ahead, map_ahead

WAIT_S = 30


def test_results_come_in_order_and_calls_run_at_the_same_time() -> None:
    together = threading.Barrier(3)

    def call(number: int) -> int:
        together.wait(WAIT_S)  # Breaks unless three calls run at a time.
        return number * number

    assert list(map_ahead(call, range(9), 3)) == [n * n for n in range(9)]
    assert list(map_ahead(call, [], 3)) == []


def test_no_more_calls_begin_than_are_allowed_ahead() -> None:
    begun = []
    results = map_ahead(lambda number: begun.append(number) or number, range(100), 2)
    assert next(results) == 0
    results.close()
    assert set(begun) <= {0, 1, 2}


def test_any_order_is_right_and_each_call_is_made_once() -> None:
    made: list[int] = []
    with closing(Ahead(lambda n: made.append(n) or -n, range(6), 2)) as ahead:
        assert [ahead.take(n) for n in (4, 0, 5, 1, 3, 2)] == [-4, 0, -5, -1, -3, -2]
    assert sorted(made) == list(range(6))


def test_an_error_is_raised_where_its_result_is_taken() -> None:
    def call(number: int) -> int:
        if number == 1:
            raise OSError("no such range")
        return number

    with closing(Ahead(call, range(3), 3)) as ahead:
        assert ahead.take(2) == 2
        with pytest.raises(OSError, match="no such range"):
            ahead.take(1)
        assert ahead.take(0) == 0


def test_what_was_not_taken_is_given_back() -> None:
    given_back: list[int] = []
    done = [threading.Event() for _ in range(3)]

    def call(number: int) -> int:
        done[number].set()
        return number

    with closing(Ahead(call, range(3), 3, given_back.append)) as ahead:
        assert all(event.wait(WAIT_S) for event in done)
        assert ahead.take(1) == 1
    assert sorted(given_back) == [0, 2]
