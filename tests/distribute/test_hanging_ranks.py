"""Ranks of one host, of which one has left and one hangs: the others fail in time, and sleep."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.gang import invitations
from tests.helpers.prefork import fork

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


def results_of(program: str, nodes: str, timeout_s: float, folder: Path) -> list[Any]:
    """Run a program in four processes, of which rank 1 ends up stopped; return what they told."""
    processes: list[Any] = []
    channels = invitations(4, nodes, timeout_s=timeout_s)
    try:
        for rank, channel in enumerate(channels):
            me = {"rank": rank, "world_size": 4, "kind": "allreduce", "ring": channel.fileno()}
            arguments = [f"neighbours.{program}", str(folder), str(rank)]
            with (folder / f"{rank}.log").open("w") as log:
                env = {"SPARKDL_CONTEXT": json.dumps(me)}
                processes.append(fork(["numpy"], arguments, env, log.fileno(), channel.fileno()))
        for rank in (0, 2, 3):
            assert processes[rank].wait(200) == 0, (folder / f"{rank}.log").read_text()
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for channel in channels:
            channel.close()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 2, 3)]


def test_a_neighbour_that_left_and_one_that_hangs(tmp_path: Path) -> None:
    results = results_of("one_leaves_one_hangs", "aaaa", 5.0, tmp_path)
    assert results[0] == {"left": True}
    assert "timed out after 5 s waiting for rank 1" in results[1]["error"]
    assert "rank 2" in results[2]["error"]
    for result in results[1:]:
        assert 4.5 < result["after_s"] < 100
        assert result["cpu_s"] < 0.5


def test_a_rank_that_is_stopped_between_rounds(tmp_path: Path) -> None:
    errors = results_of("one_is_stopped_between_rounds", "aabb", 2.0, tmp_path)
    assert any("timed out after 2 s waiting for rank 1" in error for error in errors), errors
    assert all("rank" in error for error in errors), errors
