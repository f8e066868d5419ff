"""Three hosts of which one is unlike the others; daemons are killed, and a disk is full."""

import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters.hosts import Host
from tests.clusters.standalone import Cluster, Driver, hosts_cluster
from tests.helpers.processes import eventually

pytestmark = pytest.mark.slow

TRIALS = "tests.clusters.programs.trials:"
GANGS = "tests.clusters.programs.gangs:"

ALL = ["node2", "node3", "node4"]
NOBODY = pwd.getpwnam("nobody")

# The clock of the last host is an hour ahead for Python, which reads the module at its start.
CLOCK = """
import time
right = time.time
time.time = lambda: right() + 3600
"""
PYTHON = f"""#!/bin/sh
if [ "$(hostname)" = node4 ]; then
    export PYTHONPATH="$(dirname "$0"):$PYTHONPATH"
fi
exec {sys.executable} "$@"
"""


# Shows all users of a host the folder $2, of which the folder $1 above it is closed to them.
OPEN = """
set -e
mkdir /tmp/shown
mount --bind "$2" /tmp/shown
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir -p "$2"
mount --move /tmp/shown "$2"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("faults")
    show(folder)
    with hosts_cluster(folder) as cluster:
        (folder / "runs").mkdir()
        (folder / "runs").chmod(0o1777)
        yield cluster


@pytest.fixture(scope="module")
def driver(cluster: Cluster) -> Driver:
    python = cluster.folder / "ahead" / "python"
    python.parent.mkdir()
    python.with_name("sitecustomize.py").write_text(CLOCK)
    python.write_text(PYTHON)
    python.chmod(0o755)
    return cluster.start_driver({"SPARKDL_PERMISSIONS": "777", "PYSPARK_PYTHON": str(python)})


@pytest.fixture(autouse=True)
def mended(cluster: Cluster, driver: Driver) -> Iterator[None]:
    """Each test begins with three hosts that have an executor."""
    slots = TRIALS + "num_slots"
    assert eventually(lambda: driver.call(slots) == 3, 120)
    yield
    cluster.assert_no_training(60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which all users may write."""
    show(tmp_path)
    tmp_path.chmod(0o777)
    return tmp_path


def show(folder: Path) -> None:
    """Let all users read a folder of pytest, which are the owner's alone."""
    ends = Path(tempfile.gettempdir())
    for path in (folder, *folder.parents):
        if path == ends:
            return
        path.chmod(0o755)


def run(host: Host, *command: str) -> None:
    """Run a command on a host."""
    subprocess.run(host.command(*command), check=False, capture_output=True)


def restart_as_other_user(cluster: Cluster, host: Host) -> None:
    """Give a host executors of another user."""
    cluster.kill_daemon(host)
    shutil.rmtree(host.folder / "work")  # Its folders are of the former user.
    os.chown(host.folder, NOBODY.pw_uid, NOBODY.pw_gid)
    python = Path(sys.base_prefix).resolve()
    if closed := [path for path in python.parents if not path.stat().st_mode & stat.S_IXOTH]:
        run(host, "sh", "-c", OPEN, "sh", str(closed[-1]), str(python))
    cluster.start_worker(host, NOBODY.pw_uid, {"HOME": str(host.folder)})


def test_killed_worker_daemon_costs_no_trial(
    cluster: Cluster, driver: Driver, folder: Path
) -> None:
    call = driver.start(TRIALS + "held_grid", folder=str(folder), trials=5)
    assert eventually(lambda: len(list(folder.glob("trial-*"))) == 3, 60)
    host = cluster.nodes[0]
    cluster.kill_daemon(host)
    # Spark ends the executors of a host without a worker, and sparkdl their trainings.
    assert eventually(lambda: host.name not in cluster.training_processes(), 60)
    cluster.start_worker(host)
    (folder / "go").touch()
    run = call.wait()
    assert (run["states"], sorted(run["attempts"])) == (["COMPLETE"] * 5, [1, 1, 1, 1, 2])


def test_restarted_master_costs_no_trial(cluster: Cluster, driver: Driver, folder: Path) -> None:
    call = driver.start(TRIALS + "held_grid", folder=str(folder), trials=5)
    assert eventually(lambda: len(list(folder.glob("trial-*"))) == 3, 60)
    cluster.kill_daemon(cluster.head)
    (folder / "go").touch()
    cluster.start_master()
    run = call.wait()
    assert (run["states"], run["attempts"]) == (["COMPLETE"] * 5, [1] * 5)


def test_run_directory_closed_to_the_user_of_an_executor_is_explained(
    cluster: Cluster, driver: Driver, folder: Path
) -> None:
    restart_as_other_user(cluster, cluster.nodes[2])
    assert eventually(lambda: driver.call(TRIALS + "num_slots") == 3, 60)
    error = driver.start(TRIALS + "closed_grid", folder=str(folder)).error()
    assert "PreflightError" in error
    assert "as user nobody" in error
    assert "SPARKDL_PERMISSIONS" in error
    assert not list(folder.glob("trial-*"))


def test_hosts_with_another_user_and_clock_train_together(driver: Driver, folder: Path) -> None:
    call = driver.start(TRIALS + "held_grid", folder=str(folder), trials=3)
    assert eventually(lambda: len(list(folder.glob("trial-*"))) == 3, 60)
    (folder / "go").touch()
    run = call.wait()
    assert (run["state"], run["hosts"]) == ("COMPLETE", ALL)
    assert all(0 <= seconds < 60 for seconds in run["seconds"])
    clocks = [clock for where, clock in run["clocks"] if where == "node4"]
    assert clocks[0] - time.time() > 3000
    run = driver.call(GANGS + "ring", folder=str(folder))
    assert (run["state"], run["attempts"], len(run["digests"])) == ("COMPLETE", 1, 1)


def test_full_disk_is_told_with_its_host(cluster: Cluster, driver: Driver) -> None:
    host = cluster.nodes[1]
    run(host, "sh", "-c", "cat /dev/zero > /tmp/full")
    try:
        error = driver.start(TRIALS + "digits").error()
    finally:
        run(host, "rm", "/tmp/full")
    assert f"could not run the preflight job: the disk of host {host.address}," in error
    assert driver.call(TRIALS + "digits")["state"] == "COMPLETE"
