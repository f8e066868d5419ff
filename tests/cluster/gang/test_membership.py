"""The decisions on the next ring of an elastic gang, from the files that its tasks write."""

from pathlib import Path
from typing import Any

import pytest

from sparkdl.cluster.gang import membership as membership_module
from sparkdl.cluster.gang.elastic_seat import post_request
from sparkdl.cluster.gang.membership import (
    INCARNATIONS,
    JoinRequest,
    Membership,
    newest_incarnation,
    read_generation,
)
from sparkdl.files import storage
from sparkdl.files.rank_files import RankFiles
from tests.helpers.counting_store import CountingStore, counting_store  # noqa: F401


def begin(files: RankFiles, rank: int, incarnation: int) -> None:
    files.post_numbered("began", rank, incarnation)


def ask(files: RankFiles, number: int, rank: int, incarnation: int, **state: Any) -> None:
    request = JoinRequest(
        rank=rank, incarnation=incarnation, address="127.0.0.1", port=1, node="a", **state
    )
    post_request(files, number, request)


def ranks(files: RankFiles, number: int) -> list[int]:
    return [member.rank for member in read_generation(files, number).members]


def started(files: RankFiles, size: int) -> Membership:
    membership = Membership(files, size, 60)
    for rank in range(size):
        begin(files, rank, 0)
        ask(files, 0, rank, 0)
    membership.look()
    assert ranks(files, 0) == [*range(size)]
    return membership


def test_survivors_form_a_ring_and_then_let_a_new_process_in(tmp_path: Path) -> None:
    files = RankFiles(str(tmp_path))
    membership = started(files, 3)
    begin(files, 1, 1)  # Spark has started the rank again: the process before is gone.
    ask(files, 1, 0, 0, between_steps=False)
    membership.look()
    assert not (tmp_path / "generation-1").exists()  # Rank 2 may still come.
    ask(files, 1, 2, 0, between_steps=False)
    ask(files, 1, 1, 1, has_state=False)
    membership.look()
    assert ranks(files, 1) == [0, 2]
    for rank in (0, 2):
        ask(files, 2, rank, 0)
    ask(files, 2, 1, 1, has_state=False)
    membership.look()
    assert ranks(files, 2) == [0, 1, 2]


def test_a_loss_while_a_process_is_let_in_leaves_that_process_out(tmp_path: Path) -> None:
    files = RankFiles(str(tmp_path))
    membership = started(files, 3)
    begin(files, 1, 1)
    for rank in (0, 2):
        ask(files, 1, rank, 0)
    ask(files, 1, 1, 1, has_state=False)
    membership.look()
    assert ranks(files, 1) == [0, 1, 2]
    begin(files, 2, 1)  # Lost while the others agreed on who has the state.
    ask(files, 2, 0, 0, between_steps=False)
    ask(files, 2, 1, 1, between_steps=True, has_state=False)
    membership.look()
    assert ranks(files, 2) == [0]


def freeze_listing(monkeypatch: pytest.MonkeyPatch, files: RankFiles) -> None:
    """Let listings show what is there now, as a client of NFS does for up to a minute."""
    names = storage.list_names(files.url)
    monkeypatch.setattr(storage, "list_names", lambda url: names)


def test_a_request_that_no_listing_shows_yet_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RankFiles(str(tmp_path))
    monkeypatch.setattr(membership_module, "SILENCE_TIMEOUT_S", 0.0)
    membership = started(files, 3)
    begin(files, 2, 1)
    ask(files, 1, 0, 0, between_steps=False)
    freeze_listing(monkeypatch, files)
    ask(files, 1, 1, 0, between_steps=False)
    membership.look()
    membership.look()
    assert ranks(files, 1) == [0, 1]


def test_a_busy_process_that_no_listing_shows_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RankFiles(str(tmp_path))
    monkeypatch.setattr(membership_module, "SILENCE_TIMEOUT_S", 0.0)
    membership = started(files, 2)
    ask(files, 1, 0, 0, between_steps=False)
    freeze_listing(monkeypatch, files)
    files.post_numbered("alive", 1, 1, 0)
    membership.look()
    membership.look()
    assert not (tmp_path / "generation-1").exists()


def test_a_gang_whose_end_no_listing_shows_yet_is_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RankFiles(str(tmp_path))
    membership = started(files, 1)
    begin(files, 0, 1)  # Its executor is lost after the function has returned.
    freeze_listing(monkeypatch, files)
    files.post(0, "done")
    membership.look()
    assert not (tmp_path / "generation-1").exists()


def test_the_newest_incarnation_is_found_behind_an_old_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RankFiles(str(tmp_path))
    assert newest_incarnation(files, 0) == -1
    begin(files, 0, 0)
    freeze_listing(monkeypatch, files)
    begin(files, 0, 1)
    begin(files, 0, 2)
    assert newest_incarnation(files, 0) == 2


def test_ring_of_many_ranks_in_a_store_is_decided_with_one_look_at_the_requests(
    counting_store: CountingStore,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []
    read_many = storage.read_many

    def counted(urls: list[str]) -> dict[str, bytes]:
        looks.append(len(urls))
        return read_many(urls)

    monkeypatch.setattr(storage, "read_many", counted)
    started(RankFiles(counting_store.url("ranks")), 50)
    assert looks == [50]


def test_process_of_a_lost_executor_is_left_out_although_it_asks(tmp_path: Path) -> None:
    files, present = RankFiles(str(tmp_path)), {"1", "2", "3"}
    membership = Membership(files, 3, 60, lambda: present)
    for rank, executor in enumerate("123"):
        begin(files, rank, 0)
        ask(files, 0, rank, 0, executor=executor)
    membership.look()
    for rank, executor in enumerate("123"):
        ask(files, 1, rank, 0, between_steps=False, executor=executor)
    present.remove("3")
    membership.look()
    assert ranks(files, 1) == [0, 1]
    ask(files, 2, 0, 0, between_steps=False, executor="1")
    present.remove("2")
    membership.look()
    assert ranks(files, 2) == [0]
    begin(files, 2, 1)  # The task on the host that is cut off starts a new process.
    for rank, incarnation, executor in [(0, 0, "1"), (2, 1, "3")]:
        ask(files, 3, rank, incarnation, executor=executor)
    membership.look()
    assert ranks(files, 3) == [0]
    gone = sorted(path.name for path in tmp_path.glob("gone-*"))
    assert gone == ["gone-1-0", "gone-2-0", "gone-2-1"]


def test_process_whose_executor_spark_knows_by_another_name_stays(tmp_path: Path) -> None:
    files = RankFiles(str(tmp_path))
    membership = Membership(files, 2, 60, lambda: {"1", "2"})
    for rank in range(2):
        begin(files, rank, 0)
        ask(files, 0, rank, 0, executor="EXECID")
    membership.look()
    membership.look()
    assert not list(tmp_path.glob("gone-*"))


def stand_by(files: RankFiles, rank: int, incarnation: int, number: int) -> None:
    files.post_numbered("moves", rank, incarnation)
    ask(files, number, rank, incarnation, has_state=False)


def members(files: RankFiles, number: int) -> list[tuple[int, int]]:
    return sorted(read_generation(files, number).processes)


def test_process_takes_the_place_of_a_slow_one_between_two_steps(tmp_path: Path) -> None:
    files = RankFiles(str(tmp_path))
    membership = started(files, 3)
    stand_by(files, 1, 100, 1)
    membership.look()
    assert not (tmp_path / "generation-1").exists()  # The others train.
    for rank in (0, 2):
        ask(files, 1, rank, 0)
    membership.look()
    assert not (tmp_path / "generation-1").exists()  # The slow rank makes its step.
    ask(files, 1, 1, 0)
    membership.look()
    assert members(files, 1) == [(0, 0), (1, 100), (2, 0)]
    assert {rank: each.incarnation for rank, each in membership.moved.items()} == {1: 100}
    # It counts as a member before it has told that it is in.
    for rank, incarnation in [(0, 0), (2, 0)]:
        ask(files, 2, rank, incarnation, between_steps=False)
    membership.look()
    assert not (tmp_path / "generation-2").exists()
    begin(files, 1, 100)
    ask(files, 2, 1, 100, between_steps=False)
    membership.look()
    assert members(files, 2) == [(0, 0), (1, 100), (2, 0)]


def test_process_takes_no_place_while_a_collective_was_cut_short(tmp_path: Path) -> None:
    files = RankFiles(str(tmp_path))
    membership = started(files, 3)
    stand_by(files, 1, 100, 1)
    begin(files, 2, 1)  # Lost, which cut a collective of the others short.
    ask(files, 1, 0, 0, between_steps=False)
    ask(files, 1, 1, 0, between_steps=False)
    membership.look()
    assert members(files, 1) == [(0, 0), (1, 0)]
    assert membership.moved == {}
    stand_by(files, 1, 100, 2)
    for rank, incarnation, has_state in [(0, 0, True), (1, 0, True), (2, 1, False)]:
        ask(files, 2, rank, incarnation, has_state=has_state)
    membership.look()
    assert members(files, 2) == [(0, 0), (1, 100), (2, 1)]


def test_slow_process_stays_if_only_it_has_the_state(tmp_path: Path) -> None:
    files = RankFiles(str(tmp_path))
    membership = started(files, 2)
    stand_by(files, 1, 100, 1)
    begin(files, 0, 1)
    ask(files, 1, 0, 1, has_state=False)
    ask(files, 1, 1, 0)
    membership.look()
    assert members(files, 1) == [(0, 1), (1, 0)]


def test_process_that_moves_comes_before_one_that_spark_has_started_again(tmp_path: Path) -> None:
    files = RankFiles(str(tmp_path))
    membership = started(files, 2)
    stand_by(files, 1, 100, 1)
    begin(files, 1, 1)  # The slow process was killed.
    ask(files, 1, 1, 1, has_state=False)
    ask(files, 1, 0, 0)
    membership.look()
    assert members(files, 1) == [(0, 0), (1, 100)]


def test_process_that_has_ended_before_it_was_in_takes_no_place(tmp_path: Path) -> None:
    files = RankFiles(str(tmp_path))
    membership = started(files, 2)
    stand_by(files, 1, 100, 1)
    files.post_numbered("gone", 1, 100)
    for rank in range(2):
        ask(files, 1, rank, 0)
    membership.look()
    assert members(files, 1) == [(0, 0), (1, 0)]


def grown(files: RankFiles) -> Membership:
    """A gang of two ranks, and a third one that was let in."""
    membership = started(files, 2)
    stand_by(files, 2, INCARNATIONS, 1)
    for rank in range(2):
        ask(files, 1, rank, 0)
    membership.look()
    assert members(files, 1) == [(0, 0), (1, 0), (2, INCARNATIONS)]
    begin(files, 2, INCARNATIONS)
    return membership


def test_further_rank_comes_and_leaves_between_two_steps(tmp_path: Path) -> None:
    files = RankFiles(str(tmp_path))
    membership = grown(files)
    membership.release(2, INCARNATIONS)
    assert (tmp_path / f"leaves-2-{INCARNATIONS}").exists()
    for rank, incarnation in [(0, 0), (1, 0), (2, INCARNATIONS)]:
        ask(files, 2, rank, incarnation)
    membership.look()
    assert members(files, 2) == [(0, 0), (1, 0)]
    assert membership.members == {0: 0, 1: 0}
    # A later process of the rank may come again.
    stand_by(files, 2, 2 * INCARNATIONS, 3)
    for rank in range(2):
        ask(files, 3, rank, 0)
    membership.look()
    assert members(files, 3) == [(0, 0), (1, 0), (2, 2 * INCARNATIONS)]


def test_rank_that_is_to_leave_stays_while_a_collective_is_cut_short(tmp_path: Path) -> None:
    files = RankFiles(str(tmp_path))
    membership = grown(files)
    membership.release(2, INCARNATIONS)
    begin(files, 1, 1)  # Lost: all repeat the collective together.
    for rank, incarnation in [(0, 0), (2, INCARNATIONS)]:
        ask(files, 2, rank, incarnation, between_steps=False)
    membership.look()
    assert members(files, 2) == [(0, 0), (2, INCARNATIONS)]


def test_rank_that_is_to_leave_stays_if_only_it_has_the_state(tmp_path: Path) -> None:
    files = RankFiles(str(tmp_path))
    membership = grown(files)
    membership.release(2, INCARNATIONS)
    for rank in range(2):
        begin(files, rank, 1)
        ask(files, 2, rank, 1, has_state=False)
    ask(files, 2, 2, INCARNATIONS)
    membership.look()
    assert members(files, 2) == [(0, 1), (1, 1), (2, INCARNATIONS)]


def test_process_that_is_to_leave_before_it_is_in_is_not_let_in(tmp_path: Path) -> None:
    files = RankFiles(str(tmp_path))
    membership = started(files, 2)
    stand_by(files, 2, INCARNATIONS, 1)
    membership.release(2, INCARNATIONS)
    for rank in range(2):
        ask(files, 1, rank, 0)
    membership.look()
    assert members(files, 1) == [(0, 0), (1, 0)]


def test_process_that_was_started_again_is_to_leave_as_the_one_before(tmp_path: Path) -> None:
    files = RankFiles(str(tmp_path))
    membership = grown(files)
    begin(files, 2, INCARNATIONS + 1)
    membership.release(2, INCARNATIONS)
    for rank in range(2):
        ask(files, 2, rank, 0)
    ask(files, 2, 2, INCARNATIONS + 1, has_state=False)
    membership.look()
    assert members(files, 2) == [(0, 0), (1, 0)]
