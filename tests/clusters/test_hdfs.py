"""Runs, models and data on HDFS: real daemons of Hadoop, and a Spark cluster beside them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clusters.hadoop import Hadoop, hadoop_cluster
from tests.clusters.standalone import REPOSITORY, Cluster, Driver
from tests.helpers.processes import eventually

pytest.importorskip("hdfs_native")

pytestmark = pytest.mark.slow

STORED = "tests.clusters.programs.stored:"


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    with hadoop_cluster(tmp_path_factory.mktemp("hdfs")) as hadoop:
        yield hadoop


@pytest.fixture(scope="module")
def cluster(hadoop: Hadoop) -> Iterator[Cluster]:
    cluster = Cluster(hadoop.net, cores=2)
    try:
        cluster.start_master()
        cluster.start_workers()
        yield cluster
    finally:
        cluster.end(spare="org.apache.hadoop.")


@pytest.fixture(scope="module")
def driver(hadoop: Hadoop, cluster: Cluster) -> Driver:
    env = {"HADOOP_CONF_DIR": str(hadoop.conf)}
    return cluster.start_driver(env, spark__sparkdl__root="")


@pytest.fixture(scope="module")
def tables(hadoop: Hadoop, driver: Driver) -> str:
    url = f"{hadoop.url}/data"
    assert driver.call(STORED + "write_tables", url=url) == 100
    return url


def test_runs_are_on_the_default_filesystem_of_the_cluster(hadoop: Hadoop, driver: Driver) -> None:
    run = driver.call(STORED + "runs")
    assert run["states"] == ["COMPLETE"] * 2
    root = f"{hadoop.url}/user/root/sparkdl/"
    assert run["path"].startswith(root)
    assert run["checkpoint"].startswith(root)
    assert run["listed"]
    assert (run["best"], run["notes"]) == (2.0, "noted 2.0")


@pytest.mark.parametrize("kind", ["parquet", "tfrecord", "petastorm"])
def test_files_on_hdfs_are_read_completely(driver: Driver, tables: str, kind: str) -> None:
    run = driver.call(STORED + "read_tables", url=tables, kind=kind)
    assert run["outputs"] == {"a": 2475.0, "ids": 4950, "rows": 100}


def test_model_on_hdfs_is_found_and_predicts(hadoop: Hadoop, driver: Driver, tables: str) -> None:
    found = driver.call(STORED + "exported", data=f"{tables}/parquet")
    assert found["path"].startswith(f"{hadoop.url}/user/root/sparkdl/")
    assert (found["count"], found["worst"] < 1e-3) == (100, True)


def test_namenode_restarted_during_a_run_loses_nothing(
    hadoop: Hadoop, driver: Driver, tmp_path: Path
) -> None:
    call = driver.start(STORED + "reporting_grid", folder=str(tmp_path), trials=4)
    assert eventually(lambda: len(list(tmp_path.glob("trial-*"))) == 2)
    hadoop.kill("namenode", hadoop.head)
    (tmp_path / "go").touch()  # The trials end while HDFS is away.
    hadoop.start_namenode()
    hadoop.wait_for_hdfs()
    run = call.wait()
    assert (run["states"], run["attempts"]) == (["COMPLETE"] * 4, [1] * 4)
    assert run["reported"] == run["steps"]


PROGRAM = """
import os, sys
from sparkdl.files import storage
from sparkdl.runs import owner
from sparkdl.files.layout import RunPaths

owner.BEAT_S = 0.001
mine = owner.Owner(RunPaths(sys.argv[1]))
mine.claim(1)
mine.release()
"""


def test_driver_that_wrote_to_hdfs_ends_in_order(hadoop: Hadoop) -> None:
    for number in range(5):
        url = f"{hadoop.url}/user/root/ended/{number}"
        command = hadoop.head.command(sys.executable, "-c", PROGRAM, url)
        env: dict[str, Any] = {**hadoop.environment(hadoop.head), "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")


JOURNAL_PROGRAM = """
import os, signal, sys, threading
from sparkdl.runs.events import StopRequested
from sparkdl.runs.journal import Journal, read_journal

def write():
    journal, number = Journal(sys.argv[1]), 0
    while True:
        journal.write([StopRequested(number=number)])
        journal.flush(60)
        number += 1
        print(number, flush=True)
        if number == 20:
            threading.Timer(float(sys.argv[2]), os.kill, (os.getpid(), signal.SIGKILL)).start()

if sys.argv[2] == "read":
    print(len(read_journal(sys.argv[1])))
else:
    write()
"""


def test_journal_of_a_killed_driver_can_be_read_at_once(hadoop: Hadoop) -> None:
    env: dict[str, Any] = {**hadoop.environment(hadoop.head), "PYTHONPATH": str(REPOSITORY)}
    for after_s in ("0", "0.01", "0.02"):
        url = f"{hadoop.url}/user/root/killed/{after_s}/journal"
        command = hadoop.head.command(sys.executable, "-c", JOURNAL_PROGRAM, url)
        writer, reader = (
            subprocess.run([*command, what], env=env, capture_output=True, text=True, timeout=120)
            for what in (after_s, "read")
        )
        num_written = int(writer.stdout.splitlines()[-1])
        assert num_written >= 20, writer.stderr
        assert int(reader.stdout) >= num_written, reader.stderr


WEB_PROGRAM = """
import sys
from sparkdl.files import storage

url = sys.argv[1]
storage.write(f"{url}/a", "first")
storage.write(f"{url}/a", "second")
storage.append(f"{url}/a", b" and more")
storage.write(f"{url}/b", "another")
storage.create(f"{url}/c", "mine")
for call in (
    lambda: storage.create(f"{url}/c", "yours"),
    lambda: storage.rename(f"{url}/a", f"{url}/b"),
):
    try:
        call()
    except OSError as exc:
        print(type(exc).__name__, str(exc)[:31])
storage.rename(f"{url}/a", f"{url}/new/a")
print(storage.read(f"{url}/new/a"), storage.read(f"{url}/b"), storage.list_names(url))
"""


def test_webhdfs_refuses_to_rename_onto_a_file(hadoop: Hadoop) -> None:
    """It answers such a request with status 200."""
    url = f"webhdfs://root@{hadoop.head.address}:9870/user/root/web"
    command = hadoop.head.command(sys.executable, "-c", WEB_PROGRAM, url)
    env: dict[str, Any] = {**hadoop.environment(hadoop.head), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [
        f"FileExistsError {url[:31]}",
        "OSError the store has not renamed webhd",
        "b'second and more' b'another' ['b', 'c', 'new']",
    ], done.stderr
