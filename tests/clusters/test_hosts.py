"""All ways to train, on a Spark cluster of three hosts with a network, a name and disks each."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters.s3 import s3_bucket
from tests.clusters.standalone import Cluster, Driver, hosts_cluster
from tests.helpers.processes import eventually

pytestmark = pytest.mark.slow

TRIALS = "tests.clusters.programs.trials:"
GANGS = "tests.clusters.programs.gangs:"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with hosts_cluster(tmp_path_factory.mktemp("hosts")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def driver(cluster: Cluster) -> Iterator[Driver]:
    with s3_bucket(cluster.net) as env:
        yield cluster.start_driver(env)


@pytest.fixture(autouse=True)
def nothing_is_left(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.assert_no_training()


def hosts_in(folder: Path) -> list[str]:
    """The hosts on which processes have told that they run."""
    return sorted({path.name.split("@")[1] for path in folder.glob("[0-9]*@*")})


ALL = ["node2", "node3", "node4"]


def test_grid_of_the_demo_completes(driver: Driver) -> None:
    run = driver.call(TRIALS + "digits")
    assert run["states"] == ["COMPLETE"] * 4
    assert run["accuracy"] > 0.9


def test_trials_run_on_all_hosts_at_once(driver: Driver, tmp_path: Path) -> None:
    call = driver.start(TRIALS + "held_grid", folder=str(tmp_path), trials=3)
    assert eventually(lambda: len(list(tmp_path.glob("trial-*"))) == 3)
    (tmp_path / "go").touch()
    run = call.wait()
    assert (run["state"], run["hosts"]) == ("COMPLETE", ALL)


@pytest.mark.parametrize("kind", ["strategy", "ring"])
def test_ranks_on_three_hosts_end_with_equal_weights(
    driver: Driver, tmp_path: Path, kind: str
) -> None:
    run = driver.call(GANGS + kind, folder=str(tmp_path))
    assert (run["state"], run["attempts"], len(run["digests"])) == ("COMPLETE", 1, 1)
    assert hosts_in(tmp_path) == ALL
    assert len(list(tmp_path.glob("weights-*"))) == 3


def test_fed_gang_gets_each_row_once(driver: Driver, tmp_path: Path) -> None:
    run = driver.call(GANGS + "fed", folder=str(tmp_path))
    assert (run["state"], run["rows"], len(run["digests"])) == ("COMPLETE", 600, 1)
    assert hosts_in(tmp_path) == ALL


def test_parameter_server_on_another_host_is_reached(driver: Driver, tmp_path: Path) -> None:
    run = driver.call(GANGS + "servers", folder=str(tmp_path))
    assert run["state"] == "COMPLETE"
    assert run["result"]["loss"] < 10


def test_elastic_gang_completes_on_all_hosts(driver: Driver, tmp_path: Path) -> None:
    run = driver.call(GANGS + "elastic", folder=str(tmp_path))
    assert (run["state"], run["attempts"], run["result"]["size"]) == ("COMPLETE", 1, 3)
    assert len(run["digests"]) == 1
    assert hosts_in(tmp_path) == ALL


def test_prediction_on_three_hosts_is_right(driver: Driver, tmp_path: Path) -> None:
    found = driver.call(GANGS + "predict", folder=str(tmp_path))
    assert found["count"] == 3000
    assert found["worst"] < 1e-3


def test_cluster_of_tensorflowonspark_is_fed_on_all_hosts(driver: Driver, tmp_path: Path) -> None:
    found = driver.call(GANGS + "tf_cluster", folder=str(tmp_path))
    assert found["total"] == 332833500
    assert hosts_in(tmp_path) == ALL


def test_runs_on_s3_complete_on_all_hosts(driver: Driver, tmp_path: Path) -> None:
    call = driver.start(
        TRIALS + "held_grid", folder=str(tmp_path), trials=3, root="s3://bucket/runs"
    )
    assert eventually(lambda: len(list(tmp_path.glob("trial-*"))) == 3)
    (tmp_path / "go").touch()
    assert call.wait()["hosts"] == ALL
    run = driver.call(GANGS + "ring", folder=str(tmp_path), root="s3://bucket/runs")
    assert (run["state"], len(run["digests"])) == ("COMPLETE", 1)
    assert run["path"].startswith("s3://bucket/runs/")
