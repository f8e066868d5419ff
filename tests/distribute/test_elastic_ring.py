"""A ring that outlives its ranks, without Spark: the task's part is played by the test."""

import time
from pathlib import Path
from typing import Any

import pytest

from sparkdl.cluster.gang.rendezvous import listen
from sparkdl.distribute.invitation import Endpoint, Invitation
from tests.helpers.elastic_gang import Gang

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def gang(tmp_path: Path) -> Any:
    made = Gang(tmp_path, "elastic_ring")
    yield made
    made.close()


def seen(path: Path) -> bool:
    deadline = time.monotonic() + 200
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("what", ["allreduce", "short", "broadcast", "allgather", "agreement"])
def test_the_others_go_on_with_what_one_of_them_knows(gang: Gang, what: str) -> None:
    """Rank 2 dies behind a collective that only some of the ranks could finish."""
    for rank in range(4):
        gang.start(rank, 4, f"cut_short_{what}")
    assert [gang.hear(rank) for rank in range(4)] == 4 * [
        {"generation": -1, "is_calm": True, "has_state": True}
    ]
    gang.invite([0, 1, 2, 3], is_calm=True)
    assert seen(gang.folder / "hangs-2")
    time.sleep(0.3)
    gang.kill(2)
    asked = [gang.hear(rank) for rank in (0, 1, 3)]
    assert asked == 3 * [{"generation": 0, "is_calm": False, "has_state": True}]
    gang.invite([0, 1, 3], is_calm=False)
    results = gang.results()
    assert results[0] == results[1] == results[3]
    sums = {  # With the rank that is gone where one of the others had the result already.
        "allreduce": [900_000 * (1 + 2 + 4) / 3],
        "short": [4 * 36 + 9 * (0 + 1 + 2 + 3)],
        "broadcast": [900_000 * 2],
        "allgather": [9, 36, 81, 144],
        "agreement": [15],  # Of the ranks that are left: the agreement came before.
    }
    assert results[0][0] == sums[what]


def test_a_rank_is_no_more_than_one_result_behind_another(gang: Gang) -> None:
    """Rank 2 dies before it passes on the first of some broadcasts."""
    for rank in range(4):
        gang.start(rank, 4, "broadcasts_in_turn")
    assert [gang.hear(rank)["generation"] for rank in range(4)] == 4 * [-1]
    gang.invite([0, 1, 2, 3], is_calm=True)
    assert seen(gang.folder / "hangs-2")
    time.sleep(0.3)
    gang.kill(2)
    assert [gang.hear(rank)["generation"] for rank in (0, 1, 3)] == 3 * [0]
    gang.invite([0, 1, 3], is_calm=False)
    expected = [[5.0, 5.0], [7.0, 7.0], [9.0, 9.0]]
    assert gang.results() == dict.fromkeys((0, 1, 3), expected)


def test_a_rank_that_comes_late_is_given_what_the_others_have(gang: Gang) -> None:
    for rank in (0, 1):
        gang.start(rank, 2, "comes_late")
    assert [gang.hear(rank)["generation"] for rank in (0, 1)] == [-1, -1]
    gang.invite([0, 1], is_calm=True)
    assert seen(gang.folder / "step-0")
    gang.kill(0)
    assert gang.hear(1) == {"generation": 0, "is_calm": False, "has_state": True}
    gang.invite([1], is_calm=False)
    gang.start(0, 2, "comes_late", is_late=True)
    assert gang.hear(0) == {"generation": -1, "is_calm": True, "has_state": False}
    gang.tell("waiting")
    assert gang.hear(1) == {"generation": 1, "is_calm": True, "has_state": True}
    gang.invite([0, 1], is_calm=True)
    assert seen(gang.folder / "late-0")
    (gang.folder / "stop").touch()
    results = gang.results()
    assert results[0][:3] == results[1][:3] == [results[0][0], [results[0][0]] * 3, 2]
    assert "cannot call a collective before it has joined" in results[0][3]
    assert (results[0][4], results[1][4]) == (True, False)


def test_a_gang_in_rounds_loses_a_rank_and_gets_it_back(gang: Gang) -> None:
    """The further connections are opened anew for each number of ranks."""
    for rank in range(5):
        gang.start(rank, 5, "comes_late_in_rounds")
    assert [gang.hear(rank)["generation"] for rank in range(5)] == [-1] * 5
    gang.invite([0, 1, 2, 3, 4], is_calm=True)
    assert seen(gang.folder / "step-2")
    gang.kill(2)
    left = [0, 1, 3, 4]
    lost = {"generation": 0, "is_calm": False, "has_state": True}
    assert [gang.hear(rank) for rank in left] == [lost] * 4
    gang.invite(left, is_calm=False)
    gang.start(2, 5, "comes_late_in_rounds", is_late=True)
    assert gang.hear(2)["has_state"] is False
    gang.tell("waiting")
    assert [gang.hear(rank)["generation"] for rank in left] == [1] * 4
    gang.invite([0, 1, 2, 3, 4], is_calm=True)
    assert seen(gang.folder / "late-2")
    (gang.folder / "stop").touch()
    results = gang.results()
    number = results[0][0]
    assert [results[rank][:3] for rank in range(5)] == [[number, [number] * 3, 5]] * 5
    assert [results[rank][5] for rank in range(5)] == [True] * 5


def test_a_ring_that_does_not_come_about_is_left(gang: Gang) -> None:
    """Rank 1 dies before it has joined: the task of rank 0 knows, and says so."""
    for rank in (0, 1):
        gang.start(rank, 2, "comes_late")
    assert [gang.hear(rank)["generation"] for rank in (0, 1)] == [-1, -1]
    gang.kill(1)
    gang.processes.pop(1)
    gang.generation = 0
    one = listen("127.0.0.1")
    endpoints = [Endpoint("127.0.0.1", one.getsockname()[1], "a")] * 2
    Invitation(0, endpoints, b"secret", members=[0, 1]).send(gang.ends[0], one)
    gang.tell("off")
    assert gang.hear(0) == {"generation": 0, "is_calm": True, "has_state": True}
    (gang.folder / "stop").touch()
    gang.invite([0], is_calm=True)
    assert gang.results()[0] == [0, [0.0] * 3, 1, "", True]
