"""A search on executors that Spark adds while trials wait, and takes away when none wait."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.cluster.spark import SparkCluster
from tests.helpers.processes import eventually, processes_of
from tests.helpers.runs import quiet
from tests.helpers.spark import start_session
from tests.helpers.standalone import standalone_cluster

pytestmark = pytest.mark.slow

NUM_TRIALS = 40
RELEASED_S = 30.0


@pytest.fixture
def on_demand(own_application: None, tmp_path: Path) -> Iterator[SparkSession]:
    """A standalone cluster of three workers, whose executors come on demand."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    with standalone_cluster(folder, workers=3) as master:
        session = start_session(
            master,
            spark__executor__memory="1g",
            spark__executor__cores="1",
            spark__dynamicAllocation__enabled="true",
            spark__dynamicAllocation__shuffleTracking__enabled="true",
            spark__dynamicAllocation__minExecutors="0",
            spark__dynamicAllocation__maxExecutors="3",
            spark__dynamicAllocation__executorIdleTimeout="4s",
        )
        yield session
        session.stop()


def train(x: int, folder: str) -> int:
    """Take a moment; the last trial waits for the end of the test."""
    while x == NUM_TRIALS - 1 and not Path(folder, "end").exists():
        time.sleep(0.05)
    time.sleep(0.3)
    return x


def test_search_with_dynamic_allocation_releases_executors_and_uses_new_ones(
    on_demand: SparkSession, root: str, tmp_path: Path
) -> None:
    cluster = SparkCluster(on_demand)
    assert eventually(lambda: cluster.executors()[0] == 0)
    params = {"x": list(range(NUM_TRIALS)), "folder": [str(tmp_path)]}
    run = experiment.launch(train, params, wait=False, **quiet(root))
    # All three come while trials wait, and two go while the last trial still runs.
    assert eventually(lambda: cluster.executors()[0] == 3, 90)
    assert eventually(lambda: run.counts().get("COMPLETE") == NUM_TRIALS - 1, 180)
    assert eventually(lambda: cluster.executors()[0] == 1, RELEASED_S)
    assert run.state == "RUNNING"
    (tmp_path / "end").touch()
    run.wait()
    assert run.counts() == {"COMPLETE": NUM_TRIALS}
    assert all(trial.attempts == 1 for trial in run.trials)
    # The run leaves nothing behind that would keep the last executor.
    assert eventually(lambda: cluster.executors()[0] == 0, RELEASED_S)
    again = experiment.launch(train, {"x": [0, 1, 2], "folder": [str(tmp_path)]}, **quiet(root))
    assert again.counts() == {"COMPLETE": 3}
    assert not processes_of(run.id)
    assert not processes_of(again.id)
