"""Runs on the driver. Start an opened run: keep the program, check the executors, run."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from sparkdl import checkpoints, storage
from sparkdl.runner.display.progress import Progress
from sparkdl.runner.display.reports import Reports
from sparkdl.runner.handle import RunHandle
from sparkdl.runner.kept_program import keep_program
from sparkdl.runner.preflight import preflight
from sparkdl.runner.prepare import PreparedRun
from sparkdl.runner.trial_loop import TrialLoop
from sparkdl.runs import Run, provenance
from sparkdl.runs.opening import OpenRun
from sparkdl.search.trial_source import TrialSource

__all__ = ["start"]


def start(prepared: PreparedRun, opened: OpenRun, resources: Sequence[Path] | None = None) -> Run:
    """Run the trials of an opened run, here or in the background as the options say.

    Args:
        prepared: the checked request.
        opened: the run directory.
        resources: files and folders to copy into the directory of a new run; None for a run that
            is resumed.
    """
    with opened.failing():
        _keep_initial_checkpoint(prepared, opened)
        loop = _make_loop(prepared, opened, keep_program(prepared, opened.paths))
    with loop.failing():
        if resources is not None:
            storage.write(opened.paths.environment, provenance.environment())
            for path in resources:
                storage.copy(path, storage.join(opened.paths.resources, path.name))
        if not prepared.plan.is_gang:  # The tasks of a gang check their executors when they meet.
            preflight(opened, prepared.cluster, prepared.plan, prepared.program)
    handle = RunHandle(loop)
    opened.run.attach(handle)
    if prepared.request.options.wait:
        loop.execute()
    else:
        handle.start()
    return opened.run


def _keep_initial_checkpoint(prepared: PreparedRun, opened: OpenRun) -> None:
    """Copy the checkpoint that trials begin with: the trial that made it may remove it any time."""
    copy = opened.paths.initial
    if prepared.init_from and not checkpoints.committed(copy):
        with tempfile.TemporaryDirectory(prefix="sparkdl-") as folder:
            local = checkpoints.fetch(*prepared.init_from, folder)
            checkpoints.commit(local, copy, checkpoints.step_of(local), {})


def _make_loop(prepared: PreparedRun, opened: OpenRun, notes: Sequence[str]) -> TrialLoop:
    run = opened.run
    progress = Progress(run, prepared.plan, prepared.request.options.progress)
    progress.say(f"Run {run.id}: {prepared.plan}")
    progress.say(f"Everything is kept in {opened.paths.folder}")
    if prepared.program.warning:
        progress.say(f"Note: {prepared.program.warning}")
    if variables := prepared.program.backend_variables(prepared.plan.env):
        progress.say(
            f"Note: the program names {' and '.join(variables)}, which Keras reads when it is "
            "imported. Each trial therefore imports Keras itself, which takes seconds. Set the "
            "variable by env= in its place to import Keras once."
        )
    for note in notes:
        progress.say(note)
    if prepared.request.search:
        progress.say(_goal(prepared, run))
    source = _make_source(prepared, opened, progress)
    return TrialLoop(prepared, opened, source, progress, [Reports(run, progress.say)])


def _goal(prepared: PreparedRun, run: Run) -> str:
    """Return a line about what a search optimizes."""
    options = prepared.request.options
    is_assumed = options.metric is None and options.direction == "max"
    hint = "; pass direction='min' if smaller values are better" if is_assumed else ""
    return f"The best trial is the one with the {run.goal}{hint}"


def _make_source(prepared: PreparedRun, opened: OpenRun, progress: Progress) -> TrialSource:
    request = prepared.request
    if request.search is None:
        return TrialSource()
    from sparkdl.search.study_source import StudySource

    return StudySource.create(opened, request.search, request.learn_from, progress.say)
