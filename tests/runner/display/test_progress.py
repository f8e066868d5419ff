"""The driver shows what trials print, however much that is."""

import os
import resource
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sparkdl import context, experiment


def test_many_reports_do_no_harm(root: str, spark: SparkSession) -> None:
    def train() -> None:
        for step in range(20_000):
            context.report({"loss": step / 1000, "something_with_a_long_name": 1.0}, step)

    run = experiment.launch(train, root=root, metric="loss", direction="max")
    assert run.best.value == 19.999
    assert len(run.best.history) == 20_000


def test_a_million_lines(root: str, spark: SparkSession, capsys: Any) -> None:
    """They are all in the file; the driver prints some of them and stays small."""

    def train() -> int:
        print("\n".join(f"step {i}" for i in range(1_000_000)))
        return 1

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = experiment.launch(train, root=root)
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    with open(Path(run.best.path, "log.txt"), "rb") as log:
        assert sum(1 for _ in log) == 1_000_000
    out = capsys.readouterr().out
    assert "[trial 0] step 999999" in out
    assert "bytes are in" in out
    assert len(out) < 2_000_000
    assert grown_mb < 50
    assert os.path.getsize(Path(run.best.path, "log.txt")) > 10_000_000
