"""Listings that are some seconds old in each process, as NFS gives them to each of its clients."""

import functools
import inspect
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.cluster.gang import membership
from sparkdl.files import storage
from sparkdl.tfos import TFCluster
from sparkdl.tfos.cluster import detached_job
from tests.cluster.gang.test_elastic import ends, steps_of, train, trains
from tests.helpers import old_listings
from tests.helpers.processes import eventually
from tests.helpers.runs import quiet
from tests.helpers.spark import start_session

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.usefixtures("own_application"),
]

# A real client keeps listings for 30 to 60 s, and a silent rank is lost after 10 s: here both are
# shorter, in the same proportion.
AGE_S = 4.0
SILENCE_S = 3.0


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """Three executors whose processes, like this one, see old listings."""
    site = tmp_path / "site"
    site.mkdir()
    source = inspect.getsource(old_listings)
    (site / "sitecustomize.py").write_text(f"{source}\n\ninstall({AGE_S})\n")
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    list_names, write = storage.list_names, storage.write
    started = start_session(
        "local-cluster[3,1,1024]",
        spark__executor__memory="1g",
        spark__executorEnv__PYTHONPATH=path,
    )
    old_listings.install(AGE_S)
    monkeypatch.setattr(membership, "SILENCE_TIMEOUT_S", SILENCE_S)
    monkeypatch.setattr(detached_job, "SILENCE_TIMEOUT_S", 2 * SILENCE_S)
    yield started
    storage.list_names, storage.write = list_names, write


def test_an_elastic_gang_goes_on_with_the_right_ranks(session: SparkSession, root: str) -> None:
    quick = functools.partial(train, pause_s=0.1)
    run = experiment.allreduce(quick, num_workers=3, elastic=True, wait=False, **quiet(root))
    assert eventually(lambda: all(trains(run, r) for r in range(3)), 60)
    os.kill(steps_of(run, 2)[-1][2], signal.SIGKILL)
    run.wait()
    assert (run.state, run.trials[0].attempts) == ("COMPLETE", 1)
    # No other rank was left behind or given up.
    assert [len({pid for *_, pid in steps_of(run, r)}) for r in range(2)] == [1, 1]
    assert len(ends(run)) == 1


def test_a_cluster_ends_without_a_lost_node(session: SparkSession, root: str) -> None:
    def squares(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed(train_mode=False)
        while not feed.should_stop():
            feed.batch_results([row * row for row in feed.next_batch(10)])

    os.environ["SPARKDL_ROOT"] = root
    try:
        sc = session.sparkContext
        cluster = TFCluster.run(sc, squares, [], 2, 0, input_mode=TFCluster.InputMode.SPARK)
    finally:
        del os.environ["SPARKDL_ROOT"]
    assert cluster.inference(sc.parallelize(range(100), 2)).sum() == 328350
    begun = time.monotonic()
    cluster.shutdown()
    assert cluster.run.state == "COMPLETE"
    assert time.monotonic() - begun < 30
