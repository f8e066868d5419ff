"""The number of trials that are submitted at once."""

import os
import resource

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
