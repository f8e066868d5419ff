"""The decisions on the next ring of an elastic gang, from the files that its tasks write."""

from pathlib import Path
from typing import Any

import pytest

from sparkdl.cluster.gang import membership as membership_module
from sparkdl.cluster.gang.elastic_seat import post_request
from sparkdl.cluster.gang.membership import (
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
