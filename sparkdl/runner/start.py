"""Runs on the driver. Start an opened run: keep the program, check the executors, run."""

import functools
import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from sparkdl import checkpoints
from sparkdl.polling import retry
from sparkdl.runner import sigterm
from sparkdl.runner.callbacks import CallbackObserver
from sparkdl.runner.display.batch_log import summarize_at_exit
from sparkdl.runner.display.progress import Progress
from sparkdl.runner.display.reports import Reports
from sparkdl.runner.display.tensorboard import announce_tensorboard, open_tensorboard
from sparkdl.runner.display.trial_output import logs_of
from sparkdl.runner.display.waiting import waiting_for_executors
from sparkdl.runner.handle import RunHandle
from sparkdl.runner.kept_program import keep_program
from sparkdl.runner.new_run import NewRun
from sparkdl.runner.preflight import preflight
from sparkdl.runner.prepare import PreparedRun
from sparkdl.runner.request import Request
from sparkdl.runner.smoke import SmokeTest
from sparkdl.runner.trial_loop import TrialLoop
from sparkdl.runs import Run
from sparkdl.runs.opening import OpenRun
from sparkdl.runs.retry import not_tried_again
from sparkdl.search.interval_sources import IntervalSource
from sparkdl.search.trial_source import TrialSource

__all__ = ["make_source", "start"]

T = TypeVar("T")

# Seconds for which a store that fails is tried again before the first trial.
START_S = 30.0


def start(prepared: PreparedRun, opened: OpenRun, new: NewRun | None = None) -> Run:
    """Run the trials of an opened run, here or in the background as the options say.

    Args:
        prepared: the checked request.
        opened: the run directory.
        new: what the directory of a new run keeps; None for a run that is resumed.

    Raises:
        Exception: the error that has ended the run, with the run as its attribute `run`.
        SystemExit: if SIGTERM has ended the run, see `sigterm`.
    """
    try:
        return _start(prepared, opened, new)
    except (KeyboardInterrupt, SystemExit) as exc:
        exc.run = opened.run  # type: ignore[union-attr]
        # The line of the loop that was interrupted tells the user nothing.
        raise exc.with_traceback(None) from None
    except BaseException as exc:
        exc.run = opened.run  # type: ignore[attr-defined]
        raise


def _start(prepared: PreparedRun, opened: OpenRun, new: NewRun | None) -> Run:
    options = prepared.request.options
    if options.progress:
        summarize_at_exit(opened.run)
    running = sigterm.running(prepared.cluster, opened.run.id)
    with ExitStack() as stack:
        stack.callback(running.close)
        callbacks = CallbackObserver(opened.run, options.callbacks, prepared.secrets)
        with callbacks.ending_if_raised():
            loop = _prepare_loop(prepared, opened, new, callbacks, running)
        handle = RunHandle(loop)
        opened.run.attach(handle)
        if options.wait:
            loop.execute()
        else:
            handle.start(stack.pop_all().close)
    return opened.run


def _prepare_loop(
    prepared: PreparedRun,
    opened: OpenRun,
    new: NewRun | None,
    callbacks: CallbackObserver,
    running: sigterm.RunningRun,
) -> TrialLoop:
    """Return the loop of a run whose program was kept and whose executors were checked."""
    options = prepared.request.options
    with opened.failing():
        if new:
            _with_retries(new.keep_code, prepared, opened.paths)
        _with_retries(_keep_initial_checkpoint, prepared, opened)
        logs = logs_of(options, _num_trials(prepared, opened.run), prepared.plan.is_gang)
        progress = Progress(opened.run, prepared.plan, options.progress, logs)
        notes = _with_retries(keep_program, prepared, opened.paths)
        loop = _make_loop(prepared, opened, progress, callbacks, notes)
    running.loop = loop
    with loop.failing():
        if options.tensorboard:
            open_tensorboard(opened.run)
        if new:
            _with_retries(new.keep, prepared, opened.paths)
        executors: list[dict[str, Any]] = []
        # The tasks of a gang check their executors when they meet.
        if loop.has_more and (not prepared.plan.is_gang or (new and new.ancestor)):
            with waiting_for_executors(prepared.cluster, progress.say):
                checked = (prepared.cluster, prepared.plan, prepared.program)
                executors = preflight(opened, *checked, loop.look)
        if new:
            _with_retries(new.compare, opened.paths, executors, progress.say)
        if options.tensorboard:
            announce_tensorboard(opened.run, progress.say, options.progress)
    return loop


def _with_retries(write: Callable[..., T], *arguments: Any) -> T:
    """Call a function that writes files of a run, again if the store fails for a moment."""
    return retry(functools.partial(write, *arguments), "write the files of a new run", START_S)


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


def _make_loop(
    prepared: PreparedRun,
    opened: OpenRun,
    progress: Progress,
    callbacks: CallbackObserver,
    notes: Sequence[str],
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
    for note in notes:
        progress.say(note)
    if prepared.request.search:
        progress.say(_goal(prepared, run))
    if prepared.request.options.smoke:
        prepared.concurrency.others_wait = SmokeTest(run)
    source = make_source(prepared.request, opened, progress.say)
    if note := not_tried_again(run.trials):
        progress.say(f"Note: {note}")
    loop = TrialLoop(prepared, opened, source, progress, [Reports(run, progress.say), callbacks])
    if not loop.has_more:
        progress.say(f"Nothing is left to run: {run.counts_text()}")
    return loop


def _goal(prepared: PreparedRun, run: Run) -> str:
    """Return a line about what a search optimizes."""
    options = prepared.request.options
    is_assumed = options.metric is None and options.direction == "max"
    hint = "; pass direction='min' if smaller values are better" if is_assumed else ""
    return f"The best trial is the one with the {run.goal}{hint}"


def make_source(request: Request, opened: OpenRun, say: Callable[[str], None]) -> TrialSource:
    """Return the source of the trials of a run.

    Args:
        request: the arguments of the verb.
        opened: the run.
        say: shows a line to the user.
    """
    if request.search is None:
        return TrialSource()
    if request.search.is_scheduled:
        return IntervalSource(opened, request.search)
    from sparkdl.search.promoting_source import PromotingSource
    from sparkdl.search.study_source import StudySource

    source = PromotingSource if request.search.promotes else StudySource
    return source.create(opened, request.search, request.learn_from, say)
