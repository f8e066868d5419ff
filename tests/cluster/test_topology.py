"""A new topology is built from the outside, without a change in the package."""

import json
import os
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl.cluster.base import Cluster
from sparkdl.cluster.gang.placement import Placement
from sparkdl.cluster.gang.policies import BarrierPolicy
from sparkdl.cluster.gpus.assignment import AssignedGpus
from sparkdl.cluster.outcome import Outcome
from sparkdl.cluster.plan import Plan, Role
from sparkdl.cluster.topology import GangTopology, Job, SparkJob, Submit
from sparkdl.cluster.trial_task import TrialTask
from sparkdl.errors import TrainingFailedError
from sparkdl.files.rank_files import RankFiles
from sparkdl.options import Options
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runner.request import Request


@dataclass(frozen=True)
class PhoneBook(BarrierPolicy):
    """A gang whose processes find each other by names of their own, and sign off when they end."""

    def environ(self, task: TrialTask, placement: Placement, gpus: AssignedGpus) -> dict[str, str]:
        members = zip(task.plan.members, placement.peers, strict=True)
        return {"PHONE_BOOK": json.dumps({str(m): peer.endpoint for m, peer in members})}

    def concluded(self, task: TrialTask, placement: Placement, outcome: Outcome) -> None:
        placement.files.post(placement.rank, "signed-off", str(outcome.status))


class WatchedJob(SparkJob):
    """A job that notes who has signed off."""

    def __init__(self, submit: Submit, files: RankFiles, seen: set[int]) -> None:
        super().__init__(submit)
        self._files = files
        self._seen = seen

    def run(self, task: Any, *args: Any, **options: Any) -> list[Any]:
        rows = super().run(task, *args, **options)
        self._seen |= self._files.look().ranks("signed-off")
        return rows


@dataclass(frozen=True)
class PhoneBookTopology(GangTopology):
    """The form of such a gang on the cluster."""

    seen: Any = None

    def job(self, plan: Plan, files: RankFiles, cluster: Cluster) -> Job:
        return WatchedJob(cluster.submit, files, self.seen)


def request_of(train: Any, root: str, seen: set[int]) -> Request:
    roles = (
        Role(name="caller", count=1),
        Role(name="operator", count=1, trains=False, in_world=False),
    )
    return Request(
        "phone_book",
        roles,
        train,
        Options.parse({"root": root, "progress": False}),
        [{}],
        is_gang=True,
        is_distributed=True,
        given_topology=PhoneBookTopology(PhoneBook(), seen),
    )


@pytest.mark.slow
def test_a_topology_of_ones_own_runs(spark: SparkSession, root: str) -> None:
    def train() -> dict[str, Any]:
        from sparkdl import context

        book = json.loads(os.environ["PHONE_BOOK"])
        return {"names": sorted(book), "world": context.world_size, "role": context.role}

    seen: set[int] = set()
    run = execute(request_of(train, root, seen))
    assert run.result == {"names": ["caller 0", "operator 0"], "world": 1, "role": "caller"}
    assert seen == {0, 1}


@pytest.mark.slow
def test_a_failure_in_a_topology_of_ones_own_names_the_rank(spark: SparkSession, root: str) -> None:
    def train() -> None:
        from sparkdl import context

        if context.role == "operator":
            raise ValueError("no connection")

    with pytest.raises(TrainingFailedError, match=r"operator 0 \(rank 1\).*no connection"):
        execute(request_of(train, root, set()))
