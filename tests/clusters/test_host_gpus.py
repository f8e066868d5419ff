"""GPUs that only Spark believes in: two on each of three hosts with four cores each."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters.standalone import Driver, hosts_cluster
from tests.helpers.processes import eventually
from tests.helpers.spark import gpu_settings

pytestmark = pytest.mark.slow

TRIALS = "tests.clusters.programs.trials:"
SEARCHES = "tests.clusters.programs.searches:"
GANGS = "tests.clusters.programs.gangs:"

ALL = [f"{node}:{gpu}" for node in ("node2", "node3", "node4") for gpu in (0, 1)]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("gpus")
    settings = {k.replace("__", "."): v for k, v in gpu_settings(2, folder).items()}
    daemons = {k: v for k, v in settings.items() if k.startswith("spark.worker.")}
    with hosts_cluster(folder, cores=4, daemon_options=daemons) as cluster:
        yield cluster.start_driver(**{k: v for k, v in settings.items() if k not in daemons})
        cluster.assert_no_training()


def held(driver: Driver, folder: Path, trials: int, **options: float) -> list[str]:
    """Run trials that are all there at once; return their hosts and GPUs."""
    call = driver.start(TRIALS + "held_grid", folder=str(folder), trials=trials, **options)
    assert eventually(lambda: len(list(folder.glob("trial-*"))) == trials, 120)
    (folder / "go").touch()
    run = call.wait()
    assert run["state"] == "COMPLETE"
    return list(run["pins"])


def test_trials_see_a_gpu_each(driver: Driver, tmp_path: Path) -> None:
    assert held(driver, tmp_path, 6) == ALL


def test_two_trials_share_each_gpu(driver: Driver, tmp_path: Path) -> None:
    assert Counter(held(driver, tmp_path, 12, num_gpus=0.5)) == dict.fromkeys(ALL, 2)


def test_trials_see_all_gpus_of_their_host(driver: Driver, tmp_path: Path) -> None:
    expected = [f"{node}:0,1" for node in ("node2", "node3", "node4")]
    assert held(driver, tmp_path, 3, num_gpus=2) == expected


def test_trials_of_a_search_see_a_gpu_each(driver: Driver, tmp_path: Path) -> None:
    call = driver.start(SEARCHES + "held_search", folder=str(tmp_path), num_trials=6)
    assert eventually(lambda: len(list(tmp_path.glob("trial-*"))) == 6, 120)
    (tmp_path / "go").touch()
    assert call.wait()["pins"] == ALL


def test_ranks_of_a_gang_see_a_gpu_each(driver: Driver) -> None:
    assert driver.call(GANGS + "pinned", size=6) == ALL


def test_gang_beyond_the_gpus_is_refused_with_their_number(driver: Driver) -> None:
    error = driver.start(GANGS + "pinned", size=7).error()
    assert "SlotsError" in error
    assert "7 workers), and Spark has 6" in error
