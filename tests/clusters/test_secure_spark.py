"""Every kind of run on a Spark with authentication and encryption; its secrets stay with it."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment, search
from sparkdl.host.os_processes import parent
from tests.clusters.programs import gangs
from tests.helpers.spark import Applications

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_application")]

SECRET = "the-secret-of-spark-" + "in-this-test"
SETTINGS = {
    "spark__executor__memory": "1g",
    "spark__authenticate": "true",
    "spark__authenticate__secret": SECRET,
    "spark__network__crypto__enabled": "true",
    "spark__network__crypto__saslFallback": "false",
    "spark__io__encryption__enabled": "true",
}


@pytest.fixture
def secure(own_application: None, applications: Applications) -> Iterator[SparkSession]:
    yield from applications.lend("local-cluster[3,1,1024]", **SETTINGS)


def secrets_here() -> list[str]:
    """The variables with secrets of Spark: those of this process, and those it was started with.

    The process above is its monitor, and the next one the fork server.
    """
    names = re.compile("_SPARK_|PYTHON_WORKER_FACTORY_SECRET|PYSPARK_GATEWAY_SECRET")
    items = [f"{name}={value}" for name, value in os.environ.items()]
    pid = os.getpid()
    for _ in range(3):
        items += Path(f"/proc/{pid}/environ").read_text().split("\0")
        pid = parent(pid)
    return sorted(item for item in items if names.match(item) or SECRET in item)


# Spark's driver encrypts broadcasts through sockets that pyspark leaves open (Broadcast.__init__).
@pytest.mark.filterwarnings("ignore:.*<socket:pytest.PytestUnraisableExceptionWarning")
def test_every_kind_of_run_works(secure: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "runs")
    run = experiment.launch(
        lambda x: {"names": json.dumps(secrets_here()), "x": x},
        {"x": [1, 2, 3]},
        root=root,
        metric="x",
        progress=False,
    )
    assert run.counts() == {"COMPLETE": 3}
    assert {trial.outputs["names"] for trial in run.trials} == {"[]"}

    found = experiment.search(
        lambda x: -((x - 1) ** 2),
        {"x": search.Float(0.0, 2.0)},
        num_trials=4,
        root=root,
        progress=False,
    )
    assert found.counts() == {"COMPLETE": 4}

    for verb in (gangs.strategy, gangs.ring, gangs.fed, gangs.elastic, gangs.servers):
        folder = tmp_path / verb.__name__
        folder.mkdir()
        result: dict[str, Any] = verb(secure, str(folder), root=root)
        assert result["state"] == "COMPLETE", verb.__name__

    texts = b"".join(path.read_bytes() for path in Path(root).rglob("*") if path.is_file())
    assert SECRET.encode() not in texts
