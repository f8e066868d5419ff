"""The share of each step that is the own work of a rank, against schedules made by hand."""

import threading
import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from sparkdl.distribute import step_times
from sparkdl.distribute.step_times import RankTimes, StepTimes, Sums


class Clock:
    """A clock that the test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def times(clock: Clock) -> StepTimes:
    return StepTimes(clock)


def collective(times: StepTimes, clock: Clock, wait_s: float, is_world: bool = True) -> None:
    times.enter(is_world)
    clock.now += wait_s
    times.leave()


def last(times: StepTimes) -> Sums:
    return times.message().sums[-1]


def test_work_counts_and_waiting_does_not(times: StepTimes, clock: Clock) -> None:
    for work_s, wait_s in [(1.0, 2.0), (3.0, 0.5), (2.0, 9.0)]:
        clock.now += work_s
        collective(times, clock, wait_s)
    assert [each.step for each in times.message().sums] == [1, 2, 3]
    assert last(times) == Sums(3, 6.0, 6.0, 8.5)


def test_collectives_after_the_first_of_a_step_begin_none(times: StepTimes, clock: Clock) -> None:
    """Two buckets of gradients, and the backward pass of the second one between them."""
    for _ in range(4):
        clock.now += 1.0
        times.reduce()
        collective(times, clock, 0.5)
        clock.now += 2.0
        collective(times, clock, 0.25)
    # Before the fourth step: the work before the first reduction was counted from the second on.
    assert last(times) == Sums(4, 3.0, 9.0, 11.25)


def test_a_vote_begins_the_step_of_the_reduction_behind_it(times: StepTimes, clock: Clock) -> None:
    for _ in range(3):
        clock.now += 2.0
        times.vote()
        collective(times, clock, 1.0)
        times.reduce()
        collective(times, clock, 1.0)
    assert last(times) == Sums(3, 4.0, 4.0, 8.0)


def test_collectives_of_a_group_are_waiting_and_no_steps(times: StepTimes, clock: Clock) -> None:
    for _ in range(2):
        clock.now += 1.0
        collective(times, clock, 5.0, is_world=False)
        clock.now += 1.0
        collective(times, clock, 0.0)
    assert last(times) == Sums(2, 2.0, 4.0, 14.0)


def test_work_between_epochs_is_left_out(times: StepTimes, clock: Clock) -> None:
    times.begin_step()
    collective(times, clock, 0.0)
    clock.now += 50.0  # One rank saves.
    times.begin_epoch()
    clock.now += 1.0
    times.begin_step()
    assert last(times).first_s == 1.0


def test_a_thread_that_is_left_out_counts_nothing(times: StepTimes, clock: Clock) -> None:
    def talks() -> None:
        times.leave_out_thread()
        collective(times, clock, 7.0)

    thread = threading.Thread(target=talks)
    thread.start()
    thread.join()
    clock.now += 1.0
    with times.waiting():
        clock.now += 2.0
    clock.now += 1.0
    times.begin_step()
    clock.now += 4.0
    times.begin_step()
    assert (last(times).first_s, last(times).total_s) == (4.0, 4.0)


def test_the_steps_of_a_new_ring_are_counted_anew(times: StepTimes, clock: Clock) -> None:
    for _ in range(3):
        clock.now += 1.0
        times.begin_step()
    times.restart(5)
    clock.now += 3.0
    times.begin_step()
    message = times.message("h", "n")
    assert message == RankTimes("h", "n", 5, (Sums(1, 3.0, 3.0, 3.0),))
    assert RankTimes.parse(message.to_json().encode()) == message


@pytest.mark.parametrize("step_s", [0.0001, 0.003, 0.4, 0.7, 5.0])
def test_kept_steps_are_half_a_second_apart_or_all(clock: Clock, step_s: float) -> None:
    """Two ranks whose steps seem a little longer to one keep common steps."""
    ranks = StepTimes(clock), StepTimes(clock)
    for each, factor in zip(ranks, (1.0, 1.1), strict=True):
        clock.now = 0.0
        while clock.now < 60 * max(step_s, step_times.KEPT_S):
            clock.now += step_s * factor
            each.begin_step()
    first, second = ({sums.step for sums in each.message().sums} for each in ranks)
    sums = ranks[0].message().sums[-20:]
    apart_s = [b.total_s - a.total_s for a, b in pairwise(sums)]
    low, high = (step_s, step_s) if step_s > 0.25 else (0.24, 0.51)
    assert low * 0.99 <= min(apart_s) and max(apart_s) <= high * 1.01
    assert len(first & second) > 20


def test_two_reductions_of_a_step_do_not_hide_the_steps(times: StepTimes, clock: Clock) -> None:
    """As of a model with two optimizers: every other step is short."""
    while clock.now < 60:
        for work_s in (0.1, 0.00001):
            clock.now += work_s
            times.begin_step()
    assert len(times.message().sums) > 100


def test_waiting_for_rows_and_making_rows_are_counted(times: StepTimes, clock: Clock) -> None:
    def slow_rows() -> Any:
        for row in range(3):
            clock.now += 2.0
            yield row

    for _ in times.take(slow_rows()):
        clock.now += 1.0
        times.begin_step()
    assert list(times.read(slow_rows())) == [0, 1, 2]
    times.begin_step()
    assert (last(times).rows_s, last(times).reading_s) == (4.0, 6.0)


def test_rows_that_are_not_taken_to_the_end_are_closed(times: StepTimes) -> None:
    closed = []

    def rows() -> Any:
        try:
            yield from range(10)
        finally:
            closed.append(True)

    taken = times.take(rows())
    assert next(taken) == 0
    taken.close()  # type: ignore[attr-defined]
    assert closed == [True]


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"[]", b"3", b"{}", b'{"host": "a", "node": "b", "generation": 0, "sums": 3}'),
        b'{"host": "a", "node": "b", "generation": 0, "sums": [[1, 2]]}',
        b'{"host": "a", "node": "b", "generation": 0, "sums": [[1, 1, 1, NaN]]}',
        b'{"host": "a", "node": "b", "generation": 0, "sums": [[Infinity, 1, 1, 1]]}',
        b'{"host": "a", "node": "b", "generation": 0, "sums": [[2, 1, 1, 1], [1, 2, 2, 2]]}',
        b'{"host": "a", "node": "b", "generation": 0, "sums": [[1, 1, 1, 1], [2, 2, 2, 1]]}',
        b'{"host": "a", "node": "b", "generation": 0, "sums": [[1, 1, 1, 1], [2, 0.5, 2, 2]]}',
    ],
)
def test_a_message_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, OverflowError)):
        RankTimes.parse(text)


def test_a_late_rank_of_a_ring_has_more_work_than_the_others(monkeypatch: Any) -> None:
    """Two ranks in threads, each with its own times, on a real ring."""
    from tests.helpers.rings import connected, on_all

    own: dict[int, StepTimes] = {}
    monkeypatch.setattr(
        "sparkdl.distribute.ring_calls.step_times", lambda: own[threading.get_ident()]
    )
    sockets: list[Any] = []
    rings = connected([0, 1], sockets)

    def call(ring: Any, rank: int) -> Sums:
        times = own[threading.get_ident()] = StepTimes()
        ring.is_world = True
        for _ in range(5):
            time.sleep(0.2 if rank == 1 else 0.0)
            ring.allreduce(np.ones(10))
        return last(times)

    first, second = on_all(rings, call)
    for each in sockets:
        each.close()
    assert first.step == second.step >= 2
    assert second.own_s >= 0.2 * second.step > first.own_s
