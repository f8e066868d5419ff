"""The ranks of a gang stop at the same step, in whatever order they learn of it."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparkdl.files.rank_files import RankFiles
from sparkdl.training.joint_stop import ASKS, FROM, HOLD, STOP, JointStop


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RankFiles:
    monkeypatch.setattr(RankFiles, "poll_s", lambda *_: 0.001)
    return RankFiles(str(tmp_path))


def wait_for(files: RankFiles, rank: int, topic: str) -> None:
    while not files.has_posted(rank, topic):
        pass


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_wait_for_each_other_stop_at_the_same_step(files: RankFiles, size: int) -> None:
    """If one stopped a step earlier than another, the barrier would be broken."""
    met = threading.Barrier(size, timeout=60)
    first_steps = threading.Barrier(size + 1)

    def train(stop: JointStop) -> int:
        step = 0
        while not stop.ask():
            met.wait()  # An all-reduce.
            step += 1
            if step == 10:
                first_steps.wait()
        return step

    with ThreadPoolExecutor(size) as threads:
        stopped = [threads.submit(train, JointStop(files, rank, size)) for rank in range(size)]
        first_steps.wait()
        files.order(STOP)
        assert len({stop.result() for stop in stopped}) == 1


def test_a_rank_that_is_many_steps_ahead_stops_at_the_same_step(files: RankFiles) -> None:
    behind, ahead = JointStop(files, 0, 2), JointStop(files, 1, 2)
    assert [ahead.ask() for _ in range(50)] == [False] * 50
    files.order(STOP)
    wait_for(files, 0, FROM)
    assert [behind.ask() for _ in range(52)] == [False] * 50 + [True] * 2
    assert ahead.ask()


def test_no_rank_waits_for_one_that_does_not_ask(files: RankFiles) -> None:
    stop = JointStop(files, 0, 2)
    wait_for(files, 0, ASKS)
    files.order(STOP)
    assert not any(stop.ask() for _ in range(1000))
    assert not files.has_ordered(HOLD)
    files.post(1, "done")  # The thread ends with the test.
    wait_for(files, 0, FROM)


def test_ranks_do_not_stop_if_one_has_ended(files: RankFiles) -> None:
    first, second = JointStop(files, 0, 3), JointStop(files, 1, 3)
    files.post(2, "done")
    files.order(STOP)
    wait_for(files, 0, FROM)
    assert not any(first.ask() or second.ask() for _ in range(1000))


def test_ranks_go_on_if_the_first_has_ended_before_it_decided(files: RankFiles) -> None:
    stop = JointStop(files, 1, 2)
    files.order(HOLD)
    wait_for(files, 1, "last-question")
    files.post(0, "done")
    assert not stop.ask()
