"""Runs on the driver. Make the tasks that the cluster runs for the trials of a run."""

import functools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparkdl.cluster.preflight import versions_of
from sparkdl.cluster.process.server_connection import Start
from sparkdl.cluster.start_conditions import start_of
from sparkdl.cluster.trial_spec import RunRef, TrialSpec
from sparkdl.cluster.trial_task import TrialTask
from sparkdl.data.dataframe.protocol import Feed
from sparkdl.errors import ConfigError
from sparkdl.runner.prepared_run import PreparedRun
from sparkdl.runs import Trial
from sparkdl.runs.opening import OpenRun
from sparkdl.search.trial_source import TrialSource


@dataclass(frozen=True)
class TaskFactory:
    """The recipe for the task of each attempt at a trial.

    Attributes:
        prepared: the request, the program, the plan and the cluster.
        opened: the run directory.
        source: knows the parameters of trials that a search has proposed.
        num_trials: the number of trials that the run may have.
    """

    prepared: PreparedRun
    opened: OpenRun
    source: TrialSource
    num_trials: float

    def make(self, trial: Trial, at_once: int, avoid: tuple[str, ...] = ()) -> TrialTask:
        """Return the task of the next attempt at a trial.

        Args:
            trial: the trial.
            at_once: number of trials that run at once, and share cores and store.
            avoid: the ids of the executors that must not run the trial.
        """
        return TrialTask(
            plan=self.prepared.plan,
            program=self.prepared.program,
            run=self._run,
            trial=replace(self._spec(trial), avoid=avoid),
            start=self._start,
            cores=self.prepared.concurrency.cores(at_once),
            at_once=at_once,
            feed=self._feed,
        )

    @functools.cached_property
    def _start(self) -> Start:
        prepared, run = self.prepared, self.opened.run
        application = prepared.cluster.application
        return start_of(prepared.plan, prepared.program, application, run.id, self.opened.seed)

    @functools.cached_property
    def _feed(self) -> Feed | None:
        data, plan = self.prepared.data, self.prepared.plan
        is_shared = self.num_trials > 1 and not plan.is_gang
        return data.feed(plan.readers, is_shared) if data else None

    @functools.cached_property
    def _run(self) -> RunRef:
        cluster = self.prepared.cluster
        return RunRef(
            id=self.opened.run.id,
            path=self.opened.paths.folder,
            application=cluster.application,
            versions=versions_of(cluster.version, self.prepared.program.imports),
            driver=cluster.conf("spark.driver.host") or "",
            owner=self.opened.owner.number if cluster.tasks_outlive_driver else 0,
        )

    def _spec(self, trial: Trial) -> TrialSpec:
        prepared, request = self.prepared, self.prepared.request
        rungs, reported = self.source.rungs_of(trial)
        return TrialSpec(
            number=trial.number,
            params=self._params_of(trial),
            seed=trial.seed,
            attempt=trial.attempts,
            metrics=tuple(request.metrics),
            direction=self.opened.run.direction,
            keep_checkpoints=request.options.keep_checkpoints,
            row_key=_key_columns(request.options.row_key),
            init_from=self._initial_of(trial),
            rungs=rungs,
            reported=reported,
            secret=secrets.token_bytes(32) if prepared.plan.is_gang else b"",
        )

    def _initial_of(self, trial: Trial) -> tuple[str, int] | None:
        """Return the folder and the number of the checkpoint that a trial begins with, if any."""
        if trial.parent is None:
            return self.prepared.init_from and (self.opened.paths.initial, 1)
        parent = self.opened.run.trials[trial.parent]
        # The weights that the value belongs to, by which the parent was chosen.
        checkpoint = parent.checkpoint_of_value()
        if checkpoint is None:
            raise ConfigError(
                f"trial {trial.number} begins with the checkpoint of trial {parent.number}, which "
                f"has none in {parent.path}. Start the search again."
            )
        return parent.path, checkpoint.number

    def _params_of(self, trial: Trial) -> dict[str, Any]:
        """Return the parameters of a trial with nothing masked, unlike those in the journal."""
        known = self.prepared.request.params or ()
        # The trials of the request are the first of the run.
        return known[trial.number] if trial.number < len(known) else self.source.params_of(trial)


def _key_columns(row_key: str | Sequence[str] | None) -> tuple[str, ...]:
    if row_key is None:
        return ()
    from sparkdl.data.row_keys import key_columns  # Imported late, as it needs pyarrow.

    return key_columns(row_key)
