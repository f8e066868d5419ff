"""Runs in the training process. What a training function may ask about itself.

Use the module as it is: `context.rank`, `context.trial`, `context.report(0.9)`. Outside a run, in
a plain Python session, everything answers as rank 0 of 1, so that the same function can be called
directly to debug it.
"""

import dataclasses
import functools
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkdl import checkpoints, storage
from sparkdl.reporter import Reporter

__all__ = [
    "VARIABLE",
    "Context",
    "activate",
    "current",
    "get_checkpoint",
    "report",
    "this_reporter",
]

VARIABLE = "SPARKDL_CONTEXT"
MOST_BYTES = 1 << 16
_LOCAL = "runs/local"  # Outside a run.


@dataclass(frozen=True)
class Context:
    """Who this process is.

    Attributes:
        rank, world_size: this process among those that train, `0 <= rank < world_size`; an
            evaluator stands outside and comes after them all.
        local_rank, local_world_size: the same among those of its host.
        role: `worker`, `chief`, `ps` or `evaluator`.
        index: this process among those of its role, from 0.
        kind: the verb that started it, such as `allreduce`; `local` outside a run.
        attempt: how often this trial was started before.
        run: the run id; None outside a run.
        trial: the trial's number.
        params: the parameters that the function was called with; empty where they are very many.
        seed: `random`, NumPy and the framework are seeded with it already; in `[0, 2**31)`.
        folder: the local folder of this trial's files; None outside a run.
        url: where that folder is kept: itself, or the store that it is mirrored to.
        checkpoint: the local path of the last committed checkpoint when this attempt started.
        keep_checkpoints: which checkpoints are kept, such as `best+last`.
        metric, direction: which of a checkpoint's numbers makes it the best.
        feed: the descriptor from which `data.dataset` gets its rows; None without `data=`.
        ring: the descriptor that tells this process of a gang how to join the ring.
        port: the descriptor of a socket that is bound to this process's port, see `sparkdl.tfos`.
        inbox: the descriptor of a socket on which it is fed, see `sparkdl.tfos`.
        chief: the rank that saves and reports for all; another than 0 while that one is lost.
        is_elastic: the gang goes on without a rank that is lost, and takes it in again.
        is_late: this process takes the place of one that was lost; the others train already.
        timeline: whether this process records what its collectives do.
        strategy: the strategy that `distribute.strategy()` returns, see `cluster.plan.Role`.
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
    folder: str | None = None
    url: str | None = None
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

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that saves and reports for all."""
        return self.rank == self.chief

    @property
    def logdir(self) -> str:
        """Where TensorBoard's event files go; the folder exists.

        Of a gang the chief has the trial's own, and each other rank one of its own below it.
        """
        name = "tensorboard" if self.is_chief else f"tensorboard/{self.role}-{self.index}"
        path = Path(self.folder or _LOCAL, name).absolute()
        path.mkdir(parents=True, exist_ok=True)
        return str(path)

    @property
    def checkpoint_dir(self) -> str:
        """Scratch that survives restarts, as for `keras.callbacks.BackupAndRestore`; it exists.

        It is `scratch` in the trial's folder, and in a gang each rank has one of its own below.
        What is in it counts as no checkpoint: it is whatever was written when a process ended.
        Where the run directory is a store, a restart finds what was copied there in time, at most
        some seconds old.
        """
        name = f"scratch/{self.role}-{self.index}" if self.world_size > 1 else "scratch"
        path = Path(self.folder or _LOCAL, name).absolute()
        if not path.exists() and self.url and not storage.is_local(self.url):
            storage.download(storage.join(self.url, name), path)
        path.mkdir(parents=True, exist_ok=True)
        return str(path)

    @property
    def _trial(self) -> str:
        """The trial's folder, where it is kept."""
        return self.url or self.folder or _LOCAL


@functools.lru_cache(maxsize=1)
def _parse(text: str) -> Context:
    return Context(**json.loads(text))


def current() -> Context:
    """This process's context. Processes that a training function starts have the same one.

    Example:
        >>> current().rank, current().world_size
        (0, 1)
    """
    return _parse(os.environ.get(VARIABLE, "{}"))


def activate(context: Context) -> None:
    """Make `context` this process's own; called before the training function."""
    fields = dataclasses.asdict(context)
    if len(json.dumps(fields["params"])) > MOST_BYTES:
        fields["params"] = {}  # One variable may have 128 KiB, or no process can be started.
    os.environ[VARIABLE] = json.dumps(fields)


def report(
    value: float | Mapping[str, float],
    step: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> None:
    """Tell the driver how it goes: live in its progress line, kept in `metrics.jsonl`.

    Costs some ten microseconds: one line appended to a local file. With a checkpoint, it returns
    when that is copied to the run directory as a whole; a kill before leaves the one before.

    Args:
        value: a number, or several by name. A plain number is called `value`, and stands for the
            run's metric.
        step: the step or epoch it belongs to, from 0; by default the next one, after that of the
            checkpoint that `get_checkpoint` gave.
        checkpoint: a directory to commit: it is copied, and stays yours. Rank 0 commits; the other
            ranks may give one too, and it is not looked at. Outside a run it is committed below
            `runs/local/checkpoints`.

    Raises:
        TypeError: a value is not a number.
        NotADirectoryError: `checkpoint` is no directory.
        ValueError: `checkpoint` has no file in it, or cannot be copied; the message says why.
        TrialPruned: the search has stopped this trial. Let it pass: it is no failure.

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
    metrics = {k: _number(k, v) for k, v in _named(value).items()}
    reporter = this_reporter()
    reporter.write(metrics, step)
    if checkpoint is not None and current().is_chief:
        _commit(reporter, checkpoint)
    reporter.obey()


def get_checkpoint() -> str | None:
    """The local directory of the last committed checkpoint, or None. Continue from it.

    With one process it is the newest of this trial, what this process committed included; without
    one, that of the trial it was started from. With several, it is the one that was the newest
    when this attempt started, so that all ranks get the same at any time. Outside a run it is what
    this process committed last.

    Where the run directory is a store, it is downloaded first. Do not write into it, and do not
    rest on it after later commits: then it may be removed, see `keep_checkpoints`.

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
        newest = checkpoints.newest(me._trial)
        path = checkpoints.fetch(me._trial, newest.number, me.folder) if newest else path
    if path is not None:
        reporter.continue_after(checkpoints.step_of(path))
    return path


def _named(value: float | Mapping[str, float]) -> Mapping[str, float]:
    return value if isinstance(value, Mapping) else {"value": value}


def _number(name: str, value: Any) -> float:
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
        done = checkpoints.commit(directory, me._trial, reporter.step, reporter.metrics)
        reporter.committed = str(Path(done.url).absolute())
        checkpoints.prune(me._trial, *rule, spare=me.checkpoint)


def this_reporter() -> Reporter:
    """What this process reports and asks with."""
    me = current()
    # Each file has one writer: the driver follows the chief's.
    name = "metrics.jsonl" if me.is_chief else f"metrics-{me.role}-{me.index}.jsonl"
    folder = Path(me.folder) if me.folder else None
    return _reporter(folder, name, me.world_size == 1, me.attempt, os.getpid())


@functools.lru_cache(maxsize=1)
def _reporter(folder: Path | None, name: str, obeys: bool, attempt: int, pid: int) -> Reporter:
    # Of a gang, one rank that stopped would leave the others waiting: it is ended as a whole.
    return Reporter(folder, name, obeys, attempt)


_PROPERTIES = {"checkpoint_dir", "is_chief", "logdir"}


def __getattr__(name: str) -> Any:
    if name in {f.name for f in dataclasses.fields(Context)} | _PROPERTIES:
        return getattr(current(), name)
    raise AttributeError(
        f"module 'sparkdl.context' has no attribute {name!r}. Expected one of "
        f"{', '.join(f.name for f in dataclasses.fields(Context))}, "
        f"{', '.join(sorted(_PROPERTIES))}, get_checkpoint, report."
    )


def __dir__() -> list[str]:
    names = {f.name for f in dataclasses.fields(Context)} | _PROPERTIES
    return sorted(names | set(vars(sys.modules[__name__])))
