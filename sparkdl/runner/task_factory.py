"""Runs on the driver. Make the tasks that the cluster runs for the trials of a run."""

import secrets
from dataclasses import dataclass
from typing import Any

from sparkdl.cluster.gang.elastic import ElasticTask
from sparkdl.cluster.gang.node_task import NodeTask
from sparkdl.cluster.gang.task import GangTask
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.trial_task import TrialTask
from sparkdl.runner.prepare import PreparedRun, stays_in_memory
from sparkdl.runs import Trial, provenance
from sparkdl.runs.opening import OpenRun
from sparkdl.search.trial_source import Source

__all__ = ["TaskFactory"]


@dataclass(frozen=True)
class TaskFactory:
    """The recipe for the task of each attempt at a trial.

    Attributes:
        prepared: the request, the program, the plan and the cluster.
        opened: the run directory.
        source: knows the parameters of trials that a search has proposed.
    """

    prepared: PreparedRun
    opened: OpenRun
    source: Source

    def make(self, trial: Trial, cores: int) -> TrialTask:
        """Return the task of the next attempt at a trial.

        Args:
            trial: the trial.
            cores: number of CPU cores that each of its processes may use.
        """
        prepared, opened = self.prepared, self.opened
        plan, options = prepared.plan, prepared.request.options
        return _task_type(plan)(
            **self._meeting_point(),
            plan=plan,
            program=prepared.program,
            run_id=opened.run.id,
            run_path=opened.paths.folder,
            application=prepared.cluster.application,
            number=trial.number,
            params=self._params_of(trial),
            seed=trial.seed,
            metric=options.metric,
            direction=opened.run.direction,
            keep_checkpoints=options.keep_checkpoints,
            cores=cores,
            attempt=trial.attempts,
            versions=provenance.versions(),
            feed=prepared.data.feed(plan.readers) if prepared.data else None,
            init_from=prepared.init_from and (opened.paths.initial, 1),
            others=tuple(prepared.request.objectives)[1:],
        )

    def _params_of(self, trial: Trial) -> dict[str, Any]:
        """Return the parameters of a trial with nothing masked, unlike those in the journal."""
        known = self.prepared.request.params
        return self.source.params_of(trial) if known is None else known[trial.number]

    def _meeting_point(self) -> dict[str, Any]:
        """Return the fields of tasks whose ranks meet by files in the run directory."""
        prepared = self.prepared
        if not prepared.plan.meets_by_files:
            return {}
        conf = prepared.cluster.conf
        is_private = stays_in_memory(prepared.program, conf)
        return {
            "driver": conf("spark.driver.host") or "",
            "secret": secrets.token_bytes(32) if is_private else b"",
        }


def _task_type(plan: Plan) -> type[TrialTask]:
    if plan.kind == "tfos":
        return NodeTask
    if plan.elastic:
        return ElasticTask
    return GangTask if plan.is_gang else TrialTask
