"""Which ranks of a gang are slow, against training schedules that are simulated step by step."""

import itertools
import json
import random
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl.cluster.gang import slow_ranks as module
from sparkdl.cluster.gang.slow_ranks import SLOW_SHARE, SlowRankWatch, slow_ranks
from sparkdl.distribute.step_times import RankTimes, StepTimes
from sparkdl.files.rank_files import RankFiles
from tests.helpers.gang import launch
from tests.programs.step_times import STEPS

# Seconds of own work before each of the reductions of a step, by step.
Work = Callable[[int], Sequence[float]]

SEND_S = 0.01


class Simulated:
    """A synchronous training on paper: the reductions of a step begin when the last rank is there.

    A rank that waits computes what follows, as backward passes do.
    """

    def __init__(self, work: Sequence[Work], hosts: str = "", num_steps: int = 80) -> None:
        self.now = 0.0
        self.work, self.num_steps = work, num_steps
        self.hosts = hosts or "abcdefghijklmnop"[: len(work)]
        self.times = [StepTimes(lambda: self.now) for _ in work]
        self.length_s = self._run()

    def _run(self) -> float:
        ended_s = 0.0
        for step in range(self.num_steps):
            parts = [work(step) for work in self.work]
            ready = [ended_s] * len(self.work)
            for number in range(len(parts[0])):
                ready = [at + part[number] for at, part in zip(ready, parts, strict=True)]
                # A rank's thread comes from the reduction before it, if its work is done sooner.
                begins = [max(at, ended_s) for at in ready]
                for rank in sorted(range(len(begins)), key=begins.__getitem__):
                    self.now = begins[rank]
                    if number == 0:
                        self.times[rank].reduce()
                    self.times[rank].enter(is_world=True)
                ended_s = self.now = max(begins) + SEND_S
                for times in self.times:
                    times.leave()
        return ended_s

    @property
    def posted(self) -> dict[int, RankTimes]:
        return {
            rank: times.message(f"host {host}", host)
            for rank, (times, host) in enumerate(zip(self.times, self.hosts, strict=True))
        }

    @property
    def found(self) -> list[int]:
        return [slow.rank for slow in slow_ranks(self.posted)]


def steady(*parts: float, noise: float = 0.0, seed: int = 0) -> Work:
    chance = random.Random(seed)
    return lambda step: [part * (1 + noise * chance.random()) for part in parts]


def test_the_rank_that_works_is_slow_and_those_that_wait_are_not() -> None:
    simulated = Simulated([steady(0.5), steady(1.0), steady(0.5)])
    (slow,) = slow_ranks(simulated.posted)
    assert (slow.rank, slow.host, slow.waits_for_rows) == (1, "host b", None)
    assert slow.wait_s == pytest.approx(0.5)
    assert slow.step_s == pytest.approx(1.0 + SEND_S)


def test_of_two_ranks_the_slow_one_is_found() -> None:
    assert Simulated([steady(1.0), steady(0.5)]).found == [0]


@pytest.mark.parametrize("num_steps", [5, module.MIN_SPANS])
def test_too_few_steps_say_nothing(num_steps: int) -> None:
    assert Simulated([steady(1.0), steady(0.5)], num_steps=num_steps).found == []


def test_all_ranks_of_a_slow_host_are_slow_together() -> None:
    assert Simulated([steady(0.5), steady(1.0), steady(1.0), steady(0.5)], "abba").found == [1, 2]


def test_a_rank_is_compared_with_its_own_host_if_there_is_no_other() -> None:
    assert Simulated([steady(0.5), steady(1.0), steady(0.5)], "aaa").found == [1]


def test_steps_of_two_lengths_make_no_rank_slow() -> None:
    """As of adversarial training: the median of each rank alone would jump between the lengths."""
    works = [lambda step, i=i: [(0.05, 1.0)[(step) % 2] * (1 + i / 100)] for i in range(3)]
    assert Simulated(works).found == []


def test_long_batches_on_another_rank_each_time_make_no_rank_slow() -> None:
    works = [lambda step, i=i: [1.0 if step % 3 == i else 0.3] for i in range(3)]
    assert Simulated(works).found == []


def test_a_rank_that_saves_now_and_then_is_not_slow() -> None:
    assert Simulated([lambda step: [0.5 + 20 * (step % 5 == 0)], steady(0.5)]).found == []


def test_a_slightly_slow_rank_whose_backward_pass_others_overlap_is_not_slow() -> None:
    """Of the others, most of the backward pass runs while they wait: they seem to do nothing."""
    parts = [1.2, *[0.2] * 9]
    simulated = Simulated([steady(*parts), steady(*(1.1 * part for part in parts))])
    sums = [times.message().sums[-1] for times in simulated.times]
    assert sums[1].own_s > 2 * sums[0].own_s
    assert simulated.found == []


def test_a_rank_of_half_the_speed_is_found_also_with_overlap() -> None:
    parts = [1.2, *[0.2] * 9]
    simulated = Simulated([steady(*parts), steady(*(2 * part for part in parts))])
    (slow,) = slow_ranks(simulated.posted)
    assert slow.rank == 1
    assert slow.wait_s == pytest.approx(3.0, rel=0.1)  # What a rank of full speed would save.


def test_what_is_found_is_what_would_save_time() -> None:
    """The oracle trains again, with no rank slower than the typical one of the others."""
    chance = random.Random(7)
    num_slow = 0
    for case in range(30):
        size = chance.randint(2, 6)
        speeds = [chance.choice((1.0, 1.0, 1.0, 1.1, 1.2, 1.5, 2.0, 3.0)) for _ in range(size)]
        speeds[chance.randrange(size)] = 1.0
        if sum(speed > 1.25 for speed in speeds) > 1:
            speeds = [min(speed, 1.2) for speed in speeds]
        base = chance.choice((0.1, 0.3, 1.0))
        num_parts = chance.choice((1, 1, 4))

        def works(factors: Sequence[float], base: float = base, parts: int = num_parts) -> Any:
            one = [base, *[base / 4] * (parts - 1)]
            return [
                steady(*(f * part for part in one), noise=0.05, seed=rank)
                for rank, f in enumerate(factors)
            ]

        steps = 80 if base > 0.2 else 300
        simulated = Simulated(works(speeds), num_steps=steps)
        found = simulated.found
        for rank in range(size):
            others = sorted(speed for r, speed in enumerate(speeds) if r != rank)
            typical = others[(len(others) - 1) // 2]
            if speeds[rank] < max(speeds) or speeds[rank] <= typical:
                assert rank not in found, (case, speeds, found)
                continue
            ideal = [min(speed, typical) for speed in speeds]
            saved = 1 - Simulated(works(ideal), num_steps=steps).length_s / simulated.length_s
            if abs(saved - SLOW_SHARE) > 0.06:  # Close to the threshold, noise decides.
                assert (rank in found) == (saved > SLOW_SHARE), (case, speeds, saved, found)
                num_slow += saved > SLOW_SHARE
    assert num_slow > 5


def test_rank_that_waits_for_its_rows_is_told_from_one_that_computes() -> None:
    for of_rows, expected in ((0.9, True), (0.2, False)):
        simulated = Simulated([steady(1.0), steady(0.5)])
        posted = simulated.posted
        for rank in range(2):
            share = of_rows if rank == 0 else 0.0
            sums = [s._replace(rows_s=share * s.first_s) for s in posted[rank].sums]
            posted[rank] = RankTimes(f"{rank}", f"{rank}", 0, tuple(sums))
        (slow,) = slow_ranks(posted)
        assert (slow.rank, slow.waits_for_rows) == (0, expected)


def test_reader_that_is_busy_all_the_time_is_what_its_rank_waits_for() -> None:
    for of_time, expected in ((0.98, True), (0.6, False)):
        posted = Simulated([steady(1.0), steady(0.5)]).posted
        sums = [s._replace(reading_s=of_time * s.total_s) for s in posted[0].sums]
        posted[0] = RankTimes("0", "0", 0, tuple(sums))
        assert [slow.waits_for_rows for slow in slow_ranks(posted)] == [expected]


def test_times_of_an_earlier_ring_do_not_count() -> None:
    posted = Simulated([steady(1.0), steady(0.5), steady(0.5)]).posted
    posted[0] = RankTimes("host a", "a", -1, posted[0].sums)
    assert slow_ranks(posted) == []


def test_watch_tells_a_slow_rank_once_for_each_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    files = RankFiles(str(tmp_path))
    watch = SlowRankWatch(files, range(2))
    assert watch.look() == []
    for node, num_steps in itertools.product("ab", (60, 80)):
        simulated = Simulated([steady(1.0), steady(0.5)], f"{node}z", num_steps)
        for rank, times in simulated.posted.items():
            files.post(rank, "times", times.to_json())
        told = [(slow.rank, slow.host) for slow in watch.look()]
        assert told == ([(0, f"host {node}")] if num_steps == 60 else [])
    files.post(0, "times", "{")
    assert watch.look() == []


def test_a_hundred_ranks_are_judged() -> None:
    hosts = "".join(map(chr, range(500, 628)))
    posted = Simulated([steady(1.0), *[steady(0.5)] * 127], hosts).posted
    assert [slow.rank for slow in slow_ranks(posted)] == [0]


def found_in(sums: Sequence[Any]) -> list[Any]:
    posted = {rank: RankTimes.parse(json.dumps(each).encode()) for rank, each in enumerate(sums)}
    return [(slow.rank, slow.waits_for_rows) for slow in slow_ranks(posted)]


@pytest.mark.slow
def test_slow_rank_of_keras_is_found(tmp_path: Path) -> None:
    # A busy host may slow down another rank, too.
    assert (1, None) in found_in(launch("step_times.fits", tmp_path, *["worker"] * 3))


@pytest.mark.slow
def test_rank_whose_rows_come_late_is_found(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [0.5] * STEPS}), tmp_path / "rows.parquet")
    sums = launch("step_times.takes_rows", tmp_path, *["worker"] * 2, preload=["pyarrow"])
    assert (1, True) in found_in(sums)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_slow_rank_of_pytorch_is_found(tmp_path: Path) -> None:
    sums = launch("step_times.trains_with_torch", tmp_path, *["worker"] * 2, preload=["torch"])
    assert (1, None) in found_in(sums)
