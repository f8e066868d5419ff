"""Runs on the driver. An experiment between `begin` and `end`: a run whose only trial runs here."""

import dataclasses
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkdl import context
from sparkdl.context import Context
from sparkdl.files import resources as kept
from sparkdl.files import storage
from sparkdl.runner.harmless import tolerated
from sparkdl.runner.pipeline.preview import IN_PROCESS, end_preview
from sparkdl.runs import provenance
from sparkdl.runs.events import RunEnded, TrialChanged
from sparkdl.runs.ids_and_seeds import new_run_id
from sparkdl.runs.opening import OpenRun, RunDescription, open_run
from sparkdl.runs.states import RunState, TrialState, evaluate_metric

__all__ = ["OpenExperiment", "state"]


@dataclass(frozen=True)
class OpenExperiment:
    """An experiment that has begun.

    Attributes:
        opened: the run.
        folder: the local folder of its trial.
        earlier: the variable with the context of this process before the experiment began.
        begun_s: the time of the beginning.
    """

    opened: OpenRun
    folder: str
    earlier: str | None
    begun_s: float

    @classmethod
    def begin(
        cls, root: str, name: str, description: str | None, resources: Mapping[str, Path]
    ) -> "OpenExperiment":
        """Create the run, and make `tensorboard.logdir()` the folder of its trial.

        Args:
            root: the folder of the runs.
            name: the name of the run.
            description: a sentence about the run.
            resources: files and folders to copy into the run directory, by the names of the copies.
        """
        end_preview(IN_PROCESS)
        opened = open_run(root, _description(name, description), "error")
        with opened.failing():
            storage.write(opened.paths.environment, provenance.environment())
            kept.keep(opened.run.path, resources, {})
            trial = opened.run.trials[0]
            is_local = storage.is_local(trial.path)
            folder = trial.path if is_local else tempfile.mkdtemp(prefix="sparkdl-")
            opened.record(TrialChanged(number=0, state=TrialState.RUNNING, attempt=0))
        earlier = os.environ.get(context.VARIABLE)
        me = Context(folder=folder, url=trial.path, run=opened.run.id, seed=trial.seed)
        context.activate(dataclasses.replace(me, kind=opened.run.kind))
        return cls(opened, folder, earlier, time.monotonic())

    def end(self, metric: float | None) -> None:
        """Record the end of the run, with its metric if there is one.

        As with any trial, a metric that is no finite number makes the trial INVALID.
        """
        if self.earlier is None:
            os.environ.pop(context.VARIABLE, None)
        else:
            os.environ[context.VARIABLE] = self.earlier
        trial, duration_s = self.opened.run.trials[0], round(time.monotonic() - self.begun_s, 3)
        values: dict[str, Any] = {} if metric is None else {"metric": metric}
        verdict = evaluate_metric(values, {}, None)
        with self.opened.failing():
            if self.folder != trial.path:
                storage.copy(Path(self.folder), trial.path)
                shutil.rmtree(self.folder, ignore_errors=True)
            event = TrialChanged(
                number=0,
                state=verdict.state,
                value=verdict.value,
                outputs=values,
                metrics=values,
                error=verdict.reason,
                usage={"running_s": duration_s},
            )
            self.opened.record(event)
        state = RunState.FAILED if verdict.reason else RunState.COMPLETE
        self.opened.close(RunEnded(state=state, reason=verdict.reason, duration_s=duration_s))
        with tolerated("write the report"):
            self.opened.run.report()


@dataclass
class _State:
    """The experiment that has begun and not ended, if any."""

    experiment: OpenExperiment | None = None


# Process-wide state, as `begin` and `end` have no object in common.
state = _State()


def _description(name: str, description: str | None) -> RunDescription:
    kind = {"is_distributed": False, "is_gang": False, "is_resumable": False}
    request: dict[str, Any] = {"search": None, "options": {}, **kind}
    return RunDescription(
        id=new_run_id(name),
        name=name,
        kind="begin",
        description=description,
        metric=None,
        direction="max",
        params=[{}],
        seed=secrets.randbits(31),
        secrets=(),
        facts={
            "request": request,
            "env": [],
            "versions": provenance.versions(),
            "git_commit": provenance.git_commit(Path.cwd()),
            **provenance.who(),
        },
    )
