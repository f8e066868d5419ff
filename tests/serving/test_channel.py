"""Calls between a model server and its workers, in one process."""

import pickle
import socket
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from sparkdl.serving.channel import Channel
from sparkdl.serving.request_error import RequestError
from tests.helpers.processes import eventually


class Unsendable(Exception):
    def __init__(self) -> None:
        super().__init__("the reason")
        self.lock = threading.Lock()


class OfTwo(Exception):
    """It cannot be unpickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


class Functions:
    """Functions that the other side may call."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.opened = threading.Event()

    def double(self, value: int) -> int:
        return 2 * value

    def fail(self, message: str) -> None:
        raise OSError(message)

    def fail_unsendable(self) -> None:
        raise Unsendable

    def refuse(self) -> None:
        raise RequestError("UNAVAILABLE", "the model cannot be loaded now")

    def fail_with_two(self) -> None:
        raise OfTwo("one", "two")

    def return_unsendable(self) -> Any:
        return threading.Lock()

    def wait(self) -> None:
        assert self.opened.wait(240)

    def note(self, value: int) -> None:
        self.told.append(value)


@pytest.fixture
def functions() -> Iterator[Functions]:
    functions = Functions()
    yield functions
    functions.opened.set()


@pytest.fixture
def ends(functions: Functions) -> Iterator[tuple[Channel, Channel]]:
    names = [name for name in vars(Functions) if not name.startswith("_")]
    calls = {name: getattr(functions, name) for name in names}
    sockets = socket.socketpair()
    one, two = (Channel(Connection(s.detach()), calls, "test-channel") for s in sockets)
    for end in (one, two):
        end.start()
    yield one, two
    for end in (one, two):
        end.close()


def test_both_sides_call_each_other(ends: Any) -> None:
    for end in ends:
        assert end.call("double", 21) == 42
        assert [f.result() for f in [end.begin("double", n) for n in range(100)]] == [
            2 * n for n in range(100)
        ]


def test_errors_come_back(ends: Any) -> None:
    with pytest.raises(OSError, match="the store is busy"):
        ends[0].call("fail", "the store is busy")
    with pytest.raises(KeyError):
        ends[0].call("none")
    with pytest.raises(RequestError, match="cannot be loaded now") as caught:
        ends[0].call("refuse")
    assert caught.value.code == "UNAVAILABLE"
    with pytest.raises(RuntimeError, match="OfTwo: one and two"):
        ends[0].call("fail_with_two")
    with pytest.raises(RuntimeError, match="Unsendable: the reason"):
        ends[0].call("fail_unsendable")
    with pytest.raises(TypeError, match="pickle"):
        ends[0].call("return_unsendable")
    assert ends[0].call("double", 1) == 2


def test_what_is_told_stays_in_its_order(ends: Any, functions: Functions) -> None:
    for number in range(500):
        ends[0].tell("note", number)
    ends[0].tell("none")
    assert ends[0].call("double", 1) == 2
    assert functions.told == [*range(500)]


def test_what_was_sent_is_unread_until_the_thread_reads_it(functions: Functions) -> None:
    one, other = (Connection(end.detach()) for end in socket.socketpair())
    channel = Channel(one, {"note": functions.note}, "test-channel")
    assert not channel.has_unread()
    other.send_bytes(pickle.dumps(("tell", 0, "note", (1,))))
    assert channel.has_unread()
    channel.start()
    assert eventually(lambda: functions.told == [1])
    assert not channel.has_unread()
    other.close()
    assert eventually(lambda: one.closed)
    assert not channel.has_unread()


@pytest.mark.parametrize("number", [0, 1])
def test_the_end_of_either_side_ends_the_calls(ends: Any, number: int) -> None:
    call = ends[0].begin("wait")
    ends[number].close()
    with pytest.raises(ConnectionError):
        call.result(240)
    assert eventually(lambda: all(end.is_closed.is_set() for end in ends))
    assert eventually(lambda: all(end._connection.closed for end in ends))
    for end in ends:
        with pytest.raises(ConnectionError):
            end.call("double", 1)
        end.tell("note", 1)
        end.close()
