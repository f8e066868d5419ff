"""Runs in the training process. The fields of `context`: who this process is in its run."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkdl.files import storage
from sparkdl.files.layout import SCRATCH, TENSORBOARD, scratch_of

# The folder of reports and checkpoints outside a run.
LOCAL = "runs/local"


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
        other_metrics: names of further metrics, each of which is in a report that counts at a rung.
        rungs: numbers of reports after which this process asks the driver whether it goes on.
        reported: number of the reports of earlier attempts, and step of the last one.
        feed: descriptor of the socket from which `data.dataset` receives rows; None without
            `data=`.
        ring: descriptor of the channel on which a process of a gang is invited to the ring.
        port: descriptor of a socket bound to the port that is reserved for this process.
        inbox: descriptor of a listening socket on which other processes send data to this process.
        chief: the rank that saves and reports for all ranks; not 0 while rank 0 is lost.
        is_elastic: the gang continues without a lost rank, and admits it again.
        grows: the gang takes in more ranks while it trains, and lets them go.
        present: the ranks that train now, of an elastic gang in which this process is.
        is_late: this process replaces a lost one, while the other ranks are training.
        timeline: this process records a timeline of its collectives.
        strategy: the strategy that `distribute.strategy()` returns, see `cluster.plan.Role`.
        num_readers: number of processes that divide the rows of files and DataFrames among
            themselves: the ranks below it. Every other process reads all rows.
        data_seed: the seed by which rows are divided; unlike `seed` the same on every rank.
        row_key: names of the columns whose values identify a row, for the record of the rows.
        peer_timeout_s: seconds to wait for a rank that other ranks depend on.
        run_path: path or URL of the run directory; None outside a run.
        prints: the reports are printed too, as outside a run.
        owns_gpus: this process has GPUs, and sees no others.
    """

    folder: str | None = None
    url: str | None = None
    task_cwd: str | None = None
    checkpoint: str | None = None
    keep_checkpoints: str | int = "best+last"
    metric: str | None = None
    direction: str = "max"
    other_metrics: Sequence[str] = ()
    rungs: Sequence[int] = ()
    reported: Sequence[int] = (0, -1)
    feed: int | None = None
    ring: int | None = None
    port: int | None = None
    inbox: int | None = None
    chief: int = 0
    is_elastic: bool = False
    grows: bool = False
    present: Sequence[int] = ()
    is_late: bool = False
    timeline: bool = False
    strategy: str = "local"
    num_readers: int = 1
    data_seed: int = 0
    row_key: Sequence[str] = ()
    peer_timeout_s: float = 600.0
    run_path: str | None = None
    prints: bool = False
    owns_gpus: bool = False


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
    def is_peer(self) -> bool:
        """Return True if this process trains as the other ranks do, and is no evaluator or server.

        Example:
            >>> Context(world_size=2, rank=1).is_peer, Context(world_size=2, rank=2).is_peer
            (True, False)
        """
        is_alone = self.strategy in ("parameter_server", "none")
        return self.rank < self.world_size and not is_alone

    @property
    def reading(self) -> tuple[int, int]:
        """Return this process's number among those that divide the rows, and their count.

        A process that reads all rows is number 0 of 1. In a gang that grows, the ranks that are
        present divide the rows.

        Example:
            >>> Context(rank=1, num_readers=4).reading, Context(rank=4, num_readers=4).reading
            ((1, 4), (0, 1))
            >>> Context(rank=5, num_readers=8, grows=True, present=(0, 1, 5)).reading
            (2, 3)
        """
        if self.grows and self.rank in self.present:
            return self.present.index(self.rank), len(self.present)
        return (self.rank, self.num_readers) if self.rank < self.num_readers else (0, 1)

    @property
    def logdir(self) -> str:
        """Return the folder for TensorBoard event files, and create it.

        In a gang, the chief uses the folder of the trial, and each other rank a subfolder of it.
        """
        name = TENSORBOARD if self.is_chief else f"{TENSORBOARD}/{self.role}-{self.index}"
        path = Path(self.folder or LOCAL, name).absolute()
        storage.make_directory(str(path))
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
        name = scratch_of(self.role, self.index) if self.world_size > 1 else SCRATCH
        path = Path(self.folder or LOCAL, name).absolute()
        if not path.exists() and self.url and not storage.is_local(self.url):
            storage.download(storage.join(self.url, name), path)
        storage.make_directory(str(path))
        return str(path)

    @property
    def _trial_url(self) -> str:
        """The location where the trial's folder is kept."""
        return self.url or self.folder or LOCAL
