"""Programs on a real YARN with HDFS: three hosts that have Java and a Python without packages."""

import contextlib
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters.yarn import Yarn, kill, yarn_cluster
from tests.helpers.processes import eventually

pytest.importorskip("hdfs_native")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MASTER = "yarn.ApplicationMaster"
NODES = ["node2", "node3", "node4"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with yarn_cluster(tmp_path_factory.mktemp("yarn")) as yarn:
        yield yarn


@pytest.fixture
def yarn(shared: Yarn) -> Iterator[Yarn]:
    """The cluster, of which every test leaves nothing but the daemons."""
    yield shared
    shared.tidy()


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_program_runs_on_all_hosts_from_an_archive(yarn: Yarn, tmp_path: Path, mode: str) -> None:
    submitted = yarn.submit(tmp_path, mode, "--trials", "4")
    started = submitted.wait_for_trials(3)
    submitted.go_on()
    run = submitted.summary()
    assert (run["state"], run["states"]) == ("COMPLETE", ["COMPLETE"] * 4)
    assert sorted(name.split("@")[1] for name in started) == NODES
    assert all(facts["python"].endswith("/environment/bin/python") for facts in started.values())
    assert run["path"].startswith(f"{yarn.url}/user/root/sparkdl/")
    where = "/appcache/" if mode == "cluster" else "/node1/"
    assert where in run["python"]
    assert submitted.wait() == 0


def test_killed_container_costs_no_trial(yarn: Yarn, tmp_path: Path) -> None:
    submitted = yarn.submit(tmp_path, "client", "--trials", "5")
    started = submitted.wait_for_trials(3)
    container = next(iter(started.values()))["container"]
    for pid in yarn.pids(f"/{container}/"):
        with contextlib.suppress(ProcessLookupError):  # It may have ended with the one before.
            kill(pid)
    submitted.wait_for_trials(4)
    submitted.go_on()
    run = submitted.summary()
    assert (run["states"], submitted.wait()) == (["COMPLETE"] * 5, 0)
    assert sorted(run["attempts"]) == [1, 1, 1, 1, 2]


def test_killed_nodemanager_costs_no_trial(yarn: Yarn, tmp_path: Path) -> None:
    submitted = yarn.submit(tmp_path, "client", "--trials", "5")
    submitted.wait_for_trials(3)
    masters = {host.name for host in yarn.pids("yarn.ExecutorLauncher").values()}
    lost = next(host for host in yarn.nodes if host.name not in masters)
    yarn.kill("nodemanager", lost)
    yarn.wait_for_nodes(2)  # Its containers go on, but YARN and Spark take them for lost.
    submitted.go_on()
    run = submitted.summary()
    assert (run["states"], submitted.wait()) == (["COMPLETE"] * 5, 0)


def test_killed_application_is_told_by_the_driver(yarn: Yarn, tmp_path: Path) -> None:
    submitted = yarn.submit(tmp_path, "client", "--trials", "4")
    submitted.wait_for_trials(3)
    yarn.kill_application(yarn.applications("RUNNING")[0]["id"])
    assert submitted.wait() != 0
    assert "CANCELLED" in submitted.output
    assert re.search(r"[Aa]pplication .*killed|SparkContext was shut down", submitted.output)


def test_killed_application_in_cluster_mode_leaves_no_process_and_is_finished_later(
    yarn: Yarn, tmp_path: Path
) -> None:
    options = ("--trials", "4", "--run-id", "killed")
    submitted = yarn.submit(tmp_path, "cluster", *options)
    submitted.wait_for_trials(3)
    yarn.kill_application(yarn.applications("RUNNING")[0]["id"])
    assert submitted.wait() != 0
    assert "final status: KILLED" in submitted.output
    assert eventually(lambda: not yarn.others(), 60), yarn.others()
    again = yarn.submit(tmp_path, "cluster", *options)
    again.go_on()
    run = again.summary()
    assert (run["states"], again.wait()) == (["COMPLETE"] * 4, 0)
    assert run["path"].endswith("/killed")


def test_second_attempt_of_an_application_goes_on_with_the_run(yarn: Yarn, tmp_path: Path) -> None:
    submitted = yarn.submit(
        tmp_path,
        "cluster",
        *("--trials", "5", "--run-id", "retried"),
        conf={"spark.yarn.maxAppAttempts": "2"},
    )
    submitted.wait_for_trials(3)
    (tmp_path / "go-0").touch()  # Trial 0 ends, and the next one starts in its place.
    submitted.wait_for_trials(4)
    for pid in yarn.pids(MASTER):
        with contextlib.suppress(ProcessLookupError):  # It may have ended with the one before.
            kill(pid)
    assert eventually(lambda: len(submitted.started()) >= 6, 200), submitted.output[-5000:]
    submitted.go_on()
    assert submitted.wait() == 0, submitted.output[-5000:]
    run = submitted.summary()
    assert run["states"] == ["COMPLETE"] * 5
    assert run["path"].endswith("/retried")
    assert len(submitted.started(0)) == 1  # It had ended.


def test_memory_beyond_the_container_is_told_with_the_setting(yarn: Yarn, tmp_path: Path) -> None:
    conf = {
        "spark.executor.memoryOverhead": "512m",
        "spark.executor.instances": "1",
        "spark.task.maxFailures": "1",  # Spark repeats the trial three times otherwise.
    }
    submitted = yarn.submit(tmp_path, "client", "--trials", "1", "--memory-mb", "1500", conf=conf)
    assert submitted.wait() != 0
    told = submitted.output.split("AllTrialsFailedError:")[-1]
    assert "the cluster ended its executor for its memory" in told
    assert "exceeding physical memory limits" in told
    assert "Raise spark.executor.memoryOverhead" in told


def test_gpus_of_all_hosts_are_given_once(yarn: Yarn, tmp_path: Path) -> None:
    script = tmp_path / "discovery.sh"
    script.write_text('#!/bin/sh\necho \'{"name": "gpu", "addresses": ["0", "1"]}\'\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    conf = {
        "spark.executor.cores": "2",
        "spark.executor.resource.gpu.amount": "2",
        "spark.task.resource.gpu.amount": "1",
        "spark.executor.resource.gpu.discoveryScript": "./discovery.sh",
        "spark.yarn.dist.files": str(script),
    }
    submitted = yarn.submit(tmp_path, "client", "--trials", "6", conf=conf)
    started = submitted.wait_for_trials(6)
    submitted.go_on()
    assert submitted.summary()["states"] == ["COMPLETE"] * 6
    pins = sorted((name.split("@")[1], *facts["gpus"]) for name, facts in started.items())
    assert pins == [(node, gpu) for node in NODES for gpu in ("0", "1")]
