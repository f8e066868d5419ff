"""Runs on the driver. Start an opened run: keep the program, check the executors, run."""

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sparkdl import checkpoints, storage
from sparkdl.runner.display.progress import Progress
from sparkdl.runner.display.reports import Reports
from sparkdl.runner.display.trial_output import logs_of
from sparkdl.runner.display.waiting import waiting_for_executors
from sparkdl.runner.handle import RunHandle
from sparkdl.runner.preflight import preflight
from sparkdl.runner.prepare import PreparedRun
from sparkdl.runner.trial_loop import TrialLoop
from sparkdl.runs import Run, provenance
from sparkdl.runs.opening import OpenRun
from sparkdl.runs.retry import not_tried_again
from sparkdl.search.trial_source import TrialSource

__all__ = ["start"]

# A larger program is not kept: it is searched for credentials at some megabytes per second.
MAX_KEPT_BYTES = 16 << 20


def start(prepared: PreparedRun, opened: OpenRun, resources: Sequence[Path] | None = None) -> Run:
    """Run the trials of an opened run, here or in the background as the options say.

    Args:
        prepared: the checked request.
        opened: the run directory.
        resources: files and folders to copy into the directory of a new run; None for a run that
            is resumed.

    Raises:
        Exception: the error that has ended the run, with the run as its attribute `run`.
    """
    try:
        return _start(prepared, opened, resources)
    except KeyboardInterrupt as exc:
        exc.run = opened.run  # type: ignore[attr-defined]
        # The line of the loop that was interrupted tells the user nothing.
        raise exc.with_traceback(None) from None
    except BaseException as exc:
        exc.run = opened.run  # type: ignore[attr-defined]
        raise


def _start(prepared: PreparedRun, opened: OpenRun, resources: Sequence[Path] | None) -> Run:
    options = prepared.request.options
    with opened.failing():
        _keep_initial_checkpoint(prepared, opened)
        train = prepared.request.train
        problem = _keep_program(prepared, opened, train) if train else None
        logs = logs_of(options, _num_trials(prepared, opened.run), prepared.plan.is_gang)
        progress = Progress(opened.run, prepared.plan, options.progress, logs)
        loop = _make_loop(prepared, opened, progress, problem)
    with loop.failing():
        if resources is not None:
            storage.write(opened.paths.environment, provenance.environment())
            for path in resources:
                storage.copy(path, storage.join(opened.paths.resources, path.name))
        # The tasks of a gang check their executors when they meet.
        if not prepared.plan.is_gang and loop.has_more:
            with waiting_for_executors(prepared.cluster, progress.say):
                preflight(opened, prepared.cluster, prepared.plan, prepared.program)
    handle = RunHandle(loop)
    opened.run.attach(handle)
    if options.wait:
        loop.execute()
    else:
        handle.start()
    return opened.run


def _num_trials(prepared: PreparedRun, run: Run) -> float:
    """Return the number of trials that the run will have, infinity for an open-ended search."""
    search = prepared.request.search
    if search is None:
        return len(run.trials)
    return (search.max_configurations or math.inf) * search.repeats


def _keep_initial_checkpoint(prepared: PreparedRun, opened: OpenRun) -> None:
    """Copy the checkpoint that trials begin with: the trial that made it may remove it any time."""
    copy = opened.paths.initial
    if prepared.init_from and not checkpoints.committed(copy):
        with tempfile.TemporaryDirectory(prefix="sparkdl-") as folder:
            local = checkpoints.fetch(*prepared.init_from, folder)
            checkpoints.commit(local, copy, checkpoints.step_of(local), {})


def _keep_program(prepared: PreparedRun, opened: OpenRun, train: Callable[..., Any]) -> str | None:
    """Write the source code for readers and the packed program for a later resume.

    Returns:
        The reason for which the program was not written; None if it was.
    """
    program, values = prepared.program, prepared.secrets
    texts = {name: source.text for name, source in program.modules.items()}
    provenance.write_source(opened.paths, train, texts, values)
    if program.num_bytes > MAX_KEPT_BYTES:
        storage.remove(opened.paths.program)
        return f"has {program.num_bytes >> 20} MiB, more than {MAX_KEPT_BYTES >> 20} MiB"
    if provenance.write_program(opened.paths, program.to_dict(), values):
        return None
    return "contains what looks like a credential"


def _make_loop(
    prepared: PreparedRun, opened: OpenRun, progress: Progress, problem: str | None
) -> TrialLoop:
    run = opened.run
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
    if problem:
        progress.say(
            f"Note: the function, together with the modules that travel with it, {problem}, so it "
            "is not kept: experiment.resume will need train=."
        )
    source = _make_source(prepared, opened, progress)
    if note := not_tried_again(run.trials):
        progress.say(f"Note: {note}")
    loop = TrialLoop(prepared, opened, source, progress, [Reports(run, progress.say)])
    if not loop.has_more:
        progress.say(f"Nothing is left to run: {run.counts_text()}")
    return loop


def _make_source(prepared: PreparedRun, opened: OpenRun, progress: Progress) -> TrialSource:
    request = prepared.request
    if request.search is None:
        return TrialSource()
    from sparkdl.search.study_source import StudySource

    return StudySource.create(opened, request.search, request.learn_from, progress.say)
