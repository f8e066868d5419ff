"""The number of trials that are submitted at once."""

import os
import resource
import time
from typing import Any

import pytest

from sparkdl.cluster.slots import Slots
from sparkdl.runner import concurrency
from sparkdl.runner.concurrency import Concurrency, jobs_within_limit


@pytest.fixture
def open_files(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The limits of open files: soft and hard."""
    limits = [256, 256]

    def setrlimit(kind: int, new: tuple[int, int]) -> None:
        assert kind == resource.RLIMIT_NOFILE
        assert new[0] <= new[1] == limits[1]
        limits[0] = new[0]

    monkeypatch.setattr(concurrency, "_num_open_files", lambda: 0)
    monkeypatch.setattr(concurrency.resource, "getrlimit", lambda kind: tuple(limits))
    monkeypatch.setattr(concurrency.resource, "setrlimit", setrlimit)
    return limits


def test_jobs_are_limited_by_the_open_files(open_files: list[int]) -> None:
    assert jobs_within_limit(10) == 10
    assert jobs_within_limit(400) == (256 - concurrency.RESERVED_FILES) // 3
    assert Concurrency(lambda: Slots(400, 400, "SPARKDL_SLOTS")).limit < 64
    open_files[0] = 64  # Fewer than a job needs.
    open_files[1] = 64
    assert jobs_within_limit(400) == 1


def test_files_that_are_open_already_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull), open(os.devnull):
        num_open = concurrency._num_open_files()
    assert num_open == concurrency._num_open_files() + 2
    monkeypatch.setattr(concurrency.resource, "getrlimit", lambda kind: (256, 256))
    monkeypatch.setattr(concurrency, "_num_open_files", lambda: 60)
    limited = Concurrency(lambda: Slots(400, 400, "SPARKDL_SLOTS"))
    assert limited.limit == (256 - concurrency.RESERVED_FILES - 60) // 3
    monkeypatch.setattr(concurrency, "_num_open_files", lambda: 120)  # With jobs of this run.
    assert limited.limit == (256 - concurrency.RESERVED_FILES - 60) // 3


def test_limit_of_open_files_is_raised_as_far_as_needed(open_files: list[int]) -> None:
    open_files[1] = 4096
    limited = Concurrency(lambda: Slots(400, 400, "SPARKDL_SLOTS"))
    assert limited.max_submitted(400, 400) == 500
    assert open_files == [concurrency.RESERVED_FILES + 500 * 3, 4096]


def test_executors_that_are_added_on_demand_are_filled_in_steps() -> None:
    growing = Concurrency(lambda: Slots(1000, 1000, "dynamic allocation", on_demand=True))
    assert growing.max_submitted(0, 0) == concurrency.MIN_WAITING
    assert growing.max_submitted(5, 4) == 4 + concurrency.MIN_WAITING
    assert growing.max_submitted(300, 200) == 400
    assert growing.max_submitted(2000, 900) == 1000
    few = Concurrency(lambda: Slots(1000, 1000, "dynamic allocation", on_demand=True), 3)
    assert few.max_submitted(0, 0) == 3
    gangs = Concurrency(lambda: Slots(1000, 1000, "dynamic", on_demand=True), size=4)
    assert gangs.max_submitted(0, 0) == concurrency.MIN_WAITING // 4


@pytest.mark.parametrize(
    ("slots", "options", "limit", "before_a_start", "later"),
    [
        (8, {}, 8, 8, 10),
        (1, {}, 1, 1, 2),
        (8, {"ahead": False}, 8, 8, 8),
        (8, {"is_enforced": False}, 8, 8, 8),
        (8, {"parallelism": 3}, 3, 3, 3),
        (8, {"parallelism": 20}, 8, 8, 10),
        (8, {"size": 2}, 4, 4, 4),
        (3, {"size": 4}, 1, 1, 1),
    ],
)
def test_trials_wait_in_spark_where_its_slots_alone_limit_them(
    slots: int, options: dict[str, Any], limit: int, before_a_start: int, later: int
) -> None:
    concurrency = Concurrency(lambda: Slots(slots, 2 * slots, "cores"), **options)
    assert concurrency.limit == limit
    assert concurrency.max_submitted(limit - 1, 0) == before_a_start
    assert concurrency.max_submitted(limit, limit) == later


def test_cores_are_divided_among_the_processes_that_run_at_once() -> None:
    for cores, at_once, size, each in [(8, 1, 1, 8), (8, 2, 1, 4), (9, 2, 2, 2), (2, 4, 1, 1)]:
        concurrency = Concurrency(lambda cores=cores: Slots(cores, cores, ""), size=size)
        assert concurrency.cores(at_once) == each
    assert Concurrency(lambda: Slots(4, 4, "")).cores(0) == 4  # No trial runs yet.


def test_a_shortage_lasts_from_its_first_count_until_there_are_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, count = [100.0], [3]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    gangs = Concurrency(lambda: Slots(count[0], count[0], "3 cores"), size=4)
    assert 0 < gangs.short_s() < 1
    now_s[0] += 7.0
    assert gangs.short_s() == 7.0
    assert gangs.shortage(7.0) == "4 slots are needed, and for 7 s there are 3 (3 cores)."
    count[0] = 4
    gangs.recount()
    assert gangs.short_s() == 0.0
    count[0] = 3
    now_s[0] += concurrency.RECOUNT_S + 1
    gangs.recount()
    assert 0 < gangs.short_s() < 1  # Another shortage.
