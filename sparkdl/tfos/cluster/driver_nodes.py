"""Runs on the driver. The job of a cluster, some of whose nodes run on the driver itself."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from sparkdl.cluster.gang.slow_ranks import GangNews
from sparkdl.cluster.gang.task import RankTask, run_rank
from sparkdl.cluster.outcome import Outcome
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.topology import Submit
from sparkdl.files.rank_files import RankFiles
from sparkdl.tfos.cluster.node_policy import NodePolicy


class DriverNodesJob:
    """The job of one attempt.

    Args:
        plan: the plan of the cluster.
        files: the files by which the ranks of the attempt talk.
        submit: hands the job to Spark and returns the rows of its tasks.
    """

    def __init__(self, plan: Plan, files: RankFiles, submit: Submit) -> None:
        self._submit = submit
        self._is_ended = threading.Event()
        self._members = [member for member in plan.members if member.role.on_driver]

    def run(self, task: RankTask, *args: Any, **options: Any) -> list[Any]:
        """Run the Spark job and the nodes of the driver; return a row for each node.

        Raises:
            JobFailed: if the job was cancelled, or failed.
        """
        # The parent process of the driver is no executor and may live on: fork from own servers.
        start = replace(task.task.start, shared=False)
        here = replace(task.task, start=start)
        policy = NodePolicy(on_driver=True, is_ended=self._is_ended.is_set)
        with ThreadPoolExecutor(len(self._members), thread_name_prefix="sparkdl-ps") as pool:
            nodes = [pool.submit(run_rank, here, policy, member) for member in self._members]
            for node in nodes:
                node.add_done_callback(lambda done: self.end() if done.exception() else None)
            try:
                rows = self._submit(task, *args, **options)
                outcomes: list[Outcome] = [node.result() for node in nodes]
            except BaseException:
                self.end()
                raise
        return [*rows, *({"outcome": outcome.to_json()} for outcome in outcomes)]

    def look(self) -> Sequence[GangNews]:
        """Do nothing: nodes of the driver are watched by their own threads."""
        return ()

    def end(self) -> None:
        """Let the nodes end, which are in this process: no order in the run directory is needed."""
        self._is_ended.set()
