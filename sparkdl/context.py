"""Runs in the training process. The identity of this process, its reports and checkpoints.

Use the module directly: `context.rank`, `context.trial`, `context.report(0.9)`. Outside a run, in
a plain Python session, the process is rank 0 of 1, so that a training function can be called
directly to debug it.
"""

import contextlib
import dataclasses
import functools
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkdl import checkpoints, resources
from sparkdl.identity import LOCAL, Context, Wiring
from sparkdl.polling import Outages, retry
from sparkdl.reporter import Reporter, Rungs, as_metrics, as_step

__all__ = [
    "VARIABLE",
    "Context",
    "acting_as",
    "activate",
    "current",
    "elect",
    "get_checkpoint",
    "report",
    "resource",
    "should_stop",
    "this_reporter",
]

VARIABLE = "SPARKDL_CONTEXT"
# An environment variable can have 128 KiB; a process with a larger one cannot be started.
MAX_PARAMS_BYTES = 1 << 16


# Process-wide state: the context that was parsed last. The variable is the state, and this is only
# a cache.
@functools.lru_cache(maxsize=1)
def _parse(text: str, chief: int | None) -> Context:
    parsed = Context(**json.loads(text))
    return parsed if chief is None else dataclasses.replace(parsed, chief=chief)


# Process-wide state: the chief of an elastic gang may change while the program runs. It is not kept
# in the environment, as other threads may read variables in native code at that moment, and
# setenv(3) is not safe then.
@dataclass
class _Election:
    chief: int | None = None


_election = _Election()


def current() -> Context:
    """Return the context of this process, which processes that it starts inherit.

    Example:
        >>> current().rank, current().world_size
        (0, 1)
    """
    return _parse(os.environ.get(VARIABLE, "{}"), _election.chief)


def elect(chief: int) -> None:
    """Change the chief of this process's gang. Processes that this one starts do not learn of it.

    Args:
        chief: the rank in the gang.
    """
    _election.chief = chief


def activate(context: Context) -> None:
    """Set the context of this process, before the training function is called.

    Args:
        context: the new context.
    """
    fields = dataclasses.asdict(context)
    if len(json.dumps(fields["params"])) > MAX_PARAMS_BYTES:
        fields["params"] = {}
    os.environ[VARIABLE] = json.dumps(fields)
    _election.chief = None


def report(
    value: float | Mapping[str, float | None],
    step: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> None:
    """Report metrics to the driver, which shows them live and stores them in `metrics.jsonl`.

    A report takes some ten microseconds: it appends one line to a local file. A report with a
    checkpoint returns when the whole directory is copied to the run directory; if the process is
    killed before, the previous checkpoint stays the last committed one.

    Args:
        value: a number, or a mapping from names to numbers. A plain number is named `value`, and
            is used as the metric of the run. A metric without a number at this step may be None.
        step: whole number of the step or epoch, from 0; by default the next step, counted from the
            checkpoint that `get_checkpoint` returned.
        checkpoint: a directory to commit. It is copied, and remains yours. The chief commits; a
            directory that another rank passes is ignored. Outside a run, it is committed to
            `runs/local/checkpoints`.

    Raises:
        TypeError: if a value is not a number.
        ValueError: if `step` is not a whole number, or if `checkpoint` has no file or cannot be
            copied; the message gives the reason.
        NotADirectoryError: if `checkpoint` is not a directory.
        OSError: if the run directory did not take the checkpoint for five minutes.
        SupersededError: if Spark has started this trial elsewhere, and the checkpoint belongs to
            that attempt now. Do not catch it: this process is about to be ended.
        TrialPruned: if the search stops or pauses this trial. Do not catch it: it is no failure.

    Example:
        >>> from pathlib import Path
        >>> from sparkdl import context
        >>> context.report({"loss": 0.25, "accuracy": 0.9}, step=3)
        step 3: loss=0.25, accuracy=0.9
        >>> Path("model").mkdir()
        >>> _ = Path("model", "weights.txt").write_text("0.5")
        >>> context.report({"loss": 0.2}, checkpoint="model")
        loss=0.2
        >>> Path(context.get_checkpoint(), "weights.txt").read_text()
        '0.5'
    """
    reporter, metrics = this_reporter(), as_metrics(value)
    reporter.write(metrics, None if step is None else as_step(step))
    if checkpoint is not None and current().is_chief:
        _commit(reporter, checkpoint)
    reporter.raise_if_paused(metrics, checkpoint is not None)
    reporter.raise_if_stopped()


def get_checkpoint() -> str | None:
    """Return the local directory of the last committed checkpoint to continue from, or None.

    With one process, it is the newest checkpoint of this trial, including those committed by this
    process; if the trial has none, the checkpoint of the trial it was started from. With several
    processes, it is the checkpoint that was the newest when this attempt started, so that all ranks
    get the same one at any time. Outside a run, it is the last checkpoint that this process
    committed.

    A checkpoint on a remote store is downloaded first. Do not write into the directory, and do not
    use it after later commits, which may remove it, see `keep_checkpoints`.

    Example:
        >>> from sparkdl import context
        >>> if directory := context.get_checkpoint():
        ...     print("continue from", directory)
    """
    me, reporter = current(), this_reporter()
    path = me.checkpoint
    if me.folder is None:
        path = reporter.committed
    elif me.world_size == 1:
        newest = retry(lambda: checkpoints.newest(me._trial_url), "look for a checkpoint")
        path = checkpoints.fetch(me._trial_url, newest.number, me.folder) if newest else path
    if path is not None:
        reporter.continue_after(checkpoints.step_of(path))
    return path


def _commit(reporter: Reporter, directory: str | os.PathLike[str]) -> None:
    me = current()
    rule = (me.keep_checkpoints, me.metric, me.direction)
    with reporter.lock:
        marker = (reporter.step, reporter.metrics, me.attempt)
        committed = retry(
            lambda: checkpoints.commit(directory, me._trial_url, *marker), "commit a checkpoint"
        )
        reporter.committed = str(Path(committed.url).absolute())
        with Outages("remove old checkpoints").tolerated():  # The next commit removes them.
            checkpoints.prune(me._trial_url, *rule, spare=me.checkpoint)


def resource(name: str) -> str:
    """Return the local path of a file or folder of `versioned_resources`, for this process.

    The path is a copy below `resources` in the folder of the trial, which the first call makes. Do
    not write into it: every call restores the content that the run keeps. Outside a run, `name` is
    a path below the working directory.

    Args:
        name: the last part of a path in `versioned_resources`, or more parts where several paths
            have the same last part; or a file in a folder, such as `data/labels.txt`.

    Raises:
        FileNotFoundError: if there is no such resource; the message lists the names.
        ValueError: if somebody has changed the copy that the run keeps.

    Example:
        >>> from pathlib import Path
        >>> from sparkdl import context
        >>> _ = Path("config.yaml").write_text("units: 8")
        >>> Path(context.resource("config.yaml")).read_text()
        'units: 8'
    """
    me = current()
    if me.run_path is None:
        if not Path(name).exists():
            raise FileNotFoundError(
                f"{name!r} does not exist in {os.getcwd()}. Outside a run, context.resource "
                "expects a path below the working directory."
            )
        return os.path.abspath(name)
    return resources.fetch(me.run_path, name, Path(me.folder or LOCAL, resources.FOLDER))


def should_stop() -> bool:
    """Return True if this process is about to be ended, so that it should commit a checkpoint.

    It is True while Spark decommissions the executor, where `spark.decommission.enabled` is true,
    and after the search has stopped the trial. After the commit the function may go on: when the
    executor ends, the trial runs again on another executor, and `get_checkpoint` returns there what
    was committed last. A call takes some ten microseconds. It is always False in the ranks of a
    gang, which Spark ends and starts again together, and outside a run.

    Example:
        >>> from sparkdl import context
        >>> for step in range(1000):
        ...     if context.should_stop():
        ...         context.report({"loss": 0.2}, step=step, checkpoint="model")
    """
    reporter = this_reporter()
    return reporter.is_leaving() or reporter.is_stopped()


@contextlib.contextmanager
def acting_as(context: Context) -> Iterator[None]:
    """Let this process act as another for a while, with reports of its own.

    Args:
        context: the context meanwhile.
    """
    previous = os.environ.get(VARIABLE)
    _reporter.cache_clear()
    activate(context)
    try:
        yield
    finally:
        _reporter.cache_clear()
        os.environ.pop(VARIABLE, None)
        if previous is not None:
            os.environ[VARIABLE] = previous


def this_reporter() -> Reporter:
    """Return the reporter of this process, by which it communicates with the driver."""
    me = current()
    # Each file has one writer; the driver reads the file of the chief.
    name = "metrics.jsonl" if me.is_chief else f"metrics-{me.role}-{me.index}.jsonl"
    folder = Path(me.folder) if me.folder else None
    asks = (tuple(me.rungs), tuple(me.reported), me.metric)
    return _reporter(folder, name, me.world_size == 1, me.attempt, me.prints, asks, os.getpid())


# Process-wide state: one reporter per process. The process id is an argument so that a forked
# process does not use the reporter of its parent. A rank of a gang does not stop on its own,
# because the other ranks would wait for it: the gang is ended as a whole.
@functools.lru_cache(maxsize=1)
def _reporter(
    folder: Path | None,
    name: str,
    can_be_stopped: bool,
    attempt: int,
    prints: bool,
    asks: tuple[tuple[int, ...], tuple[int, ...], str | None],
    pid: int,
) -> Reporter:
    rungs = Rungs(*asks) if asks[0] else None
    return Reporter(folder, name, can_be_stopped, attempt, prints, rungs)


# All fields can be read from the module; `dir` and the error message list only the public ones.
_PLUMBING = [f.name for f in dataclasses.fields(Wiring)]
_PUBLIC = [f.name for f in dataclasses.fields(Context) if f.name not in _PLUMBING]
_PROPERTIES = ["checkpoint_dir", "is_chief", "logdir", "original_cwd"]


def __getattr__(name: str) -> Any:
    if name in (*_PUBLIC, *_PROPERTIES, *_PLUMBING):
        return getattr(current(), name)
    functions = ("get_checkpoint", "report", "resource", "should_stop")
    public = ", ".join([*_PUBLIC, *_PROPERTIES, *functions])
    raise AttributeError(
        f"module 'sparkdl.context' has no attribute {name!r}. Expected one of {public}."
    )


def __dir__() -> list[str]:
    return sorted({*_PUBLIC, *_PROPERTIES, *vars(sys.modules[__name__])})
