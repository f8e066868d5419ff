"""Runs on the driver. The trials that Spark has now: a thread and a Spark job each."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from sparkdl import storage
from sparkdl.cluster.base import Cluster
from sparkdl.cluster.gang.detached_job import KeptJob
from sparkdl.cluster.gang.driver_nodes import DriverJob
from sparkdl.cluster.gang.membership import Roster
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.spark_errors import JobFailed
from sparkdl.cluster.trial_task import OUTCOME_SCHEMA, TrialTask
from sparkdl.runs.layout import RunPaths
from sparkdl.runs.trial import Trial

__all__ = ["Flight", "Flights"]

# A job whose training is over gets so long to end by itself.
OVER_S = 5.0


@dataclass
class Flight:
    """A trial that Spark has, waiting for a slot or running.

    Attributes:
        trial: the trial.
        job: its rows, or what went wrong.
        submitted_s: when, on the monotonic clock.
        first: its first attempt; Spark may make more by itself.
        seen: the last attempt whose start was seen, `first - 1` before any.
        roster: decides on the rings of an elastic gang.
        kept: follows the processes that go on when their job has ended.
        over_s: when it was seen that its training is over while Spark goes on, None before.
    """

    trial: Trial
    job: "Future[list[Any]]"
    submitted_s: float
    first: int
    seen: int
    roster: Roster | None = None
    kept: KeptJob | None = None
    over_s: float | None = None


class Flights:
    """Submits trials and waits for their ends.

    Args:
        cluster, plan: where and with what trials run.
        paths: the run directory, where tasks show that they have started.
        rows: what the tasks of each trial are given.
    """

    def __init__(
        self, cluster: Cluster, plan: Plan, paths: RunPaths, rows: DataFrame | None = None
    ) -> None:
        self._cluster, self._plan, self._paths, self._rows = cluster, plan, paths, rows
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
        first, elastic = trial.attempts, self._plan.elastic
        met = self._paths.trial(trial.number).ranks(first)
        kept = KeptJob(self._plan, met, self._cluster.submit) if self._plan.kept else None
        way: Callable[..., list[Any]] = kept.run if kept else self._way(met)
        job = self._pool.submit(
            way,
            task,
            OUTCOME_SCHEMA,
            num_tasks=self._plan.size,
            barrier=self._plan.is_gang and not elastic,
            resources=self._plan.resources,
            description=f"{task.run_id} trial {trial.number}: {params}",
            tags=(self._tag, f"{self._tag}:{trial.number}"),
            rows=self._rows,
        )
        roster = None
        if elastic:
            roster = Roster(met, self._plan.size, self._plan.collective_timeout_s)
        flight = Flight(trial, job, time.monotonic(), first, first - 1, roster, kept)
        self._flights[trial.number] = flight
        job.add_done_callback(lambda _: self._news.set())

    def _way(self, met: str) -> Callable[..., list[Any]]:
        """What hands a job to Spark, and runs beside it what the driver runs itself."""
        if any(role.on_driver for role in self._plan.roles):
            return DriverJob(self._plan, met, self._cluster.submit).run
        return self._cluster.submit

    def wake(self) -> None:
        """Make `ended` return soon."""
        self._news.set()

    def ended(self, timeout_s: float) -> list[Flight]:
        """Wait a moment for a flight to end; all that have. Each stays until it is `landed`."""
        self._news.wait(timeout_s)
        self._news.clear()
        for flight in self._flights.values():
            if flight.roster:
                with contextlib.suppress(OSError):  # The store fails for a moment: the next time.
                    flight.roster.look()
            if self._rows is not None and not self._plan.is_gang:
                self._cut_short(flight)
        return [flight for flight in self._flights.values() if flight.job.done()]

    def _cut_short(self, flight: Flight) -> None:
        """End a job for which Spark goes on computing rows that nobody reads any more."""
        if flight.over_s is None and storage.exists(self._outcome(flight)):
            flight.over_s = time.monotonic()
        if flight.over_s and time.monotonic() - flight.over_s > OVER_S:
            self.cancel({flight.trial.number})

    def _outcome(self, flight: Flight) -> str:
        return self._paths.trial(flight.trial.number).outcome(flight.seen)

    def rows_of(self, flight: Flight) -> list[Any]:
        """What the tasks of a flight that has ended said.

        Raises:
            JobFailed: Spark did not bring it.
        """
        try:
            return flight.job.result()
        except JobFailed:
            if flight.over_s is None:
                raise
            said = storage.read(self._outcome(flight)).decode()
            return [{"outcome": said, "exception": None}]

    def landed(self, flight: Flight) -> None:
        """Forget a flight whose end has been written down."""
        if self._plan.is_gang:
            storage.remove(self._paths.trial(flight.trial.number).all_ranks)
        del self._flights[flight.trial.number]

    def starts(self) -> Iterator[tuple[Flight, int]]:
        """The attempts that have started since the last look, each with its flight."""
        waiting = list(self._flights.values())
        while waiting:
            # All are asked at once; one that has started once may have done so again.
            urls = {self._attempt(flight): flight for flight in waiting}
            found = storage.read_new(dict.fromkeys(urls, 0))
            waiting = [urls[url] for url in found]
            for flight in waiting:
                flight.seen += 1
                yield flight, flight.seen

    def _attempt(self, flight: Flight) -> str:
        return self._paths.trial(flight.trial.number).attempt(flight.seen + 1)

    def cancel(self, numbers: "set[int] | None" = None) -> None:
        """Tell Spark to end some of the flights, or with None all. Harmless when repeated."""
        if numbers is None:
            self._cluster.cancel(self._tag)
        for number in (numbers or set()) & self._flights.keys():
            self._cluster.cancel(f"{self._tag}:{number}")
        for number, flight in self._flights.items():
            if flight.kept and (numbers is None or number in numbers):
                flight.kept.end()

    def close(self) -> None:
        """No more flights."""
        self._pool.shutdown(wait=False)
