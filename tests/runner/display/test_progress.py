"""The driver shows what trials print, however much that is."""

import os
import resource
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sparkdl import context, experiment
from sparkdl.runner.display.progress import LOOK_BYTES, LogTail


def test_lines_come_whole_and_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LogTail(str(path))
    assert tail.read() == []
    path.write_bytes("one\ntwo ü".encode())
    assert tail.read() == ["one"]
    with path.open("ab") as file:
        file.write(b" more\r\nlast")
    assert tail.read() == ["two ü more"]
    assert tail.read() == []
    assert tail.read(last=True) == ["last"]


def test_a_flood_is_skipped_over(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 79 + b"\n" + b"line of the flood\n" * 100_000)
    tail = LogTail(str(path))
    lines = tail.read()
    assert sum(map(len, lines)) <= LOOK_BYTES
    assert set(lines) == {"line of the flood"}
    assert tail.skipped + sum(len(line) + 1 for line in lines) == path.stat().st_size
    assert tail.read() == []


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
        for i in range(1_000_000):
            print("step", i)
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
