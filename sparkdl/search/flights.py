"""Where it runs: D. The trials that Spark has now: a thread and a Spark job each."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from sparkdl import storage
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.spark import Cluster
from sparkdl.cluster.task import OUTCOME_SCHEMA, TrialTask
from sparkdl.runs.layout import RunPaths
from sparkdl.runs.trial import Trial

__all__ = ["Flight", "Flights"]


@dataclass
class Flight:
    """A trial that Spark has, waiting for a slot or running.

    Attributes:
        trial: the trial.
        job: its rows, or what went wrong.
        submitted_s: when, on the monotonic clock.
        first: its first attempt; Spark may make more by itself.
        seen: the last attempt whose start was seen, `first - 1` before any.
    """

    trial: Trial
    job: "Future[list[Any]]"
    submitted_s: float
    first: int
    seen: int


class Flights:
    """Submits trials and waits for their ends.

    Args:
        cluster, plan: where and with what trials run.
        paths: the run directory, where tasks show that they have started.
    """

    def __init__(self, cluster: Cluster, plan: Plan, paths: RunPaths) -> None:
        self._cluster, self._plan, self._paths = cluster, plan, paths
        self._tag = f"sparkdl:{paths.folder.rsplit('/', 1)[-1]}"
        self._pool = ThreadPoolExecutor(max_workers=4096, thread_name_prefix="sparkdl-trial")
        self._news = threading.Event()
        self._flights: dict[int, Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def __iter__(self) -> Iterator[Flight]:
        return iter(self._flights.values())

    def submit(self, trial: Trial, task: TrialTask) -> None:
        """Hand a trial to Spark."""
        params = ", ".join(f"{name}={value}" for name, value in trial.params.items())
        job = self._pool.submit(
            self._cluster.submit,
            task,
            OUTCOME_SCHEMA,
            num_tasks=self._plan.size,
            barrier=self._plan.is_gang,
            resources=self._plan.resources,
            description=f"{task.run_id} trial {trial.number}: {params}",
            tags=(self._tag, f"{self._tag}:{trial.number}"),
        )
        first = trial.attempts
        self._flights[trial.number] = Flight(trial, job, time.monotonic(), first, first - 1)
        job.add_done_callback(lambda _: self._news.set())

    def wake(self) -> None:
        """Make `ended` return soon."""
        self._news.set()

    def ended(self, timeout_s: float) -> list[Flight]:
        """Wait a moment for a flight to end; all that have. Each stays until it is `landed`."""
        self._news.wait(timeout_s)
        self._news.clear()
        return [flight for flight in self._flights.values() if flight.job.done()]

    def landed(self, flight: Flight) -> None:
        """Forget a flight whose end has been written down."""
        if self._plan.is_gang:
            storage.remove(self._paths.trial(flight.trial.number).all_ranks)
        del self._flights[flight.trial.number]

    def starts(self, flight: Flight) -> Iterator[int]:
        """The attempts of a flight that have started since the last look."""
        paths = self._paths.trial(flight.trial.number)
        while storage.exists(paths.attempt(flight.seen + 1)):
            flight.seen += 1
            yield flight.seen

    def cancel(self, numbers: "set[int] | None" = None) -> None:
        """Tell Spark to end some of the flights, or with None all. Harmless when repeated."""
        if numbers is None:
            self._cluster.cancel(self._tag)
        for number in (numbers or set()) & self._flights.keys():
            self._cluster.cancel(f"{self._tag}:{number}")

    def close(self) -> None:
        """No more flights."""
        self._pool.shutdown(wait=False)
