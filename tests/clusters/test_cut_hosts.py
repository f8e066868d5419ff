"""A host of three is cut off in the middle of a run: neither side is told."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters.standalone import Cluster, Driver, hosts_cluster
from tests.helpers.processes import eventually

pytestmark = pytest.mark.slow

TRIALS = "tests.clusters.programs.trials:"
GANGS = "tests.clusters.programs.gangs:"

# As in conf/spark-defaults.standalone.conf.
DAEMONS = {"spark.worker.timeout": "15"}
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with hosts_cluster(tmp_path_factory.mktemp("cut"), daemon_options=DAEMONS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def driver(cluster: Cluster) -> Driver:
    return cluster.start_driver()


@pytest.fixture(autouse=True)
def mended(cluster: Cluster, driver: Driver) -> Iterator[None]:
    """Each test begins with three hosts that have an executor."""
    yield
    for host in cluster.nodes:
        cluster.net.mend(host)
    cluster.assert_no_training(60)
    slots = "tests.clusters.programs.trials:num_slots"
    assert eventually(lambda: driver.call(slots) == 3, 120)


def test_grid_with_a_host_cut_off_completes(
    cluster: Cluster, driver: Driver, tmp_path: Path
) -> None:
    call = driver.start(TRIALS + "held_grid", folder=str(tmp_path), trials=5)
    assert eventually(lambda: len(list(tmp_path.glob("trial-*"))) == 3, 120)
    cluster.net.cut(cluster.nodes[1])
    begun = time.monotonic()
    (tmp_path / "go").touch()
    run = call.wait()
    assert time.monotonic() - begun < LIMIT_S
    assert (run["state"], run["states"]) == ("COMPLETE", ["COMPLETE"] * 5)


# The ranks that tell where they train, or the coordinator of parameter servers.
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        *(pytest.param(kind, 3, marks=pytest.mark.thorough) for kind in ("ring", "fed")),
        ("strategy", 3),
        ("servers", 1),
    ],
)
def test_gang_with_a_host_cut_off_fails_with_its_name(
    cluster: Cluster, driver: Driver, tmp_path: Path, kind: str, told: int
) -> None:
    call = driver.start(GANGS + kind, folder=str(tmp_path), steps=100_000, max_losses=0)
    assert eventually(lambda: len(list(tmp_path.glob("[012]@*"))) == told, 180)
    coordinator = next(tmp_path.glob("0@*")).name.split("@")[1]
    victim = next(host for host in cluster.nodes if host.name != coordinator)
    cluster.net.cut(victim)
    begun = time.monotonic()
    error = call.error()
    assert time.monotonic() - begun < LIMIT_S
    assert victim.name in error


def test_elastic_gang_with_a_host_cut_off_goes_on_without_it(
    cluster: Cluster, driver: Driver, tmp_path: Path
) -> None:
    call = driver.start(GANGS + "elastic", folder=str(tmp_path), epochs=10_000)
    assert eventually(lambda: len(list(tmp_path.glob("[012]@*"))) == 3, 120)
    chief = next(tmp_path.glob("0@*")).name.split("@")[1]
    cluster.net.cut(next(host for host in cluster.nodes if host.name != chief))
    assert eventually(lambda: list(tmp_path.glob("epoch-*-of-2@*")), LIMIT_S)
    (tmp_path / "go").touch()
    run = call.wait()
    assert (run["state"], run["attempts"], len(run["digests"])) == ("COMPLETE", 1, 1)
