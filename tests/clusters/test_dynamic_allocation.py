"""A search on executors that Spark adds while trials wait, and takes away when none wait."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.cluster.gang import rank_grower
from sparkdl.cluster.spark import SparkCluster
from sparkdl.runs import Run
from tests.cluster.gang.test_growing_gangs import GROW_S, let_end, looper, search, size
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
            # By default, executors with rows for further trials stay.
            spark__dynamicAllocation__cachedExecutorIdleTimeout="4s",
        )
        yield session
        session.stop()


def train(x: int, folder: str) -> int:
    """Take a moment; the last trial waits for the end of the test."""
    while x == NUM_TRIALS - 1 and not Path(folder, "end").exists():
        time.sleep(0.05)
    time.sleep(0.3)
    return x


def read(number: int, folder: str) -> int:
    """Return the sum of all ids; six trials then wait for a file of their name."""
    from sparkdl import data

    rows = data.dataset("train", batch_size_per_worker=64, feature_cols="id")
    total = sum(int(i) for batch in rows for i in batch)
    Path(folder, f"read-{number}").touch()
    while number < 6 and not Path(folder, f"end-{number}").exists():
        time.sleep(0.05)
    return total


def executors_of(run: Run) -> list[str]:
    """The executor of the last attempt at each trial."""
    texts = [Path(trial.path, "attempts", "0.json").read_text() for trial in run.trials]
    return [json.loads(text)["executor_id"] for text in texts]


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

    frame = on_demand.range(0, 2000, 1, 4).selectExpr("id", "repeat('x', 1000) filling")
    params = {"number": list(range(9)), "folder": [str(tmp_path)]}
    fed = experiment.launch(read, params, data=frame, wait=False, **quiet(root))
    assert eventually(lambda: len([*tmp_path.glob("read-*")]) == 3, 90)
    for number in range(3):
        (tmp_path / f"end-{number}").touch()
    assert eventually(lambda: len([*tmp_path.glob("read-*")]) == 6, 90)
    fed.pause()
    for number in (4, 5):
        (tmp_path / f"end-{number}").touch()
    assert eventually(lambda: cluster.executors()[0] == 1, RELEASED_S)
    # The only executor has a copy of the rows, so that jobs do not have them, but it is not free.
    fed.unpause()
    assert eventually(lambda: fed.counts().get("COMPLETE", 0) > 5, 90)
    (tmp_path / "end-3").touch()
    fed.wait()
    total = float(sum(range(2000)))
    assert [(trial.value, trial.attempts) for trial in fed.trials] == [(total, 1)] * 9
    first, later = executors_of(fed)[:6], executors_of(fed)[6:]
    assert len({*first}) == 3 and {*later} - {*first}
    assert not processes_of(run.id)
    assert not processes_of(fed.id)


def test_gang_grows_onto_executors_that_spark_adds_and_gives_them_back(
    on_demand: SparkSession, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOOK_S", "IDLE_S", "PAUSE_S"):
        monkeypatch.setattr(rank_grower, name, 0.3)
    monkeypatch.setattr(rank_grower, "ON_DEMAND_WAITING_S", 2.0)
    cluster = SparkCluster(on_demand)
    options: Any = {"num_workers": (1, 3), "elastic": True, "wait": False, **quiet(root)}
    run = experiment.horovod(looper(), **options)
    assert eventually(lambda: size(run) == 3, GROW_S), run.resizes
    assert cluster.executors()[0] == 3
    searched = search(root, tmp_path / "enough", 2)
    assert eventually(lambda: size(run) == 1, GROW_S), run.resizes
    assert eventually(lambda: all(t.state == "RUNNING" for t in searched.trials), GROW_S)
    (tmp_path / "enough").touch()
    searched.wait()
    assert eventually(lambda: size(run) == 3, GROW_S), run.resizes
    let_end(run)
    assert (run.state, run.trials[0].attempts) == ("COMPLETE", 1)
    assert eventually(lambda: cluster.executors()[0] == 0, RELEASED_S)
    assert not processes_of(run.id)
