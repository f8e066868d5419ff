"""The files of conf/kubernetes/, and what Spark's own client sends, agree with Kubernetes' schemas.

Pods are not started here. What a container runtime or a network does is not tested.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.clusters.kubernetes_api import ADMIN, Api, Request, served
from tests.clusters.kubernetes_settings import CONF, settings
from tests.helpers.processes import eventually
from tests.helpers.standalone import SPARK

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
FILES = CONF / "kubernetes"
MANIFESTS = sorted(FILES.glob("*.yaml"))
# All but those of a driver in client mode.
OPTIONAL = r"spark\.(?!executor\.pyspark|kubernetes\.driver\.pod\.name|driver\.)\S+"
VERSIONS = ["1.31", kubernetes_validate.latest_version()]

PROGRAM = """
import sys
from pyspark.sql import SparkSession

SparkSession.builder.getOrCreate()
sys.stdin.read()
"""


def documents(path: Path) -> list[Any]:
    return [item for item in yaml.safe_load_all(path.read_text()) if item]


def environment(folder: Path, defaults: str) -> dict[str, str]:
    folder.mkdir()
    (folder / "spark-defaults.conf").write_text(defaults)
    outer = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_SUBMIT")}
    return {**outer, "SPARK_HOME": str(SPARK), "SPARK_CONF_DIR": str(folder)}


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Request]]:
    """The requests of Spark in cluster mode, and then of a driver in client mode."""
    api, folder = Api(), tmp_path_factory.mktemp("submitted")
    with served(api) as url:
        common = {"spark__kubernetes__submission__waitAppCompletion": "false"}
        token = {"spark__kubernetes__authenticate__submission__oauthToken": ADMIN}
        env = environment(folder / "cluster", settings(url, OPTIONAL, **common, **token))
        command = [str(SPARK / "bin/spark-submit"), "local:///opt/program/grid_search.py"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        client = {
            "spark__kubernetes__authenticate__oauthToken": ADMIN,
            "spark__submit__deployMode": "client",
            "spark__driver__host": "127.0.0.1",
            "spark__pyspark__python": sys.executable,
        }
        env = environment(folder / "client", settings(url, OPTIONAL, **client))
        driver = subprocess.Popen([sys.executable, "-c", PROGRAM], env=env, stdin=subprocess.PIPE)
        try:
            assert eventually(lambda: len(pods(api.requests, "executor")) == 4, 90), api.requests
        finally:
            assert driver.stdin
            driver.stdin.close()
            driver.wait(60)
    yield [request for request in api.requests if request.verb in ("create", "patch")]


def objects(requests: list[Request], kind: str) -> list[Any]:
    return [r.body for r in requests if isinstance(r.body, dict) and r.body.get("kind") == kind]


def pods(requests: list[Request], role: str) -> list[Any]:
    found = objects(requests, "Pod")
    return [pod for pod in found if pod["metadata"]["labels"]["spark-role"] == role]


def test_submission_sends_the_objects_of_a_driver(sent: list[Request]) -> None:
    kinds = {request.body["kind"] for request in sent if "kind" in request.body}
    assert kinds == {"Pod", "Service", "ConfigMap", "NetworkPolicy"}


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_that_spark_sends_are_valid(sent: list[Request], version: str) -> None:
    for request in sent:
        kubernetes_validate.validate(request.body, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_are_valid(path: Path, version: str) -> None:
    for item in documents(path):
        kubernetes_validate.validate(item, version, strict=True)


def test_a_wrong_manifest_is_detected() -> None:
    pod = documents(FILES / "executor-pod.yaml")[0]
    pod["spec"]["terminationGracePeriod"] = 30
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, VERSIONS[-1], strict=True)


def test_executors_get_gpus_and_a_large_shared_memory(sent: list[Request]) -> None:
    for pod in pods(sent, "executor"):
        (container,) = pod["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
        assert volumes[mounts["/shared/runs"]]["persistentVolumeClaim"]["claimName"] == "runs"
        assert pod["spec"]["securityContext"]["fsGroup"] == 185


def test_executors_have_no_token_of_the_api_server(sent: list[Request]) -> None:
    assert {pod["spec"]["automountServiceAccountToken"] for pod in pods(sent, "executor")} == {
        False
    }


def test_keys_of_s3_travel_as_references_to_a_secret(sent: list[Request]) -> None:
    every = objects(sent, "Pod")
    assert len(every) == 5
    for pod in every:
        env = {item["name"]: item for item in pod["spec"]["containers"][0]["env"]}
        assert env["AWS_SECRET_ACCESS_KEY"]["valueFrom"]["secretKeyRef"] == {
            "name": "s3",
            "key": "key",
        }


def test_driver_has_its_account_and_time_to_end_its_run(sent: list[Request]) -> None:
    (driver,) = pods(sent, "driver")
    assert driver["spec"]["serviceAccountName"] == "spark"
    assert driver["spec"]["terminationGracePeriodSeconds"] == 60


def selects(selector: Any, labels: dict[str, str]) -> bool:
    """Return True if a selector of a network policy chooses a pod."""
    terms = selector.get("matchExpressions", ())
    assert all(term["operator"] == "In" for term in terms)
    return all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items()) and all(
        labels.get(term["key"]) in term["values"] for term in terms
    )


def test_ranks_of_a_gang_reach_each_other_on_any_port(sent: list[Request]) -> None:
    own = documents(FILES / "network-policy.yaml")
    labels = pods(sent, "executor")[0]["metadata"]["labels"]
    for direction, peers in (("Ingress", "from"), ("Egress", "to")):
        rules = [
            rule
            for policy in own
            if direction in policy["spec"]["policyTypes"]
            and selects(policy["spec"]["podSelector"], labels)
            for rule in policy["spec"][direction.lower()]
        ]
        assert any(
            "ports" not in rule and selects(peer["podSelector"], labels)
            for rule in rules
            for peer in rule.get(peers, ())
        )


def test_policy_of_an_application_lets_its_executors_meet(sent: list[Request]) -> None:
    """Spark makes a policy for each application in cluster mode; policies add up."""
    (policy,) = objects(sent, "NetworkPolicy")
    (pod,) = pods(sent, "driver")
    labels = {**pod["metadata"]["labels"], "spark-role": "executor"}
    assert selects(policy["spec"]["podSelector"], labels)
    (rule,) = policy["spec"]["ingress"]
    assert "ports" not in rule
    assert any(selects(peer["podSelector"], labels) for peer in rule["from"])


def test_files_of_the_image_exist() -> None:
    lines = (FILES / "Dockerfile").read_text().splitlines()
    copied = [name for line in lines if line.startswith("COPY") for name in line.split()[1:-1]]
    assert len(copied) > 5
    assert [name for name in copied if not (REPOSITORY / name).exists()] == []
    assert all(os.access(FILES / name, os.X_OK) for name in ("entrypoint.sh", "decom.sh"))


def test_executor_is_told_before_its_pod_ends(tmp_path: Path) -> None:
    executor, pod = tmp_path / "KubernetesExecutorBackend", tmp_path / "pod"
    executor.write_text("trap 'echo told; exit' PWR; touch $0.ready; while :; do sleep 0.05; done")
    pod.write_text(
        f"bash {executor} & until [ -e {executor}.ready ]; do sleep 0.05; done\n"
        f"{FILES}/decom.sh; echo over; {FILES}/decom.sh"
    )
    # A pod sees its own processes only.
    command = ["unshare", "--pid", "--fork", "--mount-proc", "bash", str(pod)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "told\nover\n"
