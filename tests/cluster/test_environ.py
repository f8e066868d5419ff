"""The environment variables of the ranks of a gang."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkdl.cluster.environ import gang_variables, without_credentials
from sparkdl.cluster.gang.placement import Placement
from sparkdl.cluster.gang.policies import framework_variables
from sparkdl.cluster.gang.rendezvous import Peer
from sparkdl.cluster.gpus.assignment import AssignedGpus
from sparkdl.cluster.plan import Plan, Role
from sparkdl.files.layout import TrialPaths


def test_an_evaluator_is_not_in_the_world_of_the_workers() -> None:
    roles = (
        Role(name="worker", count=2),
        Role(name="evaluator", count=1, must_return=False, in_world=False),
        Role(name="ps", count=1, in_world=False),  # As in TensorFlowOnSpark.
    )
    gang = Plan(kind="allreduce", roles=roles, is_gang=True).members
    endpoints = ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3", "10.0.0.1:4"]
    worker, evaluator = (gang_variables(gang, endpoints, rank, "run", 0) for rank in (1, 2))
    assert (worker["WORLD_SIZE"], worker["JAX_NUM_PROCESSES"]) == ("2", "2")
    assert '"evaluator"' in evaluator["TF_CONFIG"]
    server = gang_variables(gang, endpoints, 3, "run", 0)
    for variables in (evaluator, server):
        assert not {"RANK", "JAX_PROCESS_ID"} & variables.keys()


@pytest.mark.parametrize("are_own", [True, False], ids=["isolated GPUs", "no GPUs"])
@pytest.mark.parametrize("nodes", ["aa", "ab"], ids=["one host", "two hosts"])
def test_places_of_the_ranks(nodes: str, are_own: bool, tmp_path: Path) -> None:
    """As `torchrun --nproc-per-node 1` and, where GPUs are isolated, `horovodrun -H a:1,b:1`."""
    plan = Plan(
        kind="horovod", roles=(Role(name="worker", count=2, has_horovod_variables=True),), env={}
    )
    peers = [Peer("127.0.0.1", 4000 + rank, node, node) for rank, node in enumerate(nodes)]
    task = SimpleNamespace(plan=plan, run=SimpleNamespace(id="digits-1"))
    told = []
    for member in plan.members:
        place = Placement(member=member, attempt=3, peers=peers, paths=TrialPaths(str(tmp_path)))
        gpus = AssignedGpus({}, are_own=are_own)
        told.append(framework_variables(cast(Any, task), place, gpus))
    for rank, variables in enumerate(told):
        own = {name: variables[name] for name in ("RANK", "GROUP_RANK", "NODE_RANK", "ROLE_RANK")}
        assert set(own.values()) == {f"{rank}"}
        assert (variables["LOCAL_RANK"], variables["LOCAL_WORLD_SIZE"]) == ("0", "1")
        assert (variables["WORLD_SIZE"], variables["GROUP_WORLD_SIZE"]) == ("2", "2")
        assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("127.0.0.1", "4000")
        assert variables["TORCHELASTIC_RUN_ID"] == "digits-1"
        assert variables["TORCHELASTIC_RESTART_COUNT"] == "3"
        assert variables["GLOO_SOCKET_IFNAME"] == "lo"
        assert "NCCL_SOCKET_IFNAME" not in variables
    shares_host = nodes == "aa" and not are_own
    assert [v["HOROVOD_LOCAL_RANK"] for v in told] == (["0", "1"] if shares_host else ["0", "0"])
    assert {v["HOROVOD_CROSS_SIZE"] for v in told} == ({"1"} if shares_host else {"2"})


@pytest.mark.parametrize(
    ("interface", "given", "expected"),
    [
        ("lo", {}, {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}),
        ("lo", {"GLOO_SOCKET_IFNAME": "eth7"}, {"NCCL_SOCKET_IFNAME": "=lo"}),
        (None, {"GLOO_SOCKET_IFNAME": "eth7"}, {}),
    ],
)
def test_the_interface_of_process_groups_is_the_users(
    interface: str | None, given: dict[str, str], expected: dict[str, str], tmp_path: Path
) -> None:
    roles = (Role(name="worker", count=1),)
    plan = Plan(kind="allreduce", roles=roles, env=given, interface=interface)
    place = Placement(
        member=plan.members[0],
        attempt=0,
        peers=[Peer("127.0.0.1", 4000, "a", "a")],
        paths=TrialPaths(str(tmp_path)),
    )
    task = SimpleNamespace(plan=plan, run=SimpleNamespace(id="digits-1"))
    variables = framework_variables(cast(Any, task), place, AssignedGpus({}))
    assert {k: v for k, v in variables.items() if k.endswith("SOCKET_IFNAME")} == expected


def test_training_gets_no_secret_of_spark() -> None:
    secrets = {
        "_SPARK_AUTH_SECRET": "a",
        "_SPARK_SSL_KEY_STORE_PASSWORD": "b",
        "_SPARK_SSL_TRUST_STORE_PASSWORD": "c",
        "PYTHON_WORKER_FACTORY_SECRET": "d",
        "PYSPARK_GATEWAY_SECRET": "e",
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": "f",
        "SPARK_JAVA_OPT_3": "-Dspark.ssl.keyPassword=g",
        "HADOOP_TOKEN_FILE_LOCATION": "/containers/1/tokens",
    }
    needed = {"HOME": "/home/me", "AWS_SECRET_ACCESS_KEY": "h", "SPARK_LOCAL_IP": "127.0.0.1"}
    assert without_credentials({**secrets, **needed}, "s3://bucket/runs/one") == needed
    on_hdfs = without_credentials({**secrets, **needed}, "hdfs://host/runs/one")
    assert on_hdfs == {**needed, "HADOOP_TOKEN_FILE_LOCATION": "/containers/1/tokens"}
