"""The list of pieces that the first rank makes for all: agreement, refusals, and its costs."""

import gzip
import heapq
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkdl.context import Context
from sparkdl.data import agreed_pieces, peer_files
from sparkdl.data.agreed_pieces import Call, agree
from sparkdl.data.dataframe.row_counts import RowCounts
from sparkdl.data.pace import MAX_LOOKS_PER_S, Pace
from sparkdl.data.peer_files import PeerFiles
from sparkdl.errors import ConfigError
from sparkdl.files import polling, storage
from sparkdl.files.rank_files import RankFiles


def call(reader: str = "data.csv", **arguments: Any) -> Call:
    return Call(reader, {"path": "a.csv", "global_batch_size": 8, **arguments})


def never() -> dict[str, Any]:
    raise AssertionError("only the first rank lists files")


@pytest.fixture
def ranks(tmp_path: Path) -> Callable[[int], list[Context]]:
    """The contexts of the ranks of a gang."""

    def ranks(number: int, **fields: Any) -> list[Context]:
        me = Context(world_size=number, num_readers=number, folder=str(tmp_path), **fields)
        return [replace(me, rank=rank) for rank in range(number)]

    return ranks


def result_of(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as exc:
        return exc


def at_once(*functions: Callable[[], Any]) -> list[Any]:
    """Return the result, or the exception, of each function; all run at once."""
    results: list[Any] = [None] * len(functions)

    def run(number: int) -> None:
        results[number] = result_of(functions[number])

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


# ---- agreement


def test_what_the_first_rank_lists_is_what_all_divide(ranks: Any) -> None:
    first, *others = ranks(3)

    def lists() -> dict[str, Any]:
        time.sleep(0.3)  # The others wait for it.
        return {"files": ["ä", "b"], "rows": [1, 2]}

    found = at_once(
        lambda: agree(call(), lists, first),
        *[lambda me=me: agree(call(), never, me) for me in others],
    )
    assert found == [{"files": ["ä", "b"], "rows": [1, 2]}] * 3


def test_each_call_has_a_list_of_its_own(ranks: Any) -> None:
    first, other = ranks(2)
    for number in range(3):
        agree(call(), lambda number=number: {"number": number}, first)  # type: ignore[misc]
    assert [agree(call(), never, other)["number"] for _ in range(3)] == [0, 1, 2]


def test_a_process_that_reads_all_rows_lists_by_itself(ranks: Any, tmp_path: Path) -> None:
    evaluator = replace(ranks(2)[0], rank=2)
    assert agree(call(), lambda: {"own": 1}, evaluator) == {"own": 1}
    assert agree(call(), lambda: {"own": 2}, Context()) == {"own": 2}
    assert list(tmp_path.iterdir()) == []


def test_a_later_attempt_lists_again(ranks: Any) -> None:
    for attempt in range(2):
        first, other = ranks(2, attempt=attempt)
        agree(call(), lambda attempt=attempt: {"attempt": attempt}, first)  # type: ignore[misc]
        assert agree(call(), never, other) == {"attempt": attempt}


def test_a_process_that_replaces_a_lost_one_gets_the_same_list(
    ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins with its first call, where the others have made several."""
    first, other = ranks(2, is_elastic=True)
    agree(call(path="a"), lambda: {"number": 1}, first)
    agree(call(path="b"), lambda: {"number": 2}, first)
    for path, number in (("a", 1), ("b", 2), ("a", 1)):
        assert agree(call(path=path), never, other) == {"number": number}
    monkeypatch.setattr("os.getpid", lambda: 1)  # The process of the first rank is lost.
    assert agree(call(path="b"), never, first) == {"number": 2}


def test_a_rank_that_is_alone_lists_for_those_that_come_later(ranks: Any) -> None:
    first, _, later = ranks(3, is_elastic=True, grows=True)
    alone = replace(first, present=(0,))
    assert agree(call(), lambda: {"number": 1}, alone) == {"number": 1}
    assert agree(call(), never, later) == {"number": 1}
    assert agree(call(), never, replace(later, present=(2,))) == {"number": 1}


# ---- refusals


@pytest.mark.parametrize(
    "other",
    [call("data.parquet"), call(path="b.csv"), call(global_batch_size=16), call(shuffle=True)],
    ids=str,
)
def test_ranks_that_call_different_readers_are_refused(ranks: Any, other: Call) -> None:
    first, second = ranks(2)
    agree(call(), dict, first)
    with pytest.raises(ConfigError) as refused:
        agree(other, never, second)
    assert f"reader call 0 of this rank is {other}; on rank 0 it is {call()}" in str(refused.value)
    assert "in the same order" in str(refused.value)


def test_another_order_is_refused_while_the_first_rank_still_lists(ranks: Any) -> None:
    first, second = ranks(2)
    release = threading.Event()

    def slow() -> dict[str, Any]:
        release.wait(20)
        return {}

    thread = threading.Thread(target=agree, args=(call(path="a"), slow, first))
    thread.start()
    try:
        with pytest.raises(ConfigError, match=r"is data\.csv\(path='b'.*is data\.csv\(path='a'"):
            agree(call(path="b"), never, second)
    finally:
        release.set()
        thread.join()


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (FileNotFoundError("no files found at 'x'"), FileNotFoundError),
        (ConfigError("filter=3"), ConfigError),
        (ValueError("no Parquet file"), ValueError),
        (KeyError("a fault"), RuntimeError),
    ],
)
def test_what_the_first_rank_cannot_list_no_rank_waits_for(
    ranks: Any, error: Exception, raised: type[Exception]
) -> None:
    def fails() -> dict[str, Any]:
        raise error

    first, second = ranks(2)
    mine, other = at_once(lambda: agree(call(), fails, first), lambda: agree(call(), never, second))
    assert mine is error
    assert type(other) is raised
    assert str(error) in str(other)


def test_a_first_rank_that_returns_without_the_call(ranks: Any, tmp_path: Path) -> None:
    first, second = ranks(2)
    agree(call(), dict, first)
    agree(call(), never, second)
    RankFiles(f"{tmp_path}/ranks/0").post(0, "done")
    with pytest.raises(RuntimeError, match="rank 0, which returned without calling it"):
        agree(call(), never, second)


def test_a_first_rank_that_never_calls(ranks: Any) -> None:
    _, second = ranks(2, peer_timeout_s=0.3)
    with pytest.raises(TimeoutError, match=r"rank 1 waits in data\.csv.*did not call it within"):
        agree(call(), never, second)


def test_a_first_rank_that_is_slow_is_waited_for(
    ranks: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agreed_pieces, "REMIND_S", 0.1)
    first, second = ranks(2, peer_timeout_s=0.2)

    def slow() -> dict[str, Any]:
        time.sleep(1)
        return {"rows": [1]}

    found = at_once(lambda: agree(call(), slow, first), lambda: agree(call(), never, second))
    assert found == [{"rows": [1]}] * 2
    assert (
        "rank 1 waits in data.csv(path='a.csv', global_batch_size=8) for rank 0, which lists"
        in (caplog.text)
    )


def test_a_store_that_fails_for_a_moment_ends_nothing(
    ranks: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(polling, "pause_s", lambda _: 0.01)
    failures = {"write": 2, "read_new": 3}

    def failing(name: str, real: Any) -> Any:
        def fails(*arguments: Any) -> Any:
            failures[name] -= 1
            if failures[name] >= 0:
                raise OSError("SlowDown")
            return real(*arguments)

        return fails

    for name in failures:
        monkeypatch.setattr(storage, name, failing(name, getattr(storage, name)))
    first, second = ranks(2)
    assert agree(call(), lambda: {"rows": [1]}, first) == agree(call(), never, second)
    assert max(failures.values()) < 0
    assert "failed to use the messages of the ranks" in caplog.text
    monkeypatch.setattr(peer_files, "PATIENCE_S", 0.1)
    failures["read_new"] = 100
    with pytest.raises(OSError, match="SlowDown"):
        agree(call(), never, second)


def test_calls_are_compared_by_value() -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    def made(**arguments: Any) -> str:
        return Call("data.x", arguments).digest

    assert made(path=Path("/a"), labels=np.arange(9)) == made(labels=np.arange(9), path="/a")
    assert made(labels=np.arange(9)) != made(labels=np.arange(9) + 1)
    assert made(labels=np.arange(9)) != made(labels=np.arange(9, dtype=np.int32))
    assert made(filter=pc.field("x") > 1) == made(filter=pc.field("x") > 1)
    assert made(filter=pc.field("x") > 1) != made(filter=pc.field("x") > 2)
    assert made(schema={"a": pa.int8(), "b": 1}) == made(schema={"b": 1, "a": pa.int8()})
    assert made(schema=pa.schema({"a": "int8"})) != made(schema=pa.schema({"a": "int16"}))
    assert made(ids=set("abc")) == made(ids=frozenset("cba")) != made(ids=set("abd"))
    assert made(key=object()) == made(key=object()), "an address is no value"
    assert len(str(Call("data.x", {"path": ["p" * 900] * 10_000}))) <= 300


# ---- what a store is asked


class Store:
    """Counts the operations on files, in virtual time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.times_s: list[float] = []
        self._is_counting = True
        for name in ("write", "exists", "list_names", "read", "remove"):
            self._count(monkeypatch, name, lambda _: 1)
        self._count(monkeypatch, "read_new", len)

    def _count(self, monkeypatch: pytest.MonkeyPatch, name: str, number: Any) -> None:
        real = getattr(storage, name)

        def counted(*arguments: Any) -> Any:
            if not self._is_counting:
                return real(*arguments)
            self.times_s += [self.now_s] * number(arguments[0])
            self._is_counting = False  # An operation on a local disk may use others.
            try:
                return real(*arguments)
            finally:
                self._is_counting = True

        monkeypatch.setattr(storage, name, counted)

    def run(self, steps: list[Iterator[float]]) -> None:
        """Run steps that yield the seconds until they go on."""
        queue = [(0.0, number) for number in range(len(steps))]
        while queue:
            self.now_s, number = heapq.heappop(queue)
            if (delay_s := next(steps[number], None)) is not None:
                heapq.heappush(queue, (self.now_s + delay_s, number))

    def most_in_a_second(self) -> int:
        counts = Counter(int(time_s) for time_s in self.times_s)
        return max(counts.values())


NUM_RANKS = 200


def test_200_ranks_count_their_rows_with_few_requests(
    ranks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows arrive for 20 to 120 seconds; then all ranks know all counts."""
    store = Store(monkeypatch)
    monkeypatch.setattr("sparkdl.data.pace.MAX_LOCAL_LOOKS_PER_S", MAX_LOOKS_PER_S)
    found: dict[int, Any] = {}

    def rank(me: Context) -> Iterator[float]:
        counts = RowCounts(me, PeerFiles(me), "train", 0, {}, None)
        pace, end_s, earlier = counts.pace, 20 + me.rank / 2, None
        yield pace.first_s()
        while True:
            rows = 1000 + me.rank if store.now_s >= end_s else int(store.now_s)
            summary = counts.look(rows, store.now_s >= end_s)
            if summary.counts:
                found[me.rank] = summary.counts
                return
            yield pace.next_s(me.rank == 0 or (rows, summary) != earlier)
            earlier = rows, summary

    store.run([rank(me) for me in ranks(NUM_RANKS)])
    assert found == dict.fromkeys(range(NUM_RANKS), tuple(range(1000, 1000 + NUM_RANKS)))
    assert store.now_s < 120 + 60, "nobody waits for long"
    assert store.most_in_a_second() < 100


def test_200_ranks_wait_for_a_list_with_few_requests(
    ranks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(monkeypatch)
    monkeypatch.setattr("sparkdl.data.pace.MAX_LOCAL_LOOKS_PER_S", MAX_LOOKS_PER_S)
    _, *others = ranks(NUM_RANKS)
    message = agreed_pieces._Message(PeerFiles(others[0]), "0", call())
    found = []

    def lists() -> Iterator[float]:
        yield 100.0
        message.publish(lambda: {"rows": [1]})

    def waits(me: Context) -> Iterator[float]:
        pace = Pace(str(tmp_path), NUM_RANKS)
        yield pace.first_s()
        for look in range(1 << 20):
            pieces = message.look(me, (look + me.rank) % 4 == 0)[1]
            if pieces is not None:
                found.append(pieces)
                return
            yield pace.next_s()

    store.run([lists(), *map(waits, others)])
    assert found == [{"rows": [1]}] * (NUM_RANKS - 1)
    assert store.most_in_a_second() < 100
    assert store.now_s < 100 + 30


def test_the_list_of_many_files_is_small(ranks: Any, tmp_path: Path) -> None:
    first, second = ranks(2)
    pieces = {"names": [f"year=2020/part-{n:05}-0b1c.snappy.parquet" for n in range(100_000)]}
    agree(call(), lambda: pieces, first)
    (file,) = (tmp_path / "ranks/0").iterdir()
    assert file.stat().st_size < 1 << 20
    assert json.loads(gzip.decompress(file.read_bytes()))["call"] == str(call())
    assert agree(call(), never, second) == pieces


def test_ranks_that_read_a_dataframe_differently_are_refused(ranks: Any, tmp_path: Path) -> None:
    first, second = ranks(2)
    counts = [
        RowCounts(first, PeerFiles(first), "train", 0, {"last_batch": "pad"}, None),
        RowCounts(second, PeerFiles(second), "train", 0, {"last_batch": "drop"}, None),
    ]
    assert counts[1].look(3, True).refusal is None
    expected = (
        r"data\.dataset\('train'\) was called for last_batch='pad' on rank 0 and for "
        r"last_batch='drop' on rank 1\. Every rank"
    )
    for each in counts:
        summary = each.look(3, True)
        assert summary.counts is None
        assert re.match(expected, summary.refusal or "")
