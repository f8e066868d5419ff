"""The daemon that forks Spark's Python workers: chosen where it is safe, with no thread to lose."""

import os
import site
import subprocess
import sys
from pathlib import Path

import pytest

from sparkdl.cluster.worker_daemon import MODULE, SETTING, settings

LOCAL = {"spark.master": "local[2]"}


def test_the_daemon_is_chosen_on_a_local_master_in_the_python_of_the_driver() -> None:
    for conf in ({}, LOCAL, {"spark.master": "local-cluster[2,1,1024]"}):
        assert settings(conf.get) == {SETTING: MODULE}


@pytest.mark.parametrize(
    "conf",
    [
        {"spark.master": "spark://host:7077"},
        {"spark.master": "k8s://https://host"},
        LOCAL | {"spark.pyspark.python": "/usr/bin/other"},
        LOCAL | {SETTING: "pyspark.daemon"},
    ],
)
def test_other_executors_keep_the_daemon_of_spark(conf: dict[str, str]) -> None:
    assert settings(conf.get) == {}


def test_it_is_not_chosen_where_sparkdl_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path)])
    assert settings(LOCAL.get) == {}


@pytest.mark.parametrize(("threads", "imported"), [("1", "True"), ("2", "False")])
def test_no_thread_runs_before_the_fork(threads: str, imported: str) -> None:
    program = (
        "import os, sys\n"
        f"from {MODULE} import preload\n"
        "preload()\n"
        "print('pandas' in sys.modules, len(os.listdir('/proc/self/task')), "
        "'JE_ARROW_MALLOC_CONF' in os.environ)\n"
    )
    environ = {**os.environ, "OMP_NUM_THREADS": threads}
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert printed.stdout.split() == [imported, "1", "False"]


def test_each_worker_draws_its_own_random_numbers() -> None:
    """Processes that a worker forks keep the seeds of the worker, as without this daemon."""
    program = (
        "import os, sys\n"
        f"from {MODULE} import preload\n"
        "preload()\n"
        "import numpy as np\n"
        "def forked(call):\n"
        "    if not os.fork():\n"
        "        call()\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "def show(): print(*np.random.rand(2), flush=True)\n"
        "def work():\n"
        "    show()\n"
        "    for _ in range(2): forked(show)\n"
        "for _ in range(2): forked(work)\n"
    )
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    first, *forked_by_first, second, _, _ = printed.stdout.splitlines()
    assert first != second
    assert forked_by_first[0] == forked_by_first[1]


def test_modules_that_print_or_cannot_be_imported_keep_no_worker_from_starting(
    tmp_path: Path,
) -> None:
    """Spark reads the port of the daemon from its standard output."""
    (tmp_path / "pandas.py").write_text("print('loud')\nraise ValueError('dtype size changed')\n")
    program = f"from {MODULE} import preload\npreload()\nprint('port')\n"
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert (printed.stdout, "loud" in printed.stderr) == ("port\n", True)


# In a process of its own, as Java keeps settings of the sessions before.
NEW_SESSION = """
import pyarrow as pa
from pyspark.sql import SparkSession
from sparkdl.cluster import worker_daemon
from sparkdl.cluster.spark import SparkCluster

def look(batches):
    import sys
    known = all(name in sys.modules for name in worker_daemon.MODULES)
    for _ in batches:
        pass
    yield pa.RecordBatch.from_pydict({"known": [known]})

spark = SparkCluster().spark
rows = spark.range(1, numPartitions=1).mapInArrow(look, "known boolean")
print(rows.first()["known"], SparkSession.getActiveSession() is spark)
"""


@pytest.mark.slow
def test_workers_of_a_new_session_have_the_modules() -> None:
    command = [sys.executable, "-c", NEW_SESSION]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "True True\n", done.stderr
