"""Runs in the training process. The identity of this process, its reports and checkpoints.

Use the module directly: `context.rank`, `context.trial`, `context.report(0.9)`. Outside a run, in
a plain Python session, the process is rank 0 of 1, so that a training function can be called
directly to debug it.

`context.preloaded` is the result of the function of `preload=`. The processes of an executor share
its memory until one of them writes to it. It is None where no such function was called: without
`preload=`, outside a run, and in a new Python that a trial has started.
"""

import contextlib
import dataclasses
import functools
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkdl import checkpoints
from sparkdl.checkpoints.committer import Committer
from sparkdl.errors import TrialPruned
from sparkdl.files import resources, storage
from sparkdl.files.layout import TrialPaths, metrics_of
from sparkdl.files.polling import retry
from sparkdl.files.rank_files import RankFiles
from sparkdl.training import preloaded as _preloaded
from sparkdl.training.identity import LOCAL, Context, Wiring
from sparkdl.training.joint_stop import JointStop
from sparkdl.training.reporter import Reporter, Rungs, as_metrics, as_step

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
    "this_committer",
    "this_reporter",
]

VARIABLE = "SPARKDL_CONTEXT"
# An environment variable can have 128 KiB; a process with a larger one cannot be started.
MAX_PARAMS_BYTES = 1 << 16


# Process-wide state: the context that was parsed last. The variable is the state, and this is only
# a cache.
@functools.lru_cache(maxsize=1)
def _parse(text: str, chief: int | None, present: tuple[int, ...]) -> Context:
    parsed = Context(**json.loads(text))
    return parsed if chief is None else dataclasses.replace(parsed, chief=chief, present=present)


# Process-wide state: the ranks of an elastic gang may change while the program runs. It is not kept
# in the environment, as other threads may read variables in native code at that moment, and
# setenv(3) is not safe then.
@dataclass
class _Election:
    chief: int | None = None
    present: tuple[int, ...] = ()


_election = _Election()


# Process-wide state: the process that was given its context; those that it starts inherit it.
@dataclass
class _Activation:
    pid: int = 0


_activation = _Activation()


def current() -> Context:
    """Return the context of this process, which processes that it starts inherit.

    Example:
        >>> current().rank, current().world_size
        (0, 1)
    """
    return _parse(os.environ.get(VARIABLE, "{}"), _election.chief, _election.present)


def elect(chief: int, present: Sequence[int] = ()) -> None:
    """Change the chief of this process's gang. Processes that this one starts do not learn of it.

    Args:
        chief: the rank in the gang.
        present: the ranks that train now.
    """
    _election.chief, _election.present = chief, tuple(present)


def activate(context: Context) -> None:
    """Set the context of this process, before the training function is called.

    Args:
        context: the new context.
    """
    fields = dataclasses.asdict(context)
    if len(json.dumps(fields["params"])) > MAX_PARAMS_BYTES:
        fields["params"] = {}
    os.environ[VARIABLE] = json.dumps(fields)
    _election.chief, _election.present = None, ()
    _activation.pid = os.getpid()


def report(
    value: float | Mapping[str, float | None],
    step: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    *,
    sharded: bool = False,
    wait: bool = True,
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
            directory that another rank passes is ignored, unless `sharded`. Outside a run, it is
            committed to `runs/local/checkpoints`.
        sharded: the directories of all ranks of a gang become one checkpoint, for models of which
            each rank has a part. All ranks report it, one after the other or at once, and each
            gets all files from `get_checkpoint` later, with any number of ranks. Either all files
            are committed or none. Ranks of one host may share a directory.
        wait: False to commit while the training goes on. The directory of a rank that commits is
            moved away, which is quick on one disk, and is that rank's alone. The next report with
            a checkpoint, and the end of the function, wait for the commit and raise its error; the
            files are kept then.

    Raises:
        TypeError: if a value is not a number.
        ValueError: if `step` is not a whole number, or if `checkpoint` has no file or cannot be
            copied; the message gives the reason. With `sharded`, also if two ranks have different
            files of one name, or if the ranks may change: `elastic=True`.
        TimeoutError: with `sharded`, if a rank does not report for SPARKDL_COLLECTIVE_TIMEOUT_S.
        NotADirectoryError: if `checkpoint` is not a directory.
        OSError: if the run directory did not take the checkpoint for five minutes.
        SupersededError: if Spark has started this trial elsewhere, and the checkpoint belongs to
            that attempt now. Do not catch it: this process is about to be ended.
        TrialPruned: if the search stops or pauses this trial, in a gang after `should_stop` has
            returned True. Do not catch it: it is no failure.

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
    given_step = None if step is None else as_step(step)
    reporter.write(metrics, given_step)
    if checkpoint is not None:
        # At a rung a trial may pause, which goes on from its checkpoint later.
        wait = wait or bool(current().rungs)
        this_committer().commit(
            checkpoint,
            reporter.step,
            reporter.metrics,
            sharded=sharded,
            wait=wait,
            given_step=given_step,
        )
    reporter.raise_if_paused(metrics, checkpoint is not None)
    reporter.raise_if_stopped()
    if _latest.joint_stop is not None and _latest.joint_stop.has_stopped:
        raise TrialPruned(f"the search stopped this gang at step {reporter.step}")


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
    this_committer().finish()
    path = me.checkpoint
    if me.folder is None:
        path = this_committer().committed
    elif me.world_size == 1:
        newest = retry(lambda: checkpoints.newest(me._trial_url), "look for a checkpoint")
        path = checkpoints.fetch(me._trial_url, newest.number, me.folder) if newest else path
    if path is not None:
        reporter.continue_after(checkpoints.step_of(path))
    return path


def resource(name: str) -> str:
    """Return the path of a file or folder that was passed as one of `versioned_resources`.

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
    was committed last. A call takes some ten microseconds.

    In a gang, all ranks call it at the same steps, and it is True from the same step on in all of
    them, so that no rank waits for another in a collective: after the search has stopped the gang,
    which is ended ten seconds later. A gang gets no notice of executors. It is always False in
    elastic gangs, if not all ranks call it, and outside a run.

    Example:
        >>> from sparkdl import context
        >>> for step in range(1000):
        ...     if context.should_stop():
        ...         context.report({"loss": 0.2}, step=step, checkpoint="model")
    """
    reporter, me = this_reporter(), current()
    if me.world_size == 1:
        return reporter.is_leaving() or reporter.is_stopped()
    is_inherited = _activation.pid != os.getpid()
    if is_inherited or me.is_elastic or not me.is_peer:
        return False
    if _latest.joint_stop is None:
        files = RankFiles(TrialPaths(storage.absolute(me._trial_url)).ranks(me.attempt))
        _latest.joint_stop = JointStop(files, me.rank, me.world_size)
    return _latest.joint_stop.ask()


@contextlib.contextmanager
def acting_as(context: Context) -> Iterator[None]:
    """Let this process act as another for a while, with reports of its own.

    Args:
        context: the context meanwhile.
    """
    previous = os.environ.get(VARIABLE)
    _forget_reporter()
    activate(context)
    try:
        yield
        this_committer().finish()
    finally:
        with contextlib.suppress(Exception):  # The error of the block counts.
            this_committer().finish()
        _forget_reporter()
        os.environ.pop(VARIABLE, None)
        if previous is not None:
            os.environ[VARIABLE] = previous


def this_reporter() -> Reporter:
    """Return the reporter of this process, by which it communicates with the driver.

    A rank of a gang does not stop on its own, because the other ranks would wait for it: the gang
    is ended as a whole.
    """
    me, pid = current(), os.getpid()
    if _latest.reporter and _latest.context is me and _latest.pid == pid:
        return _latest.reporter  # A trial may report 40,000 times.
    name = metrics_of(me.role, me.index, me.is_chief)  # Each file has one writer.
    folder = Path(me.folder) if me.folder else None
    asks = (tuple(me.rungs), tuple(me.reported), (me.metric, *me.other_metrics))
    values = (folder, name, me.world_size == 1, me.attempt, me.prints)
    if _latest.reporter is None or _latest.key != (*values, asks, pid):
        _latest.reporter = Reporter(*values, Rungs(*asks) if asks[0] else None)
        is_inherited = me.folder is not None and _activation.pid != pid
        _latest.committer = Committer(me, is_inherited)
        _latest.joint_stop = None
    _latest.context, _latest.pid, _latest.key = me, pid, (*values, asks, pid)
    return _latest.reporter


def this_committer() -> Committer:
    """Return what commits the checkpoints of this process, which lives as long as its reporter."""
    this_reporter()
    return _latest.committer


# Process-wide state: one reporter per process, which a context with the same values keeps. A forked
# process does not use the reporter of its parent.
@dataclass
class _Latest:
    context: Context | None = None
    pid: int = 0
    key: tuple[Any, ...] = ()
    reporter: Reporter | None = None
    joint_stop: JointStop | None = None
    committer: Committer = field(default_factory=lambda: Committer(Context()))


_latest = _Latest()


def _forget_reporter() -> None:
    _latest.reporter = None


# All fields can be read from the module; `dir` and the error message list only the public ones.
_PLUMBING = [f.name for f in dataclasses.fields(Wiring)]
_PUBLIC = [f.name for f in dataclasses.fields(Context) if f.name not in _PLUMBING]
_PROPERTIES = ["checkpoint_dir", "is_chief", "logdir", "original_cwd", "preloaded"]


def __getattr__(name: str) -> Any:
    if name == "preloaded":
        return _preloaded.latest().value
    if name in (*_PUBLIC, *_PROPERTIES, *_PLUMBING):
        return getattr(current(), name)
    functions = ("get_checkpoint", "report", "resource", "should_stop")
    public = ", ".join([*_PUBLIC, *_PROPERTIES, *functions])
    raise AttributeError(
        f"module 'sparkdl.context' has no attribute {name!r}. Expected one of {public}."
    )


def __dir__() -> list[str]:
    return sorted({*_PUBLIC, *_PROPERTIES, *vars(sys.modules[__name__])})
