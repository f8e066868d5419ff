"""The job of a cluster whose nodes go on, with nodes, a store and Spark that a test plays."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl.cluster.gang.placement import Placement
from sparkdl.cluster.gang.rendezvous import Peer
from sparkdl.cluster.outcome import Outcome, RankInfo, Status
from sparkdl.cluster.plan import Plan, Role
from sparkdl.cluster.spark_errors import JobFailed
from sparkdl.files import storage
from sparkdl.files.layout import TrialPaths
from sparkdl.files.rank_files import RankFiles
from sparkdl.tfos.cluster import detached_job, node_policy
from sparkdl.tfos.cluster.detached_job import DetachedJob
from sparkdl.tfos.cluster.node_files import ALIVE, FEED_OVER, MET, beat_s, post_outcome
from sparkdl.tfos.cluster.node_policy import NodeSeat
from tests.helpers.processes import eventually

DETACHED = {"outcome": Outcome(status=Status.DETACHED).to_json()}
PLAN = Plan(kind="tfos", roles=(Role(name="worker", count=2),), is_gang=True)
TASK: Any = SimpleNamespace(task=SimpleNamespace(trial=SimpleNamespace(secret=b"")))


def returned(rank: int) -> Outcome:
    who = RankInfo(rank=rank, role=f"worker {rank}", host="a")
    return Outcome(status=Status.RETURNED, is_chief=rank == 0, who=who)


def listings_of(monkeypatch: pytest.MonkeyPatch, *hidden: str) -> None:
    """Leave names out of all listings, as a client of NFS does for up to a minute."""
    list_names = storage.list_names
    monkeypatch.setattr(
        storage, "list_names", lambda url: [n for n in list_names(url) if n not in hidden]
    )


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RankFiles:
    monkeypatch.setattr(detached_job, "SILENCE_TIMEOUT_S", 0.3)
    return RankFiles(TrialPaths(str(tmp_path)).ranks(0))


def statuses(job: DetachedJob) -> list[Status]:
    rows = job.run(TASK)
    return [Outcome.from_json(row["outcome"]).status for row in rows]


def test_a_node_whose_end_no_listing_shows_yet_is_not_lost(
    files: RankFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(2):
        files.post(rank, ALIVE, f"1 0 7 host-{rank}")
        post_outcome(files, rank, returned(rank), b"")
    files.order(FEED_OVER)
    listings_of(monkeypatch, "0.row", "1.row")
    assert statuses(DetachedJob(PLAN, files, lambda task: [DETACHED] * 2)) == [Status.RETURNED] * 2


def test_a_node_that_falls_silent_is_lost(files: RankFiles) -> None:
    post_outcome(files, 0, returned(0), b"")
    files.post(1, ALIVE, "1 0 7 host-1")
    assert statuses(DetachedJob(PLAN, files, lambda task: [DETACHED] * 2)) == [
        Status.RETURNED,
        Status.FAILED,
    ]
    assert files.has_posted(1, "failed")


def test_the_order_to_end_is_given_until_the_store_takes_it(
    files: RankFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, failures = storage.write, [OSError("the store is down")] * 3

    def fails_at_first(url: str, data: bytes | str) -> None:
        if url.endswith("/end") and failures:
            raise failures.pop()
        write(url, data)

    monkeypatch.setattr(storage, "write", fails_at_first)
    files.post(0, "pid")
    over = threading.Event()

    def spark(task: Any) -> list[Any]:
        assert over.wait(120)  # Nodes in tasks end by the order.
        return [DETACHED] * 2

    job = DetachedJob(PLAN, files, spark)
    ended: list[Any] = []

    def run() -> None:
        with pytest.raises(JobFailed):
            job.run(TASK)
        ended.append(True)

    running = threading.Thread(target=run)
    running.start()
    job.end()
    assert eventually(lambda: files.look().has_order("end"))
    over.set()
    running.join(120)
    assert ended == [True]


def seat_of(tmp_path: Path, is_ended: Any = lambda: False) -> tuple[NodeSeat, RankFiles]:
    paths = TrialPaths(str(tmp_path))
    peer = Peer(address="127.0.0.1", port=1, host="a", node="a")
    placement = Placement(member=PLAN.members[0], attempt=0, peers=[peer], paths=paths)
    seat = NodeSeat({}, placement, None, 0, is_ended)
    seat._poll_s = 0.0
    return seat, placement.files


def test_a_node_of_the_driver_ends_without_a_file(tmp_path: Path) -> None:
    order = threading.Event()
    seat, files = seat_of(tmp_path, order.is_set)
    files.post_numbered(MET, 0)
    assert seat.watch() is None
    order.set()
    assert seat.watch() == node_policy.ENDED


def test_a_node_whose_message_no_listing_shows_yet_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seat, files = seat_of(tmp_path)
    files.post_numbered(MET, 0)
    listings_of(monkeypatch, f"{MET}-0")
    assert seat.watch() is None
    storage.remove(files.url)
    assert seat.watch() == node_policy.ENDED


def test_200_supervisors_write_and_the_driver_reads_a_store_at_a_bounded_rate() -> None:
    for num_nodes in (10, 200, 1000):
        assert num_nodes / beat_s("s3://bucket/a", num_nodes) <= 20
    job = DetachedJob(
        Plan(kind="tfos", roles=(Role(name="worker", count=200),), is_gang=True),
        RankFiles("s3://bucket/a"),
        lambda task: [],
    )
    assert 200 / job._beats_poll_s <= 20
