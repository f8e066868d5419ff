"""A store of which one call in two hundred fails, in every process."""

import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec  # noqa: F401 It fills its registry.
import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from tests.helpers import failing_store
from tests.helpers.runs import quiet
from tests.helpers.spark import start_session

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_application")]

ONE_IN = 200


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """The folder of the store, which this process and the executors know."""
    site = tmp_path / "site"
    site.mkdir()
    source = inspect.getsource(failing_store)
    (site / "sitecustomize.py").write_text(f"{source}\n\ninstall({str(tmp_path)!r}, {ONE_IN})\n")
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    known = sys.modules["fsspec.registry"]._registry
    before = dict(known)
    start_session(
        "local-cluster[2,1,1024]",
        spark__executor__memory="1g",
        spark__executorEnv__PYTHONPATH=path,
    )
    failing_store.install(str(tmp_path), ONE_IN)
    yield tmp_path
    SparkSession.active().stop()
    known.clear()
    known.update(before)


def test_all_trials_complete_and_their_logs_are_whole(store: Path) -> None:
    def train(x: int) -> dict[str, float]:
        print(f"x is {x}")
        return {"value": float(x)}

    for kind in ("OSError", "Exception"):
        (store / "kind").write_text(kind)
        run = experiment.launch(train, {"x": list(range(50))}, **quiet(f"gcs://bucket/{kind}"))
        assert run.counts() == {"COMPLETE": 50}
        assert [trial.value for trial in run.trials] == list(range(50))
        for trial in run.trials:
            log = (store / "objects/bucket" / trial.path.removeprefix("gcs://bucket/")) / "log.txt"
            assert log.read_text() == f"x is {trial.params['x']}\n"
    assert len((store / "failures").read_text().splitlines()) > 3
