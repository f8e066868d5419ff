"""One copy of the rows for the tasks of an executor: real processes, files and sockets."""

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.cluster.feeding import whole
from sparkdl.cluster.process import shared_rows
from sparkdl.cluster.process.shared_rows import SharedRows
from sparkdl.data.dataframe.balancing import SingleRank
from sparkdl.data.dataframe.protocol import Feed
from sparkdl.data.dataframe.receiver import Receiver
from sparkdl.data.dataframe.sender import RowSender
from tests.helpers.processes import eventually

SCHEMA = pa.schema([("id", pa.int64())])
FEED = Feed({"train": SCHEMA.serialize().to_pybytes()}, copy_key="key")
ROWS = 300
IDLE_S = 2.0


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCAL_DIRS", str(tmp_path))
    (tmp_path / "sparkdl-rows").mkdir()
    return tmp_path / "sparkdl-rows"


class Partition:
    """Batches of a partition, of which the numbers are counted that were read.

    Args:
        go_on: waited for before the last batch.
    """

    def __init__(self, go_on: "threading.Event | None" = None) -> None:
        self.num_read = 0
        self.started = threading.Event()
        self._go_on = go_on

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for begin in range(0, ROWS, 10):
            if self._go_on and begin == ROWS - 10:
                assert self._go_on.wait(120)
            self.num_read += 1
            self.started.set()
            yield pa.record_batch([list(range(begin, begin + 10))], SCHEMA)


def train(feeder: RowSender, max_rows: int | None = None) -> list[int]:
    """Return the ids that a training process reads."""
    rows = Receiver(feeder.process_end).datasets["train"]
    rows.open(True, max_rows)
    found: list[int] = []
    position, settled = 0, None
    while settled is None:
        certain, settled = SingleRank(rows, max_rows).certain_rows(position)
        found += [i for batch in rows.take(position, certain) for i in batch["id"].to_pylist()]
        position = certain
    return found


def one_trial(
    disk: Path, batches: Iterable[pa.RecordBatch], max_rows: int | None = None, key: str = "key"
) -> bool:
    """Run a trial that reads what it should; return True if its partition was not read."""
    with RowSender(FEED, batches, SharedRows(disk / key, IDLE_S)) as feeder:
        assert train(feeder, max_rows) == list(range(max_rows or ROWS))
        if max_rows is None:
            feeder._thread.join(120)
            assert feeder.problem is None
        return feeder.is_cut_short


def test_one_task_converts_while_others_wait_and_later_ones_map_its_files(disk: Path) -> None:
    go_on = threading.Event()
    first, second = Partition(go_on), Partition()
    found: list[bool] = []
    threads = [threading.Thread(target=lambda: found.append(one_trial(disk, first)))]
    threads[0].start()
    assert first.started.wait(120)
    assert not one_trial(disk, Partition(), key="other"), "another run leaves the first one alone"
    threads.append(threading.Thread(target=lambda: found.append(one_trial(disk, second))))
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(120)
    assert sorted(found) == [False, True]
    later = Partition()
    assert one_trial(disk, later)
    assert (first.num_read, second.num_read, later.num_read) == (30, 0, 0)
    assert eventually(lambda: not list(disk.iterdir())), "the copy has gone with its trials"
    assert list(disk.parent.iterdir()) == [disk], "all other files are unnamed"


def write_half(disk: Path, started: "multiprocessing.synchronize.Event") -> None:
    partition = Partition(threading.Event())
    with RowSender(FEED, partition, SharedRows(disk / "key", IDLE_S)):
        assert partition.started.wait(120)
        started.set()
        threading.Event().wait()


def hold(disk: Path, started: "multiprocessing.synchronize.Event") -> None:
    with RowSender(FEED, Partition(), SharedRows(disk / "key", IDLE_S)) as feeder:
        train(feeder)
        assert eventually((disk / "key" / "socket").exists)
        started.set()
        threading.Event().wait()


@pytest.mark.parametrize("how", [write_half, hold])
def test_a_killed_task_leaves_no_half_copy_and_no_files(disk: Path, how: object) -> None:
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    process = context.Process(target=how, args=(disk, started))  # type: ignore[arg-type]
    process.start()
    assert started.wait(120)
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    partition = Partition()
    assert one_trial(disk, partition) == (how is hold)
    assert partition.num_read == (0 if how is hold else 30)
    assert eventually(lambda: not list(disk.iterdir()))


def test_a_copy_whose_holder_was_killed_is_written_again(disk: Path) -> None:
    assert not one_trial(disk, Partition())
    [holder] = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and str(disk / "key").encode() in _command(entry)
    ]
    os.kill(holder, signal.SIGKILL)
    assert eventually(lambda: not _command(Path(f"/proc/{holder}")))
    partition = Partition()
    assert not one_trial(disk, partition)
    assert partition.num_read == 30
    assert one_trial(disk, Partition())


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_an_unused_copy_makes_room_for_another_run(disk: Path) -> None:
    shared = SharedRows(disk / "other", idle_s=600)
    with RowSender(FEED, Partition(), shared) as feeder:
        train(feeder)
        feeder._thread.join(120)
    one_trial(disk, Partition())
    assert eventually(lambda: not (disk / "other").exists())


@pytest.mark.parametrize("why", ["disk", "steps"])
def test_without_a_copy_each_trial_reads_its_partition(
    disk: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    if why == "disk":
        monkeypatch.setattr(shared_rows, "MAX_SHARE", 0.0)
    go_on = threading.Event()
    first, later = Partition(go_on), Partition()
    with caplog.at_level(logging.WARNING):
        if why == "disk":
            go_on.set()
            assert not one_trial(disk, first)
        else:
            with RowSender(FEED, first, SharedRows(disk / "key", IDLE_S)) as feeder:
                assert train(feeder, max_rows=25) == list(range(25))
                # The others need not wait for rows that this trial does not read.
                go_on.set()
                assert not one_trial(disk, later)
    expected = {"disk": "the disk has no room for them (0 MiB and more)", "steps": "reads a part"}
    [line] = [line for line in caplog.messages if "share no copy" in line]
    assert expected[why] in line
    assert [path.name for path in (disk / "key").iterdir()] == ["none"]
    assert not one_trial(disk, Partition())


def test_trials_that_end_early_do_not_make_others_wait_for_ever(disk: Path) -> None:
    for _ in range(2):
        go_on = threading.Event()
        partition = Partition(go_on)
        with RowSender(FEED, partition, SharedRows(disk / "key", IDLE_S)) as feeder:
            assert partition.started.wait(120)
            rows = Receiver(feeder.process_end).datasets["train"]
            rows.open(True, None)
            rows.wait(0)
        go_on.set()
        feeder._thread.join(120)
        assert not feeder._thread.is_alive()
    assert (disk / "key" / "none").exists()
    partition = Partition()
    assert not one_trial(disk, partition)
    assert partition.num_read == 30
    assert not one_trial(disk, Partition(), key="other")
    assert not (disk / "key").exists(), "no process was there to remove it"
    assert not one_trial(disk, Partition())
    assert one_trial(disk, Partition()), "a run that goes on tries again"


def test_more_files_than_fit_in_one_packet(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkdl.data.dataframe.spool.FILE_BYTES", 1)
    monkeypatch.setattr("sparkdl.data.dataframe.spool.MAX_FILE_BYTES", 1)
    batches = [pa.record_batch([np.array([i])], SCHEMA) for i in range(ROWS)]
    assert not one_trial(disk, batches)
    assert one_trial(disk, [])


def test_a_stream_that_spark_has_cut_makes_no_copy(disk: Path) -> None:
    """Arrow takes the end of the stream between two batches for the end of the rows."""
    inside, outside = os.pipe()
    with os.fdopen(inside, "rb") as stream, os.fdopen(outside, "wb") as spark:
        writer = pa.ipc.new_stream(spark, SCHEMA)
        for batch in [*Partition()][:-1]:
            writer.write_batch(batch)
        spark.close()
        cut = whole(pa.ipc.open_stream(stream), stream)
        with RowSender(FEED, cut, SharedRows(disk / "key", IDLE_S)) as feeder:
            with pytest.raises(RuntimeError, match="EOFError: Spark has ended the task before"):
                train(feeder)
            feeder._thread.join(120)
            assert feeder.is_ended_by_spark and not feeder.has_copy
    assert not one_trial(disk, Partition())
