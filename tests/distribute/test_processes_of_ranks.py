"""Ranks with processes that they have forked, and with threads that call the first collective."""

import os
import signal
from pathlib import Path

import pytest

from tests.helpers.gang import launch

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("nodes", ["aaa", "abc"])
def test_a_rank_that_dies_is_noticed_although_its_child_lives(tmp_path: Path, nodes: str) -> None:
    try:
        codes = (0, -signal.SIGKILL)
        told = launch(
            "neighbours.one_leaves_a_child",
            *(tmp_path, *["worker"] * 3),
            nodes=nodes,
            codes=codes,
            timeout_s=60,
            preload=["numpy"],
        )
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    assert told[1] is None
    assert all("lost connection to rank" in told[rank] for rank in (0, 2))


def test_forked_processes_do_not_disturb_the_reductions_of_a_rank(tmp_path: Path) -> None:
    told = launch("neighbours.forked_ranks_compute", tmp_path, *["worker"] * 3, preload=["numpy"])
    assert told == 3 * [[[3.0 * number for number in range(1, 21)], [7, 7], 3.0]]


def test_threads_that_call_the_first_collective_join_once(tmp_path: Path) -> None:
    told = launch("neighbours.two_threads_meet", tmp_path, *["worker"] * 2, preload=["numpy"])
    assert told == [[[2, 2], 2.0], 2.0]
