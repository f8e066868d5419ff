"""Runs on the driver. The last steps of every request: open its run directory, run its trials."""

import functools
import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

from sparkdl import checkpoints
from sparkdl.files.polling import retry
from sparkdl.runner import sigterm
from sparkdl.runner.control.run_handle import RunHandle
from sparkdl.runner.display.batch_log import summarize_at_exit
from sparkdl.runner.display.progress import Progress
from sparkdl.runner.display.result_files import ResultFiles
from sparkdl.runner.display.tensorboard import announce_tensorboard, open_tensorboard
from sparkdl.runner.display.trial_output import logs_of
from sparkdl.runner.display.waiting import waiting_for_executors
from sparkdl.runner.loop.assembly import make_loop
from sparkdl.runner.loop.callbacks import CallbackObserver
from sparkdl.runner.loop.observers import RunObserver
from sparkdl.runner.loop.smoke import SmokeTest
from sparkdl.runner.loop.trial_loop import TrialLoop
from sparkdl.runner.pipeline.continued_run import ended_before
from sparkdl.runner.pipeline.kept_program import keep_program
from sparkdl.runner.pipeline.new_run import NewRun
from sparkdl.runner.pipeline.preflight import preflight
from sparkdl.runner.pipeline.preview import is_previewing, preview
from sparkdl.runner.prepared_run import PreparedRun
from sparkdl.runner.request import Request
from sparkdl.runner.sigint import Interrupts
from sparkdl.runs import Run
from sparkdl.runs.opening import OpenRun
from sparkdl.runs.retry_choice import Retry, not_tried_again
from sparkdl.search.interval_sources import IntervalSource
from sparkdl.search.trial_source import TrialSource

T = TypeVar("T")

# Seconds for which a store that fails is tried again before the first trial.
START_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Opener:
    """The way to the run directory: a new one, or that of the run that goes on.

    Attributes:
        open: opens the directory.
        look: returns the run that `open` would take over, and None if it would create one. It
            raises what `open` would raise, and writes nothing.
        root: the folder of the runs.
        name: the name of the run.
        retry: ended trials that run again.
        new: the files that a new run keeps; None for a run that goes on.
    """

    open: Callable[[], OpenRun]
    look: Callable[[], Run | None]
    root: str
    name: str
    retry: Retry = frozenset()
    new: NewRun | None = None


def begin(prepared: PreparedRun, opener: Opener) -> Run:
    """Run a prepared request: its remaining trials, here or in the background.

    Args:
        prepared: the checked request.
        opener: the way to the run directory.

    Raises:
        DriftError: if the data of a new run is not as expected.
        RunExistsError, RunDamagedError, OSError: if the directory cannot be opened.
        RunStoppedError, AllTrialsFailedError, TrainingFailedError: if the run was waited for and is
            not COMPLETE.
    """
    if is_previewing():
        return preview(prepared, opener.root, opener.name, opener.look(), opener.retry)
    expect = prepared.request.options.expect
    if expect is not None and opener.look() is None:
        expect.check(prepared.request.data)
    opened = opener.open()
    if opened.finished_before:
        opened.owner.release()
        options = prepared.request.options
        return ended_before(opened.run, opener.retry, options.progress, options.tensorboard)
    return _start(prepared, opened, opener.new)


def _start(prepared: PreparedRun, opened: OpenRun, new: NewRun | None) -> Run:
    """Run the trials of an opened run, here or in the background as the options say.

    Raises:
        Exception: the error that has ended the run, with the run as its attribute `run`.
        SystemExit: if SIGTERM has ended the run, see `sigterm`.
    """
    try:
        return _run_loop(prepared, opened, new)
    except (KeyboardInterrupt, SystemExit) as exc:
        exc.run = opened.run  # type: ignore[union-attr]
        # The line of the loop that was interrupted tells the user nothing.
        raise exc.with_traceback(None) from None
    except BaseException as exc:
        exc.run = opened.run  # type: ignore[attr-defined]
        raise


def _run_loop(prepared: PreparedRun, opened: OpenRun, new: NewRun | None) -> Run:
    options = prepared.request.options
    if options.progress:
        summarize_at_exit(opened.run)
    running = sigterm.running(prepared.cluster, opened.run.id)
    with ExitStack() as stack, Interrupts() as interrupts:
        stack.callback(running.close)
        callbacks = CallbackObserver(opened.run, options.callbacks, prepared.secrets)
        with callbacks.ending_if_raised():
            loop = _prepare_loop(prepared, opened, new, callbacks, running)
        handle = RunHandle(loop)
        opened.run.attach(handle)
        if options.wait:
            loop.execute(interrupts)
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
    running.stop_run = loop.stop
    with loop.failing():
        if options.tensorboard:
            open_tensorboard(opened.run)
        if new:
            _with_retries(new.keep, prepared, opened.paths)
        executors: list[dict[str, Any]] = []
        # The tasks of a gang check their executors when they meet.
        if loop.has_more and (not prepared.plan.is_gang or (new and new.ancestor)):
            with waiting_for_executors(prepared.cluster, progress.say):
                executors = preflight(
                    opened, prepared.cluster, prepared.plan, prepared.program, loop.look
                )
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
    if variables := prepared.program.hub_variables(prepared.plan.env):
        progress.say(
            f"Note: the program names {' and '.join(variables)}, which packages of Hugging Face "
            "read when they are imported. Each trial therefore imports them itself, which takes "
            "seconds. Set the variable by env= in its place to import them once."
        )
    for note in notes:
        progress.say(note)
    if prepared.request.search:
        progress.say(_goal(prepared, run))
    others_wait = SmokeTest(run) if prepared.request.options.smoke else lambda: False
    source = make_source(prepared.request, opened, progress.say)
    if note := not_tried_again(run.trials):
        progress.say(f"Note: {note}")
    observers: list[RunObserver] = [ResultFiles(run, progress.say), callbacks]
    loop = make_loop(prepared, opened, source, progress, observers, others_wait)
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
