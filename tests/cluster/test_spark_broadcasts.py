"""The parts of tasks that are sent to each executor once, with a context that only counts them."""

import functools
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import cloudpickle
import pytest

from sparkdl.cluster.spark_broadcasts import MAX_INLINE_BYTES, SparkBroadcasts

_VARIABLES: dict[int, "Variable"] = {}


class Variable:
    """A broadcast variable, which is pickled as its number, as Spark's are."""

    def __init__(self, value: Any) -> None:
        self.number = len(_VARIABLES)
        self.num_loads = 0
        self.pickled: bytes | None = pickle.dumps(value)
        _VARIABLES[self.number] = self

    @functools.cached_property
    def value(self) -> Any:
        assert self.pickled is not None, "used after its end"
        self.num_loads += 1
        return pickle.loads(self.pickled)

    def destroy(self) -> None:
        self.pickled = None

    def __reduce__(self) -> tuple[Callable[[int], "Variable"], tuple[int]]:
        return _variable, (self.number,)


def _variable(number: int) -> Variable:
    return _VARIABLES[number]


class Context:
    """The only method of a SparkContext that is used."""

    def broadcast(self, value: Any) -> Variable:
        return Variable(value)


class Table:
    """An object that many tasks contain."""

    def __init__(self, data: bytes) -> None:
        self.data = data


def task(table: Table, extra: Any, batches: Iterable[Any]) -> Iterator[Any]:
    yield len(table.data), extra, list(batches)


@pytest.fixture(autouse=True)
def no_variables() -> Iterator[None]:
    _VARIABLES.clear()
    yield
    _VARIABLES.clear()


def test_shared_object_is_no_part_of_the_tasks() -> None:
    broadcasts, table = SparkBroadcasts(Context()), Table(bytes(1 << 20))
    release = broadcasts.share(table)
    for extra in ("a", "b"):
        with broadcasts.broadcast_task(functools.partial(task, table, extra)) as packed:
            pickled = cloudpickle.dumps(packed)
            assert len(pickled) < 1000
            assert list(cloudpickle.loads(pickled)([1])) == [(1 << 20, extra, [1])]
    (variable,) = _VARIABLES.values()
    assert variable.num_loads == 1
    release()
    assert variable.pickled is None
    release()  # Repeating this is harmless.
    with broadcasts.broadcast_task(functools.partial(task, table, "c")) as packed:
        assert list(packed([])) == [(1 << 20, "c", [])]


def test_variable_of_a_large_task_ends_with_its_job() -> None:
    broadcasts, table = SparkBroadcasts(Context()), Table(b"small")
    large = "x" * (MAX_INLINE_BYTES + 1)
    with broadcasts.broadcast_task(functools.partial(task, table, large)) as packed:
        pickled = cloudpickle.dumps(packed)
        assert len(pickled) < 1000
        assert list(cloudpickle.loads(pickled)([])) == [(5, large, [])]
    assert [variable.pickled for variable in _VARIABLES.values()] == [None]


def test_spark_connect_gets_the_task_itself() -> None:
    broadcasts, table = SparkBroadcasts(None), Table(b"small")
    release = broadcasts.share(table)
    packed_task = functools.partial(task, table, 1)
    with broadcasts.broadcast_task(packed_task) as packed:
        assert packed is packed_task
    release()
    assert not _VARIABLES
