"""Runs in a store that fails now and then."""

import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec  # noqa: F401 It fills its registry.
import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.files import storage
from sparkdl.runner.pipeline.begin import Opener, begin
from sparkdl.runner.pipeline.execute import description_of
from sparkdl.runner.pipeline.new_run import NewRun
from sparkdl.runner.pipeline.prepare import prepare
from sparkdl.runs.opening import open_run
from tests.helpers import failing_store
from tests.helpers.in_memory_cluster import InMemoryCluster, returned
from tests.helpers.loops import packed, request_of
from tests.helpers.runs import quiet
from tests.helpers.spark import start_session

# One call in so many fails, in every process.
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


def test_a_run_starts_although_the_store_fails_for_a_moment(
    root: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = storage.write

    def write_at_the_second_attempt(url: str, data: Any) -> None:
        if url in fails:
            fails.remove(url)
            raise OSError(5, "Input/output error")
        write(url, data)

    cluster = InMemoryCluster(lambda attempt: returned(1.0), 1)
    prepared = prepare(request_of(2), packed(), cluster)
    opened = open_run(root, description_of(prepared), "error")
    kept = (opened.paths.program, opened.paths.environment, opened.paths.executors)
    fails = set(kept)
    monkeypatch.setattr(storage, "write", write_at_the_second_attempt)
    opener = Opener(open=lambda: opened, look=lambda: None, root=root, name="run", new=NewRun())
    run = begin(prepared, opener)
    assert run.counts() == {"COMPLETE": 2}
    assert not fails
    assert all(map(storage.exists, kept))
    assert "failed to write the files of a new run" in caplog.text


@pytest.mark.slow
@pytest.mark.usefixtures("own_application")
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
