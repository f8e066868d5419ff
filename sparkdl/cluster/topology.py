"""Runs on the driver. The ways in which the processes of a trial become Spark tasks and a job.

A topology is chosen by the verb and is the only place in which trials of different kinds differ
on the driver. It wraps the task of a trial, and makes the job that submits it. A new topology needs
no change in this package: see `docs/architecture.md`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from sparkdl.cluster.base import Cluster
from sparkdl.cluster.gang.elastic_policy import ElasticPolicy
from sparkdl.cluster.gang.membership import Membership
from sparkdl.cluster.gang.policies import BarrierPolicy, RankPolicy
from sparkdl.cluster.gang.rank_grower import RankGrower
from sparkdl.cluster.gang.rank_mover import RankMover
from sparkdl.cluster.gang.slow_ranks import GangNews, SlowRankWatch
from sparkdl.cluster.gang.standby_jobs import TAG, StandbyJobs
from sparkdl.cluster.gang.task import RankTask
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.trial_task import TrialTask
from sparkdl.files.polling import Outages
from sparkdl.files.rank_files import RankFiles

if TYPE_CHECKING:
    import pyarrow as pa

Submit = Callable[..., list[Any]]
Task = Callable[[Iterable["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


class Job(Protocol):
    """The Spark job of one attempt at a trial, and all that runs beside it."""

    def run(self, task: Any, *args: Any, **options: Any) -> list[Any]:
        """Run the job and return the rows of its tasks; arguments are those of `Cluster.submit`.

        Raises:
            JobFailed: if the job was cancelled, or failed.
        """
        ...

    def look(self) -> Sequence[GangNews]:
        """Do what is due while the job runs; called several times a second, must return soon.

        Returns:
            News of a gang, for the user.
        """
        ...

    def end(self) -> None:
        """Order the end of all that runs beside the Spark job."""
        ...


class Topology(Protocol):
    """The form of a trial on the cluster."""

    def task(self, task: TrialTask) -> Task:
        """Return what Spark executes for each process of a trial."""
        ...

    def job(self, plan: Plan, files: RankFiles, cluster: Cluster) -> Job:
        """Return the job of one attempt.

        Args:
            plan: the plan of the run.
            files: the files by which the ranks of the attempt talk.
            cluster: runs the job.
        """
        ...


class SparkJob:
    """A job of which all processes are Spark tasks.

    Args:
        submit: hands a job to Spark and returns the rows of its tasks.
    """

    def __init__(self, submit: Submit) -> None:
        self._submit = submit

    def run(self, task: Any, *args: Any, **options: Any) -> list[Any]:
        return self._submit(task, *args, **options)

    def look(self) -> Sequence[GangNews]:
        return ()

    def end(self) -> None:
        pass


class GangJob(SparkJob):
    """A job whose processes train together.

    Args:
        submit: see `SparkJob`.
        watch: looks for slow ranks.
    """

    def __init__(self, submit: Submit, watch: SlowRankWatch) -> None:
        super().__init__(submit)
        self._watch = watch

    def look(self) -> Sequence[GangNews]:
        return self._watch.look()


class ElasticJob(GangJob):
    """A job whose lost tasks Spark starts again, while the driver decides who forms the ring.

    Args:
        submit, watch: see `GangJob`.
        jobs: starts further processes; has the membership, which takes the decisions.
        adjuster: moves slow ranks, or lets the gang grow; None for a gang that does neither.
    """

    def __init__(
        self,
        submit: Submit,
        watch: SlowRankWatch,
        jobs: StandbyJobs,
        adjuster: RankMover | RankGrower | None = None,
    ) -> None:
        super().__init__(submit, watch)
        self._jobs = jobs
        self._adjuster = adjuster
        self._outages = Outages("list the messages of an elastic gang")

    def run(self, task: Any, *args: Any, **options: Any) -> list[Any]:
        if self._adjuster is None:
            return super().run(task, *args, **options)
        self._jobs.begin(task, args, options)
        try:
            return self._adjuster.rows(super().run(task, *args, **options))
        except BaseException:
            self._jobs.end_all()
            raise

    def look(self) -> Sequence[GangNews]:
        news = list(super().look())
        with self._outages.tolerated():
            self._jobs.membership.look()
            news += self._adjuster.look(self._watch.slow) if self._adjuster else []
        return news


@dataclass(frozen=True)
class SingleTopology:
    """A trial of one process."""

    def task(self, task: TrialTask) -> Task:
        return task

    def job(self, plan: Plan, files: RankFiles, cluster: Cluster) -> Job:
        return SparkJob(cluster.submit)


@dataclass(frozen=True)
class GangTopology:
    """A trial of several processes that run together in a barrier stage."""

    policy: RankPolicy = field(default_factory=BarrierPolicy)

    def task(self, task: TrialTask) -> Task:
        return RankTask(task, self.policy)

    def job(self, plan: Plan, files: RankFiles, cluster: Cluster) -> Job:
        return GangJob(cluster.submit, SlowRankWatch(files, plan.ring))


@dataclass(frozen=True)
class ElasticTopology:
    """A gang that goes on without a rank that is lost."""

    def task(self, task: TrialTask) -> Task:
        return RankTask(task, ElasticPolicy())

    def job(self, plan: Plan, files: RankFiles, cluster: Cluster) -> Job:
        patience_s = plan.collective_timeout_s
        membership = Membership(files, plan.size, patience_s, lambda: cluster.executor_ids)
        jobs = StandbyJobs(files, membership, cluster.submit, cluster.cancel)
        adjuster = _adjuster(plan, jobs, cluster)
        return ElasticJob(cluster.submit, SlowRankWatch(files, plan.ring), jobs, adjuster)


def _adjuster(plan: Plan, jobs: StandbyJobs, cluster: Cluster) -> RankMover | RankGrower | None:
    """Return what changes the ranks of an elastic gang, beside losses."""

    def counted(count: Callable[[], int]) -> int:
        try:
            return count()
        except Exception:  # noqa: BLE001 A Spark that has ended says so at the end of the job.
            return 0

    def num_spare() -> int:
        return counted(lambda: cluster.num_spare(plan.resources, plan.size))

    if plan.moves_slow_ranks:
        return RankMover(jobs, num_spare)
    if not plan.grows:
        return None
    return RankGrower(
        jobs,
        range(plan.size, len(plan.members)),
        num_spare,
        lambda: counted(lambda: cluster.num_waiting(jobs.tag, TAG)),
        cluster.slots(plan.resources).on_demand,
    )
