"""Runs on the driver. Common parts of `resume` and of a verb with `if_exists="resume"`."""

import difflib
from collections.abc import Callable
from typing import Any

from sparkdl.cluster.program.packaging import Program
from sparkdl.errors import ConfigError, SparkDLError
from sparkdl.files import storage
from sparkdl.files.layout import RunPaths
from sparkdl.options import Options
from sparkdl.runner.control.loaded_run import LoadedRunHandle
from sparkdl.runner.display.batch_log import summarize_at_exit
from sparkdl.runner.display.tensorboard import announce_tensorboard, open_tensorboard
from sparkdl.runs import Run, RunState, TrialState, provenance
from sparkdl.runs.remedies import argument, is_in_shell
from sparkdl.runs.retry_choice import Retry, not_tried_again, waits_again
from sparkdl.secrets.masks import mask_text


def ended_before(run: Run, retry: Retry, is_shown: bool, tensorboard: bool = False) -> Run:
    """Return a run of which nothing is left to run, and tell the user so.

    Args:
        run: the run.
        retry: the trials that the user wants to run again.
        is_shown: show a line.
        tensorboard: start TensorBoard for the run.

    Raises:
        RunStoppedError, AllTrialsFailedError, TrainingFailedError: if the run is not COMPLETE.
    """
    run.attach(LoadedRunHandle(run))
    if tensorboard:
        open_tensorboard(run)
        announce_tensorboard(run, print if is_shown else lambda line: None, is_shown)
    note = " ".join(["Nothing was run.", not_tried_again(run.trials, retry)]).strip()
    if is_shown:
        summarize_at_exit(run)
        print(f"Run {run.id} ended before, {run.state}: {run.counts_text()}. {note}", flush=True)
    try:
        run.raise_unless_complete()
    except SparkDLError as exc:
        if not (is_shown and is_in_shell()):  # The command shows both lines.
            exc.args = (f"{note} {exc}",)
        raise
    return run


def check_max_failed(run: Run, options: Options, retry: Retry) -> None:
    """Validate that failures of earlier starts do not end the run again at once.

    Args:
        run: the run as its journal tells it; it is RUNNING if its driver has died.
        options: the options of this start.
        retry: the trials that run again.

    Raises:
        ConfigError: if more trials have failed than `max_failed_trials` allows.
    """
    if options.max_failed_trials is None or run.state == RunState.COMPLETE:
        return
    failed = [t for t in run.trials if t.state == TrialState.FAILED and not waits_again(t, retry)]
    goes_on = run.is_search or any(waits_again(trial, retry) for trial in run.trials)
    larger = "" if is_in_shell() else ", or a larger max_failed_trials"
    if goes_on and len(failed) > options.max_failed_trials:
        raise ConfigError(
            f"{len(failed)} trials of run {run.id} have failed, more than max_failed_trials="
            f"{options.max_failed_trials} allows, so that the run would end again at once. Pass "
            f"{argument('retry', 'failed')} to run them again{larger}."
        )


def changed_sources(
    path: str, train: Callable[..., Any] | None, program: Program, secrets: tuple[str, ...]
) -> dict[str, Any]:
    """Return the part of the start event that describes how the user's code has changed.

    Args:
        path: the directory of the run, which need not exist.
        train: the training function; None for the function in the directory.
        program: the packed function, with the modules that travel with it.
        secrets: values that must not be stored.
    """
    if train is None or not storage.exists(RunPaths(path).run):
        return {}
    function = provenance.source_of(train)
    new = {} if function is None else {"function.py": function}
    for name, source in program.modules.items():
        new[f"modules/{name.replace('.', '/')}.py"] = source.text
    # Without a source nothing tells whether the function is another one.
    lines = ["(no source)"] if function is None else []
    for name, text in new.items():
        url = storage.join(RunPaths(path).source, name)
        old = storage.read(url).decode() if storage.exists(url) else ""
        lines += _difference(name, old, mask_text(text, secrets, is_code=True))
    return {"train": lines} if lines else {}


def _difference(name: str, old: str, new: str) -> list[str]:
    diff = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0)
    lines = [line for line in diff if not line.startswith(("---", "+++"))]
    return lines if name == "function.py" or not lines else [name, *lines]
