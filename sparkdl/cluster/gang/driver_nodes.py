"""Runs on the driver. The Spark job of a gang, some of whose processes the driver runs itself."""

import contextlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from sparkdl import storage
from sparkdl.cluster.gang.node_task import END, NodeTask
from sparkdl.cluster.plan import Plan

__all__ = ["DriverJob"]


class DriverJob:
    """The job of one attempt.

    Args:
        plan: of the gang.
        folder: the URL in which its ranks tell each other how it goes.
        submit: hands the job itself to Spark and returns the rows of its tasks.
    """

    def __init__(self, plan: Plan, folder: str, submit: Callable[..., list[Any]]) -> None:
        self._folder, self._submit = folder, submit
        self._ranks = [member.rank for member in plan.members if member.role.on_driver]

    def run(self, task: NodeTask, *args: Any, **job: Any) -> list[Any]:
        """Run the job and the driver's nodes; return a row for each.

        Raises:
            JobFailed: the job was cancelled, or failed.
        """
        here = replace(task, is_on_driver=True)
        with ThreadPoolExecutor(len(self._ranks), thread_name_prefix="sparkdl-ps") as pool:
            nodes = [pool.submit(here.on_driver, rank) for rank in self._ranks]
            for node in nodes:
                node.add_done_callback(lambda done: self.end() if done.exception() else None)
            try:
                rows = self._submit(task, *args, **job)
                said = [node.result() for node in nodes]
            except BaseException:
                self.end()
                raise
        return [*rows, *({"outcome": json.dumps(one), "exception": exc} for one, exc in said)]

    def end(self) -> None:
        """Order the driver's nodes to end."""
        with contextlib.suppress(OSError):
            storage.write(storage.join(self._folder, END), b"")
