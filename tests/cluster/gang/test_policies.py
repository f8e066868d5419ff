"""The contract of all kinds of ranks: form, train, fail and end in the same way."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl.cluster.plan import Role
from sparkdl.cluster.topology import ElasticTopology, GangTopology, Topology
from sparkdl.errors import TrainingFailedError
from sparkdl.options import Options
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runner.request import Request
from sparkdl.tfos.cluster.node_topology import NodeTopology
from tests.helpers.processes import eventually, processes_of

pytestmark = pytest.mark.slow

# The values that each kind of gang sets beside its topology.
KINDS: dict[str, tuple[Topology, dict[str, Any]]] = {
    "barrier": (GangTopology(), {}),
    "elastic": (ElasticTopology(), {"elastic": True}),
    "nodes": (NodeTopology(), {"ends_by_order": True}),
}


def request_of(kind: str, train: Any, root: str, **options: Any) -> Request:
    topology, fields = KINDS[kind]
    return Request(
        kind,
        (Role(name="worker", count=2, in_ring=True),),
        train,
        Options.parse({"root": root, "progress": False, "run_id": "run", **options}),
        [{}],
        is_gang=True,
        is_distributed=True,
        given_topology=topology,
        **fields,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_know_each_other_and_the_chief_returns(
    kind: str, spark: SparkSession, root: str
) -> None:
    def train() -> dict[str, Any]:
        import numpy as np

        from sparkdl import context, distribute

        context.report(float(context.rank), step=1)
        total = distribute.allreduce(np.float32([context.rank + 1]), op="sum")
        return {"sum": float(total[0]), "rank": context.rank, "world": context.world_size}

    run = execute(request_of(kind, train, root))
    assert run.result == {"sum": 3.0, "rank": 0, "world": 2}
    assert run.trials[0].metrics["value"] == 0.0
    assert run.usage.cpu_s > 0
    assert_nothing_is_left(run.path, run.id)


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_of_one_rank_ends_the_gang_and_names_the_rank(
    kind: str, spark: SparkSession, root: str
) -> None:
    def train() -> None:
        import time

        from sparkdl import context

        if context.rank == 1:
            raise KeyError("mine")
        time.sleep(120)

    with pytest.raises(TrainingFailedError, match=r"worker 1 \(rank 1\)") as caught:
        execute(request_of(kind, train, root))
    assert isinstance(caught.value.__cause__, KeyError)
    assert_nothing_is_left(f"{root}/run", "run")


@pytest.mark.parametrize("kind", KINDS)
def test_a_gang_is_started_again_where_its_budget_allows(
    kind: str, spark: SparkSession, root: str
) -> None:
    def train() -> int:
        from sparkdl import context

        if context.attempt == 0 and context.rank == 0:
            raise ValueError("the first time")
        return context.attempt

    run = execute(request_of(kind, train, root, max_restarts=1))
    assert run.result == 1
    assert run.trials[0].attempts == 2


def assert_nothing_is_left(path: str, run_id: str) -> None:
    assert not Path(path, "trials", "0", "ranks").exists()
    assert eventually(lambda: not processes_of(run_id))
