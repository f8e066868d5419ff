"""`hvd.elastic` without Spark: the task's part is played by the test."""

from pathlib import Path

import pytest

from tests.helpers.elastic_gang import Gang
from tests.helpers.processes import eventually

pytestmark = pytest.mark.timeout(120)


def test_each_step_counts_once_although_a_rank_is_lost_and_comes_back(tmp_path: Path) -> None:
    gang = Gang(tmp_path, "horovod_elastic")
    try:
        for rank in range(3):
            gang.start(rank, 3, "counts_steps")
        assert [gang.hear(rank)["generation"] for rank in range(3)] == [-1, -1, -1]
        gang.invite([0, 1, 2], is_calm=True)
        assert eventually((tmp_path / "hangs").exists)
        gang.kill(2)
        assert [gang.hear(rank)["generation"] for rank in (0, 1)] == [0, 0]
        gang.invite([0, 1], is_calm=True)
        gang.start(2, 3, "counts_steps", is_late=True)
        assert gang.hear(2)["has_state"] is False
        gang.tell("waiting")
        assert [gang.hear(rank)["generation"] for rank in (0, 1)] == [1, 1]
        gang.invite([0, 1, 2], is_calm=True)
        results = gang.results()
    finally:
        gang.close()
    step = results[0][0]
    undisturbed = [step, [step, step], [*range(step)], [*range(step)]]
    assert [results[rank][:4] for rank in range(3)] == [undisturbed] * 3
    assert [results[rank][4] for rank in range(3)] == [[2, 3], [2, 3], [3]]
