"""Ranks of one host, of which one has left and one hangs: the others fail in time, and sleep."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.gang import invitations
from tests.helpers.prefork import fork

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


def test_a_neighbour_that_left_and_one_that_hangs(tmp_path: Path) -> None:
    processes: list[Any] = []
    channels = invitations(4, "aaaa", timeout_s=5.0)
    try:
        for rank, channel in enumerate(channels):
            me = {"rank": rank, "world_size": 4, "kind": "allreduce", "ring": channel.fileno()}
            arguments = ["neighbours.one_leaves_one_hangs", str(tmp_path), str(rank)]
            with (tmp_path / f"{rank}.log").open("w") as log:
                env = {"SPARKDL_CONTEXT": json.dumps(me)}
                processes.append(fork(["numpy"], arguments, env, log.fileno(), channel.fileno()))
        for rank in (0, 2, 3):
            assert processes[rank].wait(200) == 0, (tmp_path / f"{rank}.log").read_text()
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for channel in channels:
            channel.close()
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 2, 3)]
    assert results[0] == {"left": True}
    assert "timed out after 5 s waiting for rank 1" in results[1]["error"]
    assert "rank 2" in results[2]["error"]
    for result in results[1:]:
        assert 4.5 < result["after_s"] < 100
        assert result["cpu_s"] < 0.5
