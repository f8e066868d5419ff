"""However the driver of a gang ends, its ranks end too, and the run says so."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sparkdl import experiment
from tests.helpers.processes import eventually, is_alive

pytestmark = pytest.mark.slow

PROGRAM = """
import os, time
from pathlib import Path
from pyspark.sql import SparkSession
from sparkdl import experiment

def train():
    from sparkdl import context
    Path({here!r}, f"pid-{{context.rank}}").write_text(str(os.getpid()))
    time.sleep(300)

if __name__ == "__main__":
    builder = SparkSession.builder.master("local-cluster[2,1,1024]")
    builder.config("spark.ui.enabled", "false").config("spark.executor.memory", "1g").getOrCreate()
    experiment.allreduce(train, num_workers=2, root={root!r}, run_id="ends", progress=False)
"""


@pytest.mark.parametrize(
    ("number", "state"),
    [
        pytest.param(signal.SIGINT, "CANCELLED", marks=pytest.mark.thorough),
        (signal.SIGKILL, "FAILED"),
    ],
)
def test_the_ranks_end_with_the_driver(
    tmp_path: Path, root: str, number: signal.Signals, state: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(here=str(tmp_path), root=root))
    with subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as driver:
        told = lambda: [p for p in tmp_path.glob("pid-*") if p.read_text()]  # noqa: E731
        try:
            assert eventually(lambda: len(told()) == 2, 120)
            pids = [int(path.read_text()) for path in told()]
            os.kill(driver.pid, number)
            driver.wait(120)
        finally:
            driver.kill()
    assert driver.returncode != 0
    assert eventually(lambda: not [pid for pid in pids if is_alive(pid)])
    run = experiment.load(f"{root}/ends")
    assert run.state == state
