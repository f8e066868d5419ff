"""Ranks meet by files or by Spark, whichever is faster, and know who is missing."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.cluster.gang.meeting import FileMeeting, meet
from sparkdl.cluster.gang.rendezvous import Peer, deadline
from sparkdl.cluster.plan import Plan, Role
from sparkdl.files.rank_files import RankFiles
from tests.helpers.runs import quiet

PLAN = Plan(kind="allreduce", roles=(Role(name="worker", count=3),), is_gang=True)
PEERS = [Peer("127.0.0.1", 4000 + rank, "host", "node") for rank in range(PLAN.size)]
SECRET = b"of this attempt"


class Barrier:
    """A barrier stage whose `allGather` ends when all ranks have called it, or at its end."""

    def __init__(self, size: int = PLAN.size) -> None:
        self._records: list[str] = []
        self._barrier = threading.Barrier(size)

    def allGather(self, record: str) -> list[str]:
        self._records.append(record)
        self._barrier.wait(120)
        return sorted(self._records)

    def end(self) -> None:
        self._barrier.abort()


@contextmanager
def barrier(size: int = PLAN.size) -> Iterator[Any]:
    stage = Barrier(size)
    yield stage
    stage.end()


def enter(stage: Any, rank: int, url: str | Path, secret: bytes = SECRET) -> list[Peer]:
    return meet(stage, PEERS[rank], rank, PLAN.members, RankFiles(str(url)), secret)


def meet_all(stage: Any, urls: Sequence[str | Path]) -> list[list[Peer]]:
    with ThreadPoolExecutor(PLAN.size) as threads:
        return list(threads.map(lambda rank: enter(stage, rank, urls[rank]), range(PLAN.size)))


def test_ranks_meet_by_files_while_spark_has_not_answered(tmp_path: Path) -> None:
    with barrier(PLAN.size + 1) as never:
        assert meet_all(never, [tmp_path] * PLAN.size) == [PEERS] * PLAN.size


def test_ranks_meet_by_spark_where_one_does_not_see_the_files_of_the_others(tmp_path: Path) -> None:
    folders = [tmp_path / "shared", tmp_path / "shared", tmp_path / "elsewhere"]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    with barrier() as stage:
        assert meet_all(stage, folders) == [PEERS] * PLAN.size


def test_a_store_gets_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(RankFiles, "read_all")
    monkeypatch.delattr(RankFiles, "post")
    with barrier() as stage:
        assert meet_all(stage, ["memory://runs/0"] * PLAN.size) == [PEERS] * PLAN.size


def test_files_of_an_earlier_attempt_and_of_other_writers_do_not_count(tmp_path: Path) -> None:
    files = RankFiles(str(tmp_path))
    stale = [FileMeeting(files, b"another", rank, 2, f"stale {rank}") for rank in range(2)]
    assert [rank.look() for rank in (*stale, *stale)][2:] == [["stale 0", "stale 1"]] * 2
    files.post(1, "here", b"\xff" * 100)
    first, second = (FileMeeting(files, SECRET, rank, 2, f"new {rank}") for rank in range(2))
    assert second.look() is None  # Rank 0 has not opened the meeting of this attempt.
    assert first.look() is None
    # A message of another rank, or of another topic, is not one of this rank.
    files.post(1, "here", files.read(0, "open"))
    assert first.look() is None
    assert second.look() is None
    assert first.look() == second.look() == ["new 0", "new 1"]


def test_files_of_a_stage_that_spark_repeats_do_not_count(tmp_path: Path) -> None:
    files = RankFiles(str(tmp_path))
    before = [FileMeeting(files, SECRET, rank, 2, f"before {rank}") for rank in range(2)]
    assert [rank.look() for rank in (*before, *before)][2:] == [["before 0", "before 1"]] * 2
    first, second = (FileMeeting(files, SECRET, rank, 2, f"again {rank}") for rank in range(2))
    assert second.look() is None  # It has entered the meeting of before.
    assert first.look() is None
    assert second.look() is None
    assert first.look() == second.look() == ["again 0", "again 1"]


@pytest.mark.parametrize(
    ("entered", "missing"), [([0, 1], "worker 2"), ([1, 2], "worker 0"), ([1], "worker 0")]
)
def test_a_deadline_names_the_ranks_that_are_missing(
    entered: list[int], missing: str, tmp_path: Path
) -> None:
    files = RankFiles(str(tmp_path))
    others = [FileMeeting(files, SECRET, rank, PLAN.size, "") for rank in entered if rank != 1]
    for other in others:
        other.look()
    late = f"not all ranks had met after 0.3 s.*Missing: {missing}$"
    with barrier() as stage, pytest.raises(TimeoutError, match=late), deadline(0.3):
        enter(stage, 1, tmp_path)


def test_an_error_of_spark_ends_the_meeting(tmp_path: Path) -> None:
    with barrier() as stage:
        stage.end()
        with pytest.raises(threading.BrokenBarrierError):
            enter(stage, 1, tmp_path)


def test_a_look_is_the_more_seldom_the_longer_and_the_larger() -> None:
    one, large = (FileMeeting(RankFiles("/runs/a"), SECRET, 1, n, "") for n in (2, 1000))
    assert [one.pause_s(waited_s) for waited_s in (0.0, 0.5, 60.0)] == [0.005, 0.05, 0.1]
    assert large.pause_s(0.0) == 0.5


@pytest.mark.slow
def test_a_gang_on_a_shared_disk_does_not_wait_for_spark(spark: SparkSession, root: str) -> None:
    def train() -> list[str]:
        import os

        from sparkdl import context

        return os.listdir(f"{root}/{context.run}/trials/0/ranks/0")

    def has_met_first() -> bool:
        """Rank 0 posts the last one only if the ranks have met before Spark has answered."""
        run = experiment.allreduce(train, num_workers=2, **quiet(root))
        return {"0.open", "1.here", "0.met"} <= set(run.result)

    # On a busy machine, Spark may be the first for once.
    assert any(has_met_first() for _ in range(8))
