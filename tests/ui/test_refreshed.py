"""Values that are read again beside the requests that ask for them."""

import threading

import pytest

from sparkdl.ui.refreshed import Refreshed
from tests.helpers.processes import eventually


def test_a_value_is_read_again_beside_the_requests() -> None:
    values, gate = iter(range(10)), threading.Event()
    gate.set()

    def read() -> int:
        gate.wait(120)
        return next(values)

    value = Refreshed(read, least_s=0.0)
    assert value.get() == 0
    gate.clear()
    assert [value.get() for _ in range(5)] == [0] * 5  # One thread reads, and nobody waits.
    gate.set()
    assert eventually(lambda: value.get() > 0)


def test_a_value_is_not_read_more_often_than_wanted() -> None:
    values = iter(range(10))
    value = Refreshed(lambda: next(values), least_s=60.0)
    assert [value.get() for _ in range(3)] == [0, 0, 0]
    value.read_now()
    assert value.get() == 1


def test_an_error_is_told_until_the_value_can_be_read_again() -> None:
    problems: list[Exception] = [OSError("the store is away")]

    def read() -> str:
        if problems:
            raise problems[0]
        return "read"

    value = Refreshed(read, least_s=0.0)
    for _ in range(2):
        with pytest.raises(OSError, match="away"):
            value.get()
    problems.clear()
    assert value.get() == "read"
    problems.append(OSError("again away"))
    value.read_now()
    with pytest.raises(OSError, match="again away"):
        value.get()
    problems.clear()

    def recovers() -> bool:
        try:
            return value.get() == "read"
        except OSError:
            return False

    assert eventually(recovers)
