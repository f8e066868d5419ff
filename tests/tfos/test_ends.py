"""A cluster whose driver has ended: by its own will, by an error, or by a signal."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.processes import eventually, is_alive

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_application")]

PROGRAM = """
    import sys, time
    from pathlib import Path
    from pyspark import SparkConf, SparkContext
    from sparkdl.tfos import TFCluster

    def waits(args, ctx):
        import os
        Path(args[0], str(ctx.executor_id)).write_text(str(os.getpid()))
        if ctx.mgr.inbox:
            ctx.get_data_feed().next_batch(10)
            Path(args[0], f"{{ctx.executor_id}}.fed").touch()
        time.sleep(1000)

    mode = getattr(TFCluster.InputMode, sys.argv[2])
    conf = SparkConf().set("spark.cores.max", "2").set("spark.executor.memory", "1g")
    sc = SparkContext(conf=conf)
    cluster = TFCluster.run(sc, waits, [sys.argv[1]], 2, 0, input_mode=mode)
    print("running", flush=True)
    {end}
"""


@contextlib.contextmanager
def started(folder: Path, master: str, mode: str, end: str) -> "Iterator[subprocess.Popen[str]]":
    """The program, which is killed at the end of the block: what fails there must not wait."""
    program = folder / "program.py"
    program.write_text(textwrap.dedent(PROGRAM).format(end=end))
    (folder / "pids").mkdir()
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    submit = f"--master {master} --conf spark.sparkdl.root={folder}/runs pyspark-shell"
    env = {**outer, "PYSPARK_SUBMIT_ARGS": submit, "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, str(program), str(folder / "pids"), mode]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as driver:
        try:
            yield driver
        finally:
            driver.kill()


def pids(folder: Path) -> list[int]:
    found = [file.read_text() for file in (folder / "pids").iterdir()]
    return [int(text) for text in found if text]


def nothing_is_left(folder: Path) -> bool:
    private = Path(tempfile.gettempdir()) / f"sparkdl-{os.getuid()}"
    return not any(map(is_alive, pids(folder))) and not list(private.glob("node-*"))


@pytest.mark.parametrize(
    ("mode", "end", "code"),
    [
        ("SPARK", "time.sleep(1000)", -9),
        pytest.param("TENSORFLOW", "raise ValueError('mine')", 1, marks=pytest.mark.thorough),
        pytest.param("SPARK", "time.sleep(1000)", 143, marks=pytest.mark.thorough),
        ("SPARK", "cluster.train(sc.parallelize(range(100_000), 2))", 143),
        pytest.param("TENSORFLOW", "cluster.shutdown()", 143, marks=pytest.mark.thorough),
    ],
    ids=["killed", "raises", "sleeps", "feeds", "shuts down"],
)
def test_no_node_outlives_its_driver(
    standalone: str, tmp_path: Path, mode: str, end: str, code: int
) -> None:
    with started(tmp_path, standalone, mode, end) as driver:
        assert driver.stdout
        assert "running\n" in iter(driver.stdout.readline, "")
        if code in (-9, 143):
            assert eventually(lambda: len(pids(tmp_path)) == 2)
            if "train" in end:
                assert eventually(lambda: list((tmp_path / "pids").glob("*.fed")))
            driver.send_signal(signal.SIGKILL if code == -9 else signal.SIGTERM)
        assert driver.wait(240) == code
    assert eventually(lambda: nothing_is_left(tmp_path))
