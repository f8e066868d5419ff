"""Runs anywhere. The run and the trial of a task, as the driver sends them to the task."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RunRef:
    """The run that a task belongs to.

    Attributes:
        id: the id of the run.
        path: the run directory, as a path or URL.
        application: the id of the Spark application.
        versions: the versions that the executor must have, see `preflight.check_executor`.
        driver: the host of the driver, as the executors know it.
        owner: the number of the driver among the owners of the run, for tasks that must notice its
            end; 0 where Spark ends the tasks of a driver that has gone.
    """

    id: str
    path: str
    application: str
    versions: Mapping[str, str]
    driver: str = ""
    owner: int = 0


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """The trial that a task runs.

    Attributes:
        number: the number of the trial in its run.
        params: the arguments of the training function.
        seed: the seed of the trial.
        attempt: the number of attempts that the driver had seen before; as Spark may have made more
            by itself, the number of this attempt is not less.
        metrics: the names of the metrics; `[None]` if the user named none.
        direction: `max` or `min`, for the first metric.
        keep_checkpoints: the checkpoints to keep, such as `best+last`.
        row_key: the columns whose values identify a row, see `sparkdl.options.Options`.
        init_from: the folder of a trial and the number of its checkpoint to begin with.
        rungs: the numbers of reports, counted from `reported` on, after which the process asks the
            driver whether it goes on.
        reported: the number of the reports of earlier attempts, and the step of the last one.
        avoid: the ids of the executors that must not run the trial.
        secret: the key by which the ranks of this attempt recognise each other; empty for a trial
            of one process.
    """

    number: int
    params: Mapping[str, Any] = field(repr=False)
    seed: int
    attempt: int = 0
    metrics: tuple[str | None, ...] = (None,)
    direction: str = "max"
    keep_checkpoints: str | int = "best+last"
    row_key: tuple[str, ...] = ()
    init_from: tuple[str, int] | None = None
    rungs: tuple[int, ...] = ()
    reported: tuple[int, int] = (0, -1)
    avoid: tuple[str, ...] = ()
    secret: bytes = field(default=b"", repr=False)
