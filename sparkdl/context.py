"""Runs in the training process. The identity of this process, its reports and checkpoints.

Use the module directly: `context.rank`, `context.trial`, `context.report(0.9)`. Outside a run, in
a plain Python session, the process is rank 0 of 1, so that a training function can be called
directly to debug it.
"""

import contextlib
import dataclasses
import functools
import json
import operator
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkdl import checkpoints, storage
from sparkdl.polling import Outages, retry
from sparkdl.reporter import Reporter

__all__ = [
    "VARIABLE",
    "Context",
    "activate",
    "current",
    "elect",
    "get_checkpoint",
    "report",
    "this_reporter",
]

VARIABLE = "SPARKDL_CONTEXT"
# An environment variable can have 128 KiB; a process with a larger one cannot be started.
MAX_PARAMS_BYTES = 1 << 16
# The folder of reports and checkpoints outside a run.
_LOCAL = "runs/local"


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """The plumbing of a training process: fields for sparkdl itself, which may change.

    Training functions use the fields and properties of `Context` instead.

    Attributes:
        folder: local folder of the trial's files; None outside a run.
        url: location where the folder is kept: `folder` itself, or the store that it is mirrored
            to.
        task_cwd: working directory of the Spark task; None outside a run.
        checkpoint: local path of the last committed checkpoint when this attempt started.
        keep_checkpoints: rule for the checkpoints to retain, such as `best+last`.
        metric: name of the metric that makes a checkpoint the best.
        direction: `max` or `min`, for `metric`.
        feed: descriptor of the socket from which `data.dataset` receives rows; None without
            `data=`.
        ring: descriptor of the channel on which a process of a gang is invited to the ring.
        port: descriptor of a socket bound to the port that is reserved for this process.
        inbox: descriptor of a listening socket on which other processes send data to this process.
        chief: the rank that saves and reports for all ranks; not 0 while rank 0 is lost.
        is_elastic: the gang continues without a lost rank, and admits it again.
        is_late: this process replaces a lost one, while the other ranks are training.
        timeline: this process records a timeline of its collectives.
        strategy: the strategy that `distribute.strategy()` returns, see `cluster.plan.Role`.
        num_readers: number of processes that divide the rows of files and DataFrames among
            themselves: the ranks below it. Every other process reads all rows.
        data_seed: the seed by which rows are divided; unlike `seed` the same on every rank.
        peer_timeout_s: seconds to wait for a rank that other ranks depend on.
    """

    folder: str | None = None
    url: str | None = None
    task_cwd: str | None = None
    checkpoint: str | None = None
    keep_checkpoints: str | int = "best+last"
    metric: str | None = None
    direction: str = "max"
    feed: int | None = None
    ring: int | None = None
    port: int | None = None
    inbox: int | None = None
    chief: int = 0
    is_elastic: bool = False
    is_late: bool = False
    timeline: bool = False
    strategy: str = "local"
    num_readers: int = 1
    data_seed: int = 0
    peer_timeout_s: float = 600.0


@dataclass(frozen=True, kw_only=True)
class Context(Wiring):
    """The identity of this process in its run.

    Attributes:
        rank, world_size: rank of this process and number of processes that train together,
            `0 <= rank < world_size`. An evaluator is not counted; its rank follows all others.
        local_rank, local_world_size: the same among the processes of this host.
        role: `worker`, `chief`, `ps` or `evaluator`.
        index: number of this process among the processes of its role, from 0.
        kind: the verb that started the run, such as `allreduce`; `local` outside a run.
        attempt: number of earlier attempts at this trial.
        run: the run id; None outside a run.
        trial: number of the trial.
        params: the parameters that the training function was called with; empty if they are too
            large for an environment variable.
        seed: the seed in `[0, 2**31)` of `random`, NumPy and the framework, which are seeded
            already.

    The inherited attributes are plumbing, see `Wiring`.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    role: str = "worker"
    index: int = 0
    kind: str = "local"
    attempt: int = 0
    run: str | None = None
    trial: int = 0
    params: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def is_chief(self) -> bool:
        """Return True if this process saves and reports for all ranks."""
        return self.rank == self.chief

    @property
    def reading(self) -> tuple[int, int]:
        """Return this process's number among those that divide the rows, and their count.

        A process that reads all rows is number 0 of 1.

        Example:
            >>> Context(rank=1, num_readers=4).reading, Context(rank=4, num_readers=4).reading
            ((1, 4), (0, 1))
        """
        return (self.rank, self.num_readers) if self.rank < self.num_readers else (0, 1)

    @property
    def logdir(self) -> str:
        """Return the folder for TensorBoard event files, and create it.

        In a gang, the chief uses the folder of the trial, and each other rank a subfolder of it.
        """
        name = "tensorboard" if self.is_chief else f"tensorboard/{self.role}-{self.index}"
        path = Path(self.folder or _LOCAL, name).absolute()
        path.mkdir(parents=True, exist_ok=True)
        return str(path)

    @property
    def original_cwd(self) -> str:
        """Return the directory in which this process would work without a directory of its own.

        With embedded Spark, it is the working directory of the driver; on a cluster, the directory
        of the executor, into which Spark puts the files of `--files`. Open input files below it, or
        by absolute paths. Outside a run, it is the working directory.
        """
        return self.task_cwd or os.getcwd()

    @property
    def checkpoint_dir(self) -> str:
        """Return a scratch folder that survives restarts, and create it.

        For example for `keras.callbacks.BackupAndRestore`. The folder is `scratch` in the trial's
        folder; in a gang, each rank has a subfolder. It is not a committed checkpoint: after a
        restart it contains the files that existed when the process ended. If the run directory is
        on a remote store, it contains the files of the last copy, which is at most some seconds
        old.
        """
        name = f"scratch/{self.role}-{self.index}" if self.world_size > 1 else "scratch"
        path = Path(self.folder or _LOCAL, name).absolute()
        if not path.exists() and self.url and not storage.is_local(self.url):
            storage.download(storage.join(self.url, name), path)
        path.mkdir(parents=True, exist_ok=True)
        return str(path)

    @property
    def _trial_url(self) -> str:
        """The location where the trial's folder is kept."""
        return self.url or self.folder or _LOCAL


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
        TrialPruned: if the search stops this trial. Do not catch it: it is not a failure.

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
    metrics = {name: _as_number(name, number) for name, number in _as_mapping(value).items()}
    reporter = this_reporter()
    reporter.write(metrics, None if step is None else _as_step(step))
    if checkpoint is not None and current().is_chief:
        _commit(reporter, checkpoint)
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


def _as_mapping(value: float | Mapping[str, float | None]) -> dict[str, float]:
    """Return the values by name, without those that are None."""
    if not isinstance(value, Mapping):
        return {"value": value}
    return {name: number for name, number in value.items() if number is not None}


def _as_step(step: Any) -> int:
    """Return a step as a whole number, also where it has another type, such as an array's."""
    with contextlib.suppress(TypeError):
        return operator.index(step)
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if float(step).is_integer():
            return int(step)
    raise ValueError(
        f"context.report got {step=}; expected a whole number, such as the number of the epoch or "
        "of the batch. Parts of an epoch: report the number of the batch."
    )


def _as_number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"context.report got {name}={value!r} of type {type(value).__name__}; expected a "
            "number, or a dict of numbers by name."
        ) from None


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


def this_reporter() -> Reporter:
    """Return the reporter of this process, by which it communicates with the driver."""
    me = current()
    # Each file has one writer; the driver reads the file of the chief.
    name = "metrics.jsonl" if me.is_chief else f"metrics-{me.role}-{me.index}.jsonl"
    folder = Path(me.folder) if me.folder else None
    return _reporter(folder, name, me.world_size == 1, me.attempt, os.getpid())


# Process-wide state: one reporter per process. The process id is an argument so that a forked
# process does not use the reporter of its parent. A rank of a gang does not stop on its own,
# because the other ranks would wait for it: the gang is ended as a whole.
@functools.lru_cache(maxsize=1)
def _reporter(
    folder: Path | None, name: str, can_be_stopped: bool, attempt: int, pid: int
) -> Reporter:
    return Reporter(folder, name, can_be_stopped, attempt)


# All fields can be read from the module; `dir` and the error message list only the public ones.
_PLUMBING = [f.name for f in dataclasses.fields(Wiring)]
_PUBLIC = [f.name for f in dataclasses.fields(Context) if f.name not in _PLUMBING]
_PROPERTIES = ["checkpoint_dir", "is_chief", "logdir", "original_cwd"]


def __getattr__(name: str) -> Any:
    if name in (*_PUBLIC, *_PROPERTIES, *_PLUMBING):
        return getattr(current(), name)
    public = ", ".join([*_PUBLIC, *_PROPERTIES, "get_checkpoint", "report"])
    raise AttributeError(
        f"module 'sparkdl.context' has no attribute {name!r}. Expected one of {public}."
    )


def __dir__() -> list[str]:
    return sorted({*_PUBLIC, *_PROPERTIES, *vars(sys.modules[__name__])})
