"""Runs on the driver. A request with all that was checked before its run is opened."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdl.cluster.base import Cluster
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.program.packaging import Program
from sparkdl.runner.concurrency import Concurrency
from sparkdl.runner.request import Request

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkdl.data.dataframe.inputs import DataFrameInputs


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A request together with everything that was checked before its run is opened.

    Attributes:
        request: the arguments of the verb.
        program: the training function, packed for the executors.
        cluster: the cluster that runs the trials.
        plan: the processes of a trial and their resources.
        concurrency: the number of trials that run at once.
        data: the datasets of `data=`, None without any.
        init_from: the folder of a trial and the number of its checkpoint that trials begin with.
    """

    request: Request
    program: Program
    cluster: Cluster
    plan: Plan
    concurrency: Concurrency
    data: "DataFrameInputs | None" = None
    init_from: tuple[str, int] | None = None

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that must never be written to the run directory."""
        return self.plan.secrets

    def rows(self, num_trials: float) -> "DataFrame | None":
        """Return the rows of a job, a partition for each task; None for a run without data.

        Args:
            num_trials: number of trials, each of which has a job of its own.
        """
        if self.data is None:
            return None
        plan = self.plan
        return self.data.rows(plan.size, plan.readers, plan.is_gang, is_read_again=num_trials > 1)

    def release_rows(self) -> None:
        """Remove the copy of the rows that Spark keeps for several trials."""
        if self.data is not None:
            self.data.release()
