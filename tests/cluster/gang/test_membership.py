"""Who makes the next ring of an elastic gang, by the files that its tasks write."""

import json
from dataclasses import asdict
from pathlib import Path

from sparkdl.cluster.gang.membership import Here, Roster, read_generation


def begin(folder: Path, rank: int, life: int) -> None:
    (folder / f"began-{rank}-{life}").touch()


def want(folder: Path, number: int, rank: int, life: int, **what: bool) -> None:
    here = Here(rank, life, "127.0.0.1", 1, "a", **what)
    (folder / f"here-{number}-{rank}-{life}").write_text(json.dumps(asdict(here)))


def ranks(folder: Path, number: int) -> list[int]:
    return [one.rank for one in read_generation(str(folder), number)[0]]


def started(folder: Path, size: int) -> Roster:
    roster = Roster(str(folder), size, 60)
    for rank in range(size):
        begin(folder, rank, 0)
        want(folder, 0, rank, 0)
    roster.look()
    assert ranks(folder, 0) == [*range(size)]
    return roster


def test_those_that_are_left_make_a_ring_and_then_let_a_new_one_in(tmp_path: Path) -> None:
    roster = started(tmp_path, 3)
    begin(tmp_path, 1, 1)  # Spark has started it again: the process before is gone.
    want(tmp_path, 1, 0, 0, is_calm=False)
    roster.look()
    assert not (tmp_path / "generation-1").exists()  # Rank 2 may still come.
    want(tmp_path, 1, 2, 0, is_calm=False)
    want(tmp_path, 1, 1, 1, has_state=False)
    roster.look()
    assert ranks(tmp_path, 1) == [0, 2]
    for rank, life in ((0, 0), (2, 0)):
        want(tmp_path, 2, rank, life)
    want(tmp_path, 2, 1, 1, has_state=False)
    roster.look()
    assert ranks(tmp_path, 2) == [0, 1, 2]


def test_a_loss_while_one_is_let_in_leaves_that_one_out(tmp_path: Path) -> None:
    roster = started(tmp_path, 3)
    begin(tmp_path, 1, 1)
    for rank, life in ((0, 0), (2, 0)):
        want(tmp_path, 1, rank, life)
    want(tmp_path, 1, 1, 1, has_state=False)
    roster.look()
    assert ranks(tmp_path, 1) == [0, 1, 2]
    begin(tmp_path, 2, 1)  # Lost while the others told each other who has the state.
    want(tmp_path, 2, 0, 0, is_calm=False)
    want(tmp_path, 2, 1, 1, is_calm=True, has_state=False)
    roster.look()
    assert ranks(tmp_path, 2) == [0]
