"""Runs on the driver. The way in which the nodes of a cluster become Spark tasks and a job."""

from dataclasses import dataclass, replace

from sparkdl.cluster.base import Cluster
from sparkdl.cluster.gang.task import RankTask
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.topology import Job, SparkJob, Task
from sparkdl.cluster.trial_task import TrialTask
from sparkdl.files.rank_files import RankFiles
from sparkdl.tfos.cluster.detached_job import DetachedJob
from sparkdl.tfos.cluster.driver_nodes import DriverNodesJob
from sparkdl.tfos.cluster.node_policy import NodePolicy
from sparkdl.tfos.cluster.node_supervisor import hand_over


@dataclass(frozen=True)
class NodeTopology:
    """The nodes of a TensorFlowOnSpark cluster.

    Attributes:
        detached: nodes that train go on when the job that started them has ended.
    """

    detached: bool = False

    def task(self, task: TrialTask) -> Task:
        if self.detached:
            # The supervisors of nodes are forked from the same server as the nodes.
            preload = (*task.start.preload, "sparkdl.tfos.cluster.node_supervisor")
            task = replace(task, start=replace(task.start, preload=preload))
        return RankTask(task, NodePolicy(hand_over=hand_over if self.detached else None))

    def job(self, plan: Plan, files: RankFiles, cluster: Cluster) -> Job:
        if self.detached:
            return DetachedJob(plan, files, cluster.submit)
        if any(role.on_driver for role in plan.roles):
            return DriverNodesJob(plan, files, cluster.submit)
        return SparkJob(cluster.submit)
