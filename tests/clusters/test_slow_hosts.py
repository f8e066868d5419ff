"""A rank on a slow host of three moves to the spare one, between two steps."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.clusters.standalone import Cluster, Driver, hosts_cluster
from tests.helpers.processes import eventually

pytestmark = pytest.mark.slow

GANG = "tests.clusters.programs.gangs:with_slow_host"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with hosts_cluster(tmp_path_factory.mktemp("slow")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def driver(cluster: Cluster) -> Driver:
    return cluster.start_driver()


def hosts_of(folder: Path, rank: int) -> set[str]:
    return {path.name.split("@")[1] for path in folder.glob(f"{rank}@*")}


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_slow_rank_goes_on_at_the_spare_host(
    cluster: Cluster, driver: Driver, tmp_path: Path, rank: int
) -> None:
    call = driver.start(GANG, folder=str(tmp_path))
    assert eventually(lambda: len(list(tmp_path.glob("[01]@*"))) == 2, 120)
    (slow,), (other,) = hosts_of(tmp_path, rank), hosts_of(tmp_path, 1 - rank)
    (spare,) = {host.name for host in cluster.nodes} - {slow, other}
    (tmp_path / f"slow@{slow}").touch()
    assert eventually(lambda: hosts_of(tmp_path, rank) == {slow, spare}, 120)
    (tmp_path / "go").touch()
    run = call.wait()
    assert (run["state"], run["attempts"], len(run["digests"])) == ("COMPLETE", 1, 1)
    assert run["result"]["host"] == (spare if rank == 0 else other)
    name = f"worker {rank} (rank {rank})"
    first, last = [sentence for sentence in run["slow"] if sentence.startswith(name)]
    assert first.startswith(f"{name} on host {slow} is slow: the other ranks wait ")
    assert last == f"{name} has moved from host {slow} to host {spare}"
    lines = {r: (tmp_path / f"steps-{r}").read_text().splitlines() for r in (0, 1)}
    # Each host counts its processes by itself: two of them may have one number.
    steps = {
        r: [(*map(int, line.split()[:3]), line.split()[3]) for line in lines[r]] for r in (0, 1)
    }
    # The other rank made each step once, and none of them alone.
    assert {size for _, _, size, _ in steps[1 - rank]} == {2}
    assert len({process for *_, process in steps[1 - rank]}) == 1
    assert all(a[:2] < b[:2] for a, b in pairwise(steps[1 - rank]))
    # The two processes of the slow rank made each step once: the batches of the second one are
    # counted from its first.
    assert len({process for *_, process in steps[rank]}) == 2
    assert [epoch for epoch, *_ in steps[rank]] == [epoch for epoch, *_ in steps[1 - rank]]
    cluster.assert_no_training(60)
