"""The channel from a task to its training process, and the ranks' agreement, over real sockets."""

import errno
import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.context import Context
from sparkdl.data.dataframe import receiver, row_buffer, sender, spool
from sparkdl.data.dataframe.balancing import RowBalance, SingleRank
from sparkdl.data.dataframe.protocol import Feed
from sparkdl.data.dataframe.receiver import Receiver
from sparkdl.data.dataframe.row_buffer import RowBuffer
from sparkdl.data.dataframe.sender import RowSender
from sparkdl.data.lanes import WINDOW_BYTES
from sparkdl.data.shuffle import shuffled
from tests.helpers.processes import eventually

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
FEED = Feed({"train": SCHEMA.serialize().to_pybytes()})


@pytest.fixture(autouse=True)
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_DIRS", str(tmp_path))


def batches(rows: int, size: int = 10, start: int = 0, width: int = 1) -> Iterator[pa.RecordBatch]:
    for begin in range(start, start + rows, size):
        ids = range(begin, min(begin + size, start + rows))
        yield pa.record_batch([list(ids), ["x" * width] * len(ids)], SCHEMA)


def ids_of(rows: Iterable[pa.RecordBatch]) -> list[int]:
    return [i for batch in rows for i in batch["id"].to_pylist()]


def within(seconds: float, *functions: Callable[[], Any]) -> list[Any]:
    """Run functions at once; return the result or exception of each, `hangs` if it does not end."""
    results: list[Any] = ["hangs"] * len(functions)

    def call(place: int) -> None:
        try:
            results[place] = functions[place]()
        except Exception as exc:
            results[place] = exc

    threads = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return results


def one_pass(arriving: RowBuffer, count: "RowBalance | SingleRank") -> list[int]:
    """As `data.dataset` reads a pass."""
    found: list[int] = []
    position, settled = 0, None
    while settled is None:
        certain, settled = count.certain_rows(position)
        found += ids_of(arriving.take(position, certain))
        position = certain
    return found + ids_of(settled.extra)


# ---- one process


def test_rows_arrive_once_and_are_answered_for(tmp_path: Path) -> None:
    with RowSender(FEED, batches(95)) as feeder:
        arriving = Receiver(feeder.process_end).datasets["train"]
        arriving.open(True, None)
        assert one_pass(arriving, SingleRank(arriving, None)) == list(range(95))
        assert ids_of(arriving.read(7, 23)) == list(range(7, 23))
        feeder._thread.join(10)
        assert feeder.problem is None
        assert feeder._num_received == 95
    assert list(tmp_path.iterdir()) == []


def test_several_datasets_in_one_stream(tmp_path: Path) -> None:
    """Rows of two datasets mixed within batches; the other column of a row is null."""
    structs = pa.struct(list(SCHEMA))
    whole = [{"id": i, "text": "é"} for i in range(30)]
    first = pa.array([row if row["id"] % 3 else None for row in whole], structs)
    second = pa.array([None if row["id"] % 3 else row for row in whole], structs)
    rows = pa.record_batch([first, second], ["train", "validation"])
    schema = SCHEMA.serialize().to_pybytes()
    both = Feed({"train": schema, "validation": schema})
    with RowSender(both, [rows.slice(0, 11), rows.slice(11), rows.slice(0, 0)]) as feeder:
        found = Receiver(feeder.process_end).datasets
        for name, rest in (("train", {1, 2}), ("validation", {0})):
            found[name].open(True, None)
            got = one_pass(found[name], SingleRank(found[name], None))
            assert got == [i for i in range(30) if i % 3 in rest]


CUTS: dict[str, tuple[Callable[[RowSender], Any], str]] = {
    "no end": (lambda feeder: feeder._task_end.shutdown(socket.SHUT_WR), "closed|ended"),
    "in a header": (lambda feeder: feeder._task_end.send(bytes(5)), "unpack"),
    "more were sent": (
        lambda feeder: feeder._num_sent.__setitem__(0, 31),
        "sent 31 rows and 30 arr",
    ),
    "fewer were sent": (
        lambda feeder: feeder._num_sent.__setitem__(0, 29),
        "sent 29 rows and 30 arr",
    ),
}


@pytest.mark.parametrize("how", CUTS)
def test_a_stream_that_is_cut_off_is_an_error(how: str) -> None:
    cut, says = CUTS[how]

    def rows() -> Iterator[pa.RecordBatch]:
        yield from batches(30)
        cut(feeder)

    feeder = RowSender(FEED, rows())
    with feeder:
        arriving = Receiver(feeder.process_end).datasets["train"]
        arriving.open(True, None)
        result = within(10, lambda: one_pass(arriving, SingleRank(arriving, None)))[0]
        feeder._thread.join(10)
        assert feeder._num_received is None, "it says that it has all"
    assert isinstance(result, RuntimeError), result
    assert "rows of data 'train' are missing" in str(result)
    assert re.search(says, str(result)), result


def test_what_breaks_before_the_channel_is_told(tmp_path: Path) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches(20)
        raise ValueError("the JVM said no")

    with RowSender(FEED, broken()) as feeder:
        arriving = Receiver(feeder.process_end).datasets["train"]
        arriving.open(True, None)
        result = within(10, lambda: one_pass(arriving, SingleRank(arriving, None)))[0]
    assert isinstance(result, RuntimeError)
    assert "ValueError: the JVM said no" in str(result)


@pytest.mark.parametrize("at", [1, 5])
def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """From the first or a later message on, nothing can be written."""
    written, real = [], os.pwritev

    def full(*given: Any) -> int:
        written.append(given)
        if len(written) >= at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*given)

    monkeypatch.setattr(os, "pwritev", full)

    def reads() -> list[int]:
        arriving = Receiver(feeder.process_end).datasets["train"]
        arriving.open(True, None)
        return one_pass(arriving, SingleRank(arriving, None))

    with RowSender(FEED, batches(100)) as feeder:
        result = within(10, reads)[0]
    assert isinstance(result, RuntimeError | ConnectionError), result
    assert at == 1 or "No space left on device: no room for more of this rank" in str(result)


def test_batches_of_another_type_than_announced_are_converted_or_refused(tmp_path: Path) -> None:
    """`spark.sql.execution.arrow.useLargeVarTypes` makes Spark send 64-bit offsets."""
    large = pa.schema([("id", pa.int64()), ("text", pa.large_string())])
    rows = pa.record_batch([[1, 2], ["hello", "wörld"]], large)
    with RowSender(FEED, [rows]) as feeder:
        arriving = Receiver(feeder.process_end).datasets["train"]
        arriving.open(True, None)

        def texts() -> list[str]:
            arriving.wait(1)
            return [text for b in arriving.read(0, 2) for text in b["text"].to_pylist()]

        result = within(10, texts)[0]
    assert isinstance(result, RuntimeError) or result == ["hello", "wörld"]


def endless(seen: list[int], width: int = 1000) -> Iterator[pa.RecordBatch]:
    for number in range(1 << 20):
        seen.append(number)
        yield from batches(10, start=10 * number, width=width)


def test_enough_rows_let_the_task_wait_until_more_are_wanted(tmp_path: Path) -> None:
    seen: list[int] = []
    with RowSender(FEED, endless(seen)) as feeder:
        arriving = Receiver(feeder.process_end).datasets["train"]
        for rows in (35, 50):
            arriving.open(True, rows)
            assert one_pass(arriving, SingleRank(arriving, rows)) == list(range(rows))
        assert feeder.problem is None
    feeder._thread.join(10)
    assert not feeder._thread.is_alive()
    assert len(seen) < 1000  # As many packets as the socket holds.


def test_a_task_that_ends_leaves_no_thread_behind(tmp_path: Path) -> None:
    seen: list[int] = []
    with RowSender(FEED, endless(seen)) as feeder:  # Nobody ever reads.
        assert feeder.problem is None
    feeder._thread.join(10)
    assert not feeder._thread.is_alive()


# ---- rows that are not kept


def ahead(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Limit the number of bytes that wait to be read."""
    for module in (sender, receiver, spool):
        if hasattr(module, "MAX_AHEAD_BYTES"):
            monkeypatch.setattr(module, "MAX_AHEAD_BYTES", limit)


def test_without_a_copy_a_reader_that_lags_far_behind_gets_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead(monkeypatch, 1 << 16)
    sent: list[int] = []

    def counted() -> Iterator[pa.RecordBatch]:
        for batch in batches(4000, width=1000):
            sent.append(batch.num_rows)
            yield batch

    with RowSender(FEED, counted()) as feeder:
        arriving = Receiver(feeder.process_end).datasets["train"]
        arriving.open(False, None)
        assert eventually(lambda: feeder._ahead_bytes > 1 << 16)
        assert sum(sent) < 1000, "not bounded"
        result = within(10, lambda: one_pass(arriving, SingleRank(arriving, None)))[0]
        assert result == list(range(4000))
        again = within(10, lambda: one_pass(arriving, SingleRank(arriving, None)))[0]
    assert isinstance(again, RuntimeError)
    assert "cache=False allows one pass only" in str(again)


def test_rows_that_arrive_before_they_are_asked_for_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may ask for its rows late; what waits without a copy is bounded all the same."""
    ahead(monkeypatch, 1 << 16)
    sent: list[int] = []

    def counted() -> Iterator[pa.RecordBatch]:
        for batch in batches(20_000, width=1000):
            sent.append(batch.num_rows)
            yield batch

    with RowSender(FEED, counted()) as feeder:
        arriving = Receiver(feeder.process_end).datasets["train"]
        assert eventually(lambda: feeder._ahead_bytes > 1 << 16)
        arriving.open(False, None)
        assert sum(sent) < 1000, "not bounded"
        result = within(10, lambda: one_pass(arriving, SingleRank(arriving, None)))[0]
    assert result == list(range(20_000))


def test_without_a_copy_a_reader_waits_for_nothing_but_rows(tmp_path: Path) -> None:
    """A message to a task that is busy with Spark does not delay the reader."""
    release = threading.Event()

    def stuck() -> Iterator[pa.RecordBatch]:
        yield from batches(10_000)
        release.wait(60)

    try:
        with RowSender(FEED, stuck()) as feeder:
            arriving = Receiver(feeder.process_end).datasets["train"]
            arriving.open(False, None)
            arriving.wait(9_999)
            result = within(10, lambda: ids_of(arriving.take(0, 10_000)))[0]
            assert result == list(range(10_000))
    finally:
        release.set()


def test_without_a_copy_a_first_batch_that_is_larger_than_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead(monkeypatch, 1 << 12)
    with RowSender(FEED, batches(100, width=1000)) as feeder:
        arriving = Receiver(feeder.process_end).datasets["train"]
        arriving.open(False, None)
        result = within(5, lambda: one_pass(arriving, SingleRank(arriving, None)))[0]
    assert result == list(range(100))


# ---- memory and descriptors


WIDE = 1 << 16
WIDE_ROWS = 1536  # 96 MiB


def mapped_mib() -> int:
    """The resident pages of files in this process."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"RssFile:\s+(\d+) kB", status)[0]) >> 10


def peak_of(rows: Iterable[pa.RecordBatch]) -> int:
    """The growth of mapped memory while rows are used."""
    before, peak = mapped_mib(), 0
    for batch in rows:
        assert np.frombuffer(batch["text"].buffers()[2], np.uint8).sum()
        peak = max(peak, mapped_mib() - before)
    return peak


READINGS: dict[str, Callable[[RowBuffer], Iterator[pa.RecordBatch]]] = {
    "in order": lambda rows: rows.read(0, WIDE_ROWS),
    "as rows arrive": lambda rows: (
        batch for start in range(0, WIDE_ROWS, 16) for batch in rows.take(start, start + 16)
    ),
    "in random order": lambda rows: (
        batch
        for place in np.random.default_rng(1).permutation(WIDE_ROWS // 16)
        for batch in rows.read(16 * place, 16 * place + 16)
    ),
    "shuffled": lambda rows: shuffled([(READINGS["in random order"](rows), 1)], 128, WINDOW_BYTES),
}


@pytest.mark.parametrize("how", READINGS)
def test_rows_that_were_read_give_their_memory_back(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_buffer, "RELEASE_BYTES", 8 << 20)
    with RowSender(FEED, batches(WIDE_ROWS, size=16, width=WIDE)) as feeder:
        arriving = Receiver(feeder.process_end).datasets["train"]
        arriving.open(True, None)
        arriving.wait(WIDE_ROWS - 1)
        for _ in range(2):
            assert peak_of(READINGS[how](arriving)) < 48


def test_files_and_descriptors_are_few_however_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "FILE_BYTES", 1 << 14)
    before = len(os.listdir("/proc/self/fd"))
    with RowSender(FEED, batches(2_000, width=10_000)) as feeder:
        arriving = Receiver(feeder.process_end).datasets["train"]
        arriving.open(True, None)
        assert one_pass(arriving, SingleRank(arriving, None)) == list(range(2_000))
        assert len(os.listdir("/proc/self/fd")) - before < 80, "20 MB of files that begin at 16 KiB"


def test_a_disk_that_is_nearly_full_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spool, "FILE_BYTES", 1 << 14)
    monkeypatch.setattr(logging.getLogger("sparkdl"), "propagate", True)
    for limit, cache, num_warnings in ((1.1, True, 0), (-0.1, False, 0), (-0.1, True, 1)):
        monkeypatch.setattr(receiver, "MAX_DISK_USE", limit)
        with caplog.at_level(logging.WARNING, "sparkdl.data"):
            with RowSender(FEED, batches(100, width=10_000)) as feeder:
                arriving = Receiver(feeder.process_end).datasets["train"]
                arriving.open(cache, None)
                arriving.wait(99)
            assert (
                caplog.text.count("the disk that holds the copy of this rank's rows")
                == num_warnings
            )


def test_a_disk_is_nearly_full_before_yarn_ends_containers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimpleNamespace(f_bavail=15, f_blocks=100, f_frsize=1 << 30)
    monkeypatch.setattr(receiver.os, "fstatvfs", lambda _: disk)
    monkeypatch.setattr(logging.getLogger("sparkdl"), "propagate", True)
    with RowSender(FEED, batches(100)) as feeder:
        arriving = Receiver(feeder.process_end).datasets["train"]
        arriving.open(True, None)
        arriving.wait(99)
    assert "is 85 % full, with 15.0 GiB free" in caplog.text


def test_the_rows_of_a_block_are_found_among_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shuffled pass over many small batches looks each of them up."""
    with RowSender(FEED, batches(20_000, size=1)) as feeder:
        arriving = Receiver(feeder.process_end).datasets["train"]
        arriving.open(True, None)
        arriving.wait(19_999)
        began = time.process_time()
        for start in range(20_000):
            assert arriving._overlapping(start, start + 1)[0].start == start
        assert time.process_time() - began < 2.0
        assert arriving._overlapping(7, 7) == []
        assert ids_of(arriving.read(19_998, 30_000)) == [19_998, 19_999]


# ---- several ranks


class Gang:
    """Ranks of a gang in this process: their rows, each with a context of its own."""

    def __init__(self, folder: Path, *rows: Iterable[pa.RecordBatch]) -> None:
        self.folder = folder / "ranks/0"
        self.folder.mkdir(parents=True)
        self.contexts = [
            Context(rank=rank, world_size=len(rows), num_readers=len(rows), folder=str(folder))
            for rank in range(len(rows))
        ]
        self.feeders = [RowSender(FEED, some) for some in rows]
        self.arriving = [
            Receiver(feeder.__enter__().process_end).datasets["train"] for feeder in self.feeders
        ]

    def __enter__(self) -> "Gang":
        return self

    def __exit__(self, *_: object) -> None:
        for feeder in self.feeders:
            feeder.__exit__()

    def open(self, cache: bool = True, most: int | None = None) -> None:
        for arriving in self.arriving:
            arriving.open(cache, most)

    def agreement(
        self, rank: int, last_batch: str = "pad", most: int | None = None, batch_size: int = 32
    ) -> RowBalance:
        return RowBalance(self.contexts[rank], self.arriving[rank], last_batch, most, batch_size)


def report(folder: Path, **counts: Any) -> None:
    """The report of rank 1."""
    terms = {"last_batch": "pad", "max_rows": None, "batch_size_per_worker": 32}
    (folder / "1.rows-train-0").write_text(json.dumps({**counts, "terms": terms}))


COUNTS = ([345, 331, 325], [1001, 0, 0], [0, 0, 1], [2, 0, 0], [0, 0, 0], [334, 334, 333])


def parts(counts: Iterable[int]) -> list[list[pa.RecordBatch]]:
    starts, total = [], 0
    for count in counts:
        starts.append((count, total))
        total += count
    return [list(batches(count, start=start)) for count, start in starts]


@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("cache", [True, False], ids=["kept", "given-away"])
@pytest.mark.parametrize("last_batch", ["pad", "drop"])
def test_ranks_even_their_rows_out(
    counts: list[int], cache: bool, last_batch: str, tmp_path: Path
) -> None:
    with Gang(tmp_path, *parts(counts)) as gang:
        gang.open(cache)
        agreed = [gang.agreement(rank, last_batch) for rank in range(3)]

        def reads(rank: int) -> Callable[[], list[int]]:
            return lambda: one_pass(gang.arriving[rank], agreed[rank])

        got = within(20, *[reads(rank) for rank in range(3)])
        again = within(20, *[reads(rank) for rank in range(3)]) if cache else got
    assert all(isinstance(rows, list) for rows in got), got
    assert again == got
    total = sum(counts)
    assert len({len(rows) for rows in got}) == 1
    everything = sorted(row for rows in got for row in rows)
    if last_batch == "pad":
        assert len(got[0]) == -(-total // 3)
        assert sorted(set(everything)) == list(range(total))
    else:
        assert len(got[0]) == total // 3
        assert len(set(everything)) == len(everything)
    settled = agreed[0].certain_rows(1 << 40)[1]
    assert settled is not None
    assert settled.rows == total


def test_a_rank_that_never_asks_and_returns(tmp_path: Path) -> None:
    with Gang(tmp_path, *parts([30, 30])) as gang:
        gang.open()
        (gang.folder / "1.done").touch()
        got = within(10, lambda: one_pass(gang.arriving[0], gang.agreement(0)))[0]
    assert isinstance(got, RuntimeError)
    assert "[1]" in str(got)
    assert "'train'" in str(got)


def test_a_rank_that_returns_before_all_its_rows_are_there(tmp_path: Path) -> None:
    """The rank used a batch or two before all its rows had arrived, so their number is unknown."""
    release = threading.Event()

    def slow() -> Iterator[pa.RecordBatch]:
        yield from batches(100)
        release.wait(60)

    try:
        with Gang(tmp_path, list(batches(300)), slow()) as gang:
            gang.open()
            report(gang.folder, rows=100, all=False)
            agreed, found = gang.agreement(0), []
            within(10, lambda: agreed.certain_rows(99))
            (gang.folder / "1.done").touch()

            def reads() -> None:
                position, settled = 0, None
                while settled is None:
                    certain, settled = agreed.certain_rows(position)
                    found.extend(ids_of(gang.arriving[0].take(position, certain)))
                    position = certain

            got = within(10, reads)[0]
            assert isinstance(got, RuntimeError), got
            assert "[1]" in str(got)
            assert "without data.dataset" not in str(got), "it did call it"
            assert found == list(range(100)), "what is certain can be used"
    finally:
        release.set()


def test_a_rank_that_returns_before_it_gave_its_spare_rows(tmp_path: Path) -> None:
    """All stop after a few batches; the slower rank still gets the rows that are its own."""
    with Gang(tmp_path, *parts([300, 400])) as gang:
        gang.open()
        report(gang.folder, rows=400, all=True)
        (gang.folder / "1.done").touch()
        agreed = gang.agreement(0)
        assert within(10, lambda: agreed.certain_rows(299)[0])[0] == 300
        beyond = within(10, lambda: agreed.certain_rows(300))[0]
    assert isinstance(beyond, RuntimeError)


def test_what_one_rank_lacks_does_not_stop_it_from_using_what_all_have(tmp_path: Path) -> None:
    """Rows are used while others still come, as many as every rank has by then."""
    release = threading.Event()

    def slow() -> Iterator[pa.RecordBatch]:
        yield from batches(100, start=1000)
        release.wait(60)
        yield from batches(200, start=1100)

    try:
        with Gang(tmp_path, list(batches(300)), slow()) as gang:
            gang.open()
            agreed = [gang.agreement(rank) for rank in range(2)]
            certain = within(
                10, lambda: agreed[0].certain_rows(98), lambda: agreed[1].certain_rows(98)
            )
            assert certain == [(100, None), (100, None)]
            release.set()
            reads = [lambda r=rank: one_pass(gang.arriving[r], agreed[r]) for rank in range(2)]
            got = within(10, *reads)
            assert got == [list(range(300)), list(range(1000, 1300))]
    finally:
        release.set()


def test_no_store_is_asked_more_often_than_it_was_said(tmp_path: Path) -> None:
    """While rows arrive one by one, a rank tells so at most every poll, not for each batch."""
    release = threading.Event()

    def trickling() -> Iterator[pa.RecordBatch]:
        for batch in batches(10_000):
            if release.wait(0.001):
                return
            yield batch

    with Gang(tmp_path, trickling(), trickling()) as gang:
        gang.open()
        agreed = gang.agreement(0), gang.agreement(1)
        written = []
        real = agreed[0]._counts._post
        agreed[0]._counts._post = lambda *said: (written.append(said), real(*said))  # type: ignore[assignment]
        time.sleep(1.0)
        release.set()
    assert 2 <= len(written) <= 15, len(written)
