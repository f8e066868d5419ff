"""A cluster of slots without Spark: trials wait for a slot, last for a given time, and end."""

import threading
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from sparkdl.cluster.outcome import Outcome, RankInfo, Status
from sparkdl.cluster.plan import Plan, Resources
from sparkdl.cluster.preflight import PreflightTask
from sparkdl.cluster.program.packaging import Program
from sparkdl.cluster.slots import Slots
from sparkdl.files import storage
from sparkdl.files.layout import RunPaths

__all__ = ["InstantTrials", "SlotsWithoutSpark"]


class SlotsWithoutSpark:
    """All of the protocol `Cluster` that does not run trials.

    Args:
        slots: number of slots.
    """

    spark: SparkSession | None = None
    version = "0"
    master = "simulated"
    application = "simulated"
    tasks_outlive_driver = False

    def __init__(self, slots: int) -> None:
        self._slots = slots

    def conf(self, key: str) -> str | None:
        """Return None for every key."""
        return None

    def root(self) -> str:
        """Return the default folder of runs, which is not used."""
        return "runs"

    def check(self, plan: Plan, program: Program | None = None) -> None:
        """Accept every plan."""

    def share(self, value: object) -> Callable[[], None]:
        """Do nothing: no object is sent."""
        return lambda: None

    def wait_for_executors(self, size: int, num_cpus: int | None = None) -> None:
        """Return at once."""

    def submit(self, task: Any, schema: str, **options: Any) -> list[Any]:
        """Run a job, see `sparkdl.cluster.base.Cluster`."""
        raise NotImplementedError

    def cancel(self, tag: str) -> None:
        """End jobs, see `sparkdl.cluster.base.Cluster`."""
        raise NotImplementedError

    def slots(self, resources: Resources, override: int | None = None) -> Slots:
        """Return the number of slots."""
        return Slots(self._slots, self._slots, "simulated")

    def slots_now(self, resources: Resources) -> int:
        """Return the number of slots."""
        return self._slots

    def executors(self) -> tuple[int, int]:
        """Return one executor, which is all that there will be."""
        return 1, 1

    @property
    def executor_ids(self) -> None:
        """Return None: there are no executors."""
        return None

    @property
    def leaving(self) -> frozenset[str]:
        """Return nothing: executors stay."""
        return frozenset()

    def enforces(self, resources: Resources) -> bool:
        """Return True: no more trials run than there are slots."""
        return True


class InstantTrials(SlotsWithoutSpark):
    """A cluster whose trials, or gangs, return a number after a given time.

    The files of the executors are written without the latency of the store, as executors write them
    at the same time and elsewhere.

    Args:
        slots: number of slots.
        trial_s: seconds that a trial takes.
        write: writes a file of an executor, such as `storage.write`.

    Attributes:
        busy_s: the seconds of all processes together in which they had a slot.
    """

    def __init__(
        self, slots: int, trial_s: float, write: Callable[[str, bytes], None] = storage.write
    ) -> None:
        super().__init__(slots)
        self._trial_s = trial_s
        self._write = write
        self._free = slots
        self._changed = threading.Condition()
        self.busy_s = 0.0

    def submit(self, task: Any, schema: str, num_tasks: int = 1, **options: Any) -> list[Any]:
        """Wait for slots, write what a training process writes first, and return the outcomes."""
        if isinstance(task, PreflightTask):
            return []  # No executor reports a problem.
        trial = getattr(task, "task", task)  # The task of a rank has that of its trial.
        with self._changed:
            self._changed.wait_for(lambda: self._free >= num_tasks)
            self._free -= num_tasks
        begun_s = time.monotonic()
        paths = RunPaths(trial.run.path).trial(trial.trial.number)
        self._write(paths.attempt(trial.trial.attempt), b"{}")
        if self._trial_s:
            time.sleep(self._trial_s)
        with self._changed:
            self._free += num_tasks
            self.busy_s += num_tasks * (time.monotonic() - begun_s)
            self._changed.notify_all() if num_tasks > 1 else self._changed.notify()
        is_gang = num_tasks > 1
        return [
            {"outcome": _outcome(trial.trial.attempt, rank if is_gang else None)}
            for rank in range(num_tasks)
        ]

    def cancel(self, tag: str) -> None:
        """Do nothing: trials end soon."""


def _outcome(attempt: int, rank: int | None) -> str:
    who = None if rank is None else RankInfo(rank=rank, role=f"worker {rank}", host="simulated")
    return Outcome(
        status=Status.RETURNED,
        outputs={"value": 1.0},
        shape="value",
        is_chief=not rank,
        usage={"starting_s": 0.01, "running_s": 0.0, "cpu_s": 0.0},
        attempt=attempt,
        who=who,
        ended_s=time.time(),
    ).to_json()
