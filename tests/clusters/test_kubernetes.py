"""Runs on Kubernetes: Spark's own client and scheduler, and pods that are processes.

The API server is that of `kubernetes_api`, with the rights of conf/kubernetes/rbac.yaml. A test
that disturbs pods leaves it to Spark to replace them.
"""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clusters.kubernetes import NAMESPACE, Kubernetes, Pod, kubernetes
from tests.clusters.s3 import s3_bucket
from tests.clusters.standalone import Call, Driver, DriverError
from tests.helpers.processes import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TRIALS = "tests.clusters.programs.trials:"
GANGS = "tests.clusters.programs.gangs:"
SEARCHES = "tests.clusters.programs.searches:"
PROGRAM = str(Path(__file__).parent / "programs" / "batch.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    with kubernetes(tmp_path_factory.mktemp("kubernetes")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def driver(cluster: Kubernetes) -> Driver:
    """A driver with three executors of one core, as a notebook has."""
    volume = "spark__kubernetes__executor__volumes__persistentVolumeClaim__runs__"
    conf = {
        f"{volume}options__claimName": "runs",
        f"{volume}mount__path": "/shared",
        "spark__executor__instances": "3",
        "spark__executor__heartbeatInterval": "3s",
        "spark__network__timeout": "20s",
        "spark__network__timeoutInterval": "3s",
        "spark__sparkdl__root": "/shared/runs",
    }
    return cluster.start_driver(**conf)


@pytest.fixture
def folder(cluster: Kubernetes, request: pytest.FixtureRequest) -> Path:
    """A folder of the volume, which pods see below /shared."""
    folder = cluster.volume / request.node.name.replace("[", "-").replace("]", "")
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def place(folder: Path) -> str:
    return f"/shared/{folder.name}"


def met(folder: Path, number: int) -> list[str]:
    """Wait until this number of trials have met the test; return the hosts."""
    assert eventually(lambda: len(list(folder.glob("*@*"))) >= number, 120), list(folder.iterdir())
    return [path.name.split("@")[1] for path in folder.glob("*@*")]


def begin_search(cluster: Kubernetes, driver: Driver, folder: Path) -> tuple[Call, Pod]:
    """Start a search of six trials; return it with the pod of one of the first three."""
    call = driver.start(SEARCHES + "held_search", folder=place(folder), num_trials=6)
    hosts = met(folder, 3)
    assert len(set(hosts)) == 3
    return call, cluster.pods[hosts[0]]


def end_search(call: Call, folder: Path) -> dict[str, Any]:
    """Let the trials of a search end; each of them must have been COMPLETE once."""
    (folder / "go").touch()
    run: dict[str, Any] = call.wait()
    assert run["states"] == ["COMPLETE"] * 6
    assert run["completions"] == {str(number): 1 for number in range(6)}
    assert sorted(run["attempts"]) == [1, 1, 1, 1, 1, 2]
    return run


def test_grid_of_the_demo_completes_on_pods(cluster: Kubernetes, driver: Driver) -> None:
    run = driver.call(TRIALS + "digits")
    assert run["states"] == ["COMPLETE"] * 4
    assert run["accuracy"] > 0.9


def test_ranks_of_a_gang_meet_on_three_pods(
    cluster: Kubernetes, driver: Driver, folder: Path
) -> None:
    run = driver.call(GANGS + "ring", folder=place(folder))
    assert run["state"] == "COMPLETE"
    assert len(run["digests"]) == 1
    assert len(set(met(folder, 3))) == 3
    assert set(met(folder, 3)) <= cluster.pods.keys()


def test_killed_pod_in_a_search_each_trial_is_complete_once(
    cluster: Kubernetes, driver: Driver, folder: Path
) -> None:
    call, pod = begin_search(cluster, driver, folder)
    pod.send(signal.SIGKILL)
    assert pod.ended.wait(120)
    met(folder, 4)
    end_search(call, folder)


def test_gang_that_loses_a_pod_fails_with_the_name_of_the_pod(
    cluster: Kubernetes, driver: Driver, folder: Path
) -> None:
    call = driver.start(GANGS + "ring", folder=place(folder), steps=100_000, max_losses=0)
    pod = cluster.pods[met(folder, 3)[0]]
    pod.send(signal.SIGKILL)
    assert pod.name in call.error()


def test_gang_that_loses_a_pod_starts_again_with_another_one(
    cluster: Kubernetes, driver: Driver, folder: Path
) -> None:
    call = driver.start(GANGS + "ring", folder=place(folder), waits=True)
    hosts = met(folder, 3)
    cluster.pods[hosts[0]].send(signal.SIGKILL)
    # Spark replaces the pod.
    assert eventually(lambda: {*met(folder, 3)} - {*hosts}, 120)
    (folder / "go").touch()
    run = call.wait()
    assert (run["state"], run["attempts"], len(run["digests"])) == ("COMPLETE", 2, 1)


def test_deleted_pod_in_a_search_each_trial_is_complete_once(
    cluster: Kubernetes, driver: Driver, folder: Path
) -> None:
    call, pod = begin_search(cluster, driver, folder)
    cluster.delete(pod)
    assert pod.ended.wait(120)
    met(folder, 4)
    end_search(call, folder)


def test_node_that_is_cut_off_its_trial_runs_elsewhere(
    cluster: Kubernetes, driver: Driver, folder: Path
) -> None:
    call, pod = begin_search(cluster, driver, folder)
    cluster.cut(pod)
    try:
        assert eventually(lambda: cluster.is_deleted(pod), 300)
        end_search(call, folder)
    finally:
        cluster.mend(pod)
    # What the node could not be told meanwhile is done now, and Spark replaces the pod.
    assert pod.ended.wait(60)


def test_account_without_rights_is_named_when_a_session_starts(cluster: Kubernetes) -> None:
    cluster.api.access.accounts.add((NAMESPACE, "visitor"))
    with pytest.raises(
        DriverError, match=r"forbidden: User .*spark:visitor\W+ cannot \w+ resource"
    ):
        cluster.start_driver(account="visitor")


def test_account_without_rights_is_named_when_a_program_is_submitted(cluster: Kubernetes) -> None:
    cluster.api.access.accounts.add((NAMESPACE, "visitor"))
    done = cluster.submit(PROGRAM, account="visitor")
    assert done.returncode != 0
    assert 'pods is forbidden: User "system:serviceaccount:spark:visitor"' in done.stderr


def summary_of(pod: Pod) -> dict[str, Any]:
    """Return the summary that a driver's pod has printed."""
    lines = [line for line in pod.log.read_text().splitlines() if line.startswith('{"state"')]
    assert lines, pod.log.read_text()[-5000:]
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def test_program_in_cluster_mode_keeps_its_run_on_s3(cluster: Kubernetes, folder: Path) -> None:
    (folder / "go").touch()
    with s3_bucket(cluster.net) as env:
        url = env["AWS_ENDPOINT_URL"]
        done = cluster.submit(
            PROGRAM,
            *("--folder", place(folder), "--run-id", "stored"),
            spark__kubernetes__driverEnv__AWS_ENDPOINT_URL=url,
            spark__executorEnv__AWS_ENDPOINT_URL=url,
        )
    assert done.returncode == 0, done.stderr
    driver = cluster.drivers()[-1]
    run = summary_of(driver)
    assert run["path"] == "s3://bucket/runs/stored"
    assert run["completions"] == {str(number): 1 for number in range(4)}
    application = cluster.application(driver)
    assert eventually(lambda: not cluster.executors(application), 300)


def test_program_that_fails_is_a_failed_pod(cluster: Kubernetes) -> None:
    done = cluster.submit(PROGRAM, "--folder")
    assert done.returncode == 0, "Spark's client ends so whatever became of the driver"
    pod = cluster.drivers()[-1]
    assert "argument --folder: expected one argument" in pod.log.read_text()
    found = cluster.api.get("pods", NAMESPACE, pod.name)
    assert found
    assert found["status"]["phase"] == "Failed"
    (status,) = found["status"]["containerStatuses"]
    assert status["state"]["terminated"]["exitCode"] != 0


def test_run_goes_on_in_the_pod_of_another_driver(cluster: Kubernetes, folder: Path) -> None:
    arguments = ("--folder", place(folder), "--run-id", "continued")
    conf = {"spark__sparkdl__root": "/shared/runs"}
    wait = "spark__kubernetes__submission__waitAppCompletion"
    done = cluster.submit(PROGRAM, *arguments, **conf, **{wait: "false"})
    assert done.returncode == 0, done.stderr
    met(folder, 4)
    first = cluster.drivers()[-1]
    application = cluster.application(first)
    assert len(cluster.executors(application)) == 2
    cluster.delete(first)
    assert first.ended.wait(60)
    log = first.log.read_text()
    assert "Run continued: CANCELLED (terminated by SIGTERM)" in log
    assert "run_id='continued', if_exists='resume'" in log
    assert first.exit_code == 143
    assert eventually(lambda: not cluster.executors(application), 300)
    (folder / "go").touch()
    done = cluster.submit(PROGRAM, *arguments, **conf)
    assert done.returncode == 0, done.stderr
    second = cluster.drivers()[-1]
    assert second is not first
    run = summary_of(second)
    assert run["states"] == ["COMPLETE"] * 4
    assert run["completions"] == {str(number): 1 for number in range(4)}
