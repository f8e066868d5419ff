"""Runs in a Spark task. Run one rank of a gang.

The ranks meet, then each task runs its training process with the variables by which it finds the
others. An exception in the function of one rank is an outcome, as in a trial; the other tasks see
it in the run directory and end their processes.
"""

import contextlib
import functools
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sparkdl import checkpoints
from sparkdl.cluster.driver_watch import DriverWatch
from sparkdl.cluster.feeding import exhaust, feed_sockets, feeding
from sparkdl.cluster.gang.placement import Placement, RingSeat
from sparkdl.cluster.gang.policies import SHARES_PORT, RankPolicy
from sparkdl.cluster.gang.rendezvous import deadline, local_places
from sparkdl.cluster.gang.supervisor import DEADLINE, Supervisor
from sparkdl.cluster.gpus.assignment import AssignedGpus
from sparkdl.cluster.gpus.locks import DevicesTakenError
from sparkdl.cluster.outcome import Outcome, ProcessExit, RankInfo, Status
from sparkdl.cluster.plan import Member
from sparkdl.cluster.process.training_process import PreloadError, TrainingProcess
from sparkdl.cluster.process.trial_folder import local_folder
from sparkdl.cluster.python_worker import spare_collector
from sparkdl.cluster.repeated_process import is_repeated, without_preload
from sparkdl.cluster.spark_errors import STORE_FAILED
from sparkdl.cluster.task_outcome import (
    outcome_row,
    with_feed_error,
    with_files,
    with_note,
    with_reported,
)
from sparkdl.cluster.trial_task import TrialTask
from sparkdl.data.dataframe.sender import RowSender
from sparkdl.files import attempts, storage
from sparkdl.files.jsonl import to_json
from sparkdl.files.layout import METRICS, TrialPaths
from sparkdl.files.polling import poll_s, retry
from sparkdl.files.rank_files import RankFiles
from sparkdl.runs.machine import describe
from sparkdl.runs.states import Failure

if TYPE_CHECKING:
    import pyarrow as pa

# A server is started again each time it is killed, unless it dies at once this many times.
SHORT_LIFE_S = 5.0
MAX_SHORT_LIVES = 3
# Seconds between two looks of a rank for a later attempt on a remote store, more in a large gang.
FENCE_S = 10.0

T = TypeVar("T")


@dataclass(frozen=True)
class RankTask:
    """Run one rank; Spark calls the task in a Python worker with the batches of its partition.

    Attributes:
        task: the trial.
        policy: the decisions that differ between kinds of ranks.
        rank: the rank of the only task of a job; None if the number of a task is its rank.
    """

    task: TrialTask
    policy: RankPolicy
    rank: int | None = None

    def __call__(self, batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        """Run the rank and yield its outcome as one row of `OUTCOME_SCHEMA`."""
        from pyspark import TaskContext

        if self.task.feed is None:
            exhaust(batches)
        spare_collector()
        rank = TaskContext.get().partitionId() if self.rank is None else self.rank
        member = self.task.plan.members[rank]
        yield outcome_row(run_rank(self.task, self.policy, member, batches))


def run_rank(
    task: TrialTask,
    policy: RankPolicy,
    member: Member,
    batches: "Iterable[pa.RecordBatch]" = (),
) -> Outcome:
    """Meet the other ranks, run the training process of a rank, return its outcome.

    Args:
        task: the trial.
        policy: the decisions that differ between kinds of ranks.
        member: the rank and its role.
        batches: the rows of the rank's partition.

    Raises:
        RuntimeError: if the run directory cannot be used while the ranks meet.
    """
    with contextlib.ExitStack() as stack:
        try:
            with deadline(task.plan.start_timeout_s):
                placement = policy.meet(task, member, stack)
        except TimeoutError as late:
            # Ranks that have met may wait for this one.
            files = RankFiles(task.paths.ranks(task.trial.attempt))
            _tell(functools.partial(files.post, member.rank, "failed"), f"{member}: {late}")
            outcome = failed_outcome(f"{DEADLINE}: {late}", Failure.DEADLINE)
            return identified(outcome, task, member)
        except OSError as exc:
            # In a barrier stage, an exception ends the other ranks too: they wait for this one.
            raise RuntimeError(f"{STORE_FAILED}: {member}: {exc}") from exc
        if problems := sorted({peer.problem for peer in placement.peers if peer.problem}):
            outcome = Outcome(status=Status.REFUSED, error="\n- ".join(problems))
            return identified(outcome, task, member)
        outcome = policy.run(task, placement, batches) or _train_rank(
            task, policy, placement, batches
        )
        return identified(outcome, task, member)


def identified(outcome: Outcome, task: TrialTask, member: Member) -> Outcome:
    """Return the outcome with the rank and the attempt that it belongs to."""
    who = RankInfo(rank=member.rank, role=str(member), host=socket.gethostname())
    return replace(outcome, who=who, attempt=task.trial.attempt)


def failed_outcome(error: str, failure: Failure) -> Outcome:
    """Return the outcome of a rank that failed outside the training function."""
    return Outcome(status=Status.FAILED, error=f"{error}\n", failure=failure, ended_s=time.time())


def _train_rank(
    task: TrialTask, policy: RankPolicy, placement: Placement, batches: "Iterable[pa.RecordBatch]"
) -> Outcome:
    files = local_folder(placement.paths, placement.attempt, task.plan.size, task.at_once)
    with files as folder, feeding(task.feed, batches, placement.rank) as feeder:
        outcome = supervise_rank(task, policy, placement, folder, feeder)
    outcome = with_note(outcome, files.note)
    policy.concluded(task, placement, outcome)
    return outcome


def supervise_rank(
    task: TrialTask,
    policy: RankPolicy,
    placement: Placement,
    folder: Path,
    feeder: RowSender | None = None,
) -> Outcome:
    """Run the training processes of a rank, one after the other, until the rank has ended.

    Args:
        task: the trial.
        policy: the decisions that differ between kinds of ranks.
        placement: the rank, whose gang has met.
        folder: the local folder of the trial.
        feeder: sends the rows of the rank to its training process, if it gets any.
    """
    local = Path(TrialPaths(str(folder)).ranks(placement.attempt))
    storage.make_directory(str(local))
    supervisor = Supervisor(task.plan, placement.rank, placement.files, local, placement.is_member)
    try:
        if placement.rank == 0 and placement.is_member():
            task.begin(placement.attempt, _places(task, placement))
        with policy.gpus(task, placement, supervisor) as gpus:
            end, note = _run_processes(task, policy, placement, folder, gpus, supervisor, feeder)
            end = with_feed_error(end, feeder)
    except (DevicesTakenError, PreloadError, ValueError, OSError) as exc:
        error = f"{type(exc).__name__}: {exc}"
        _tell(functools.partial(supervisor.post, "failed"), f"{placement.member}: {error}")
        # A fault of the host's devices stays; a server or a store may come back.
        failure = Failure.LOST if isinstance(exc, OSError) else Failure.EXCEPTION
        failure = Failure.GPU if isinstance(exc, DevicesTakenError) else failure
        failure = Failure.DEADLINE if isinstance(exc, TimeoutError) else failure
        return failed_outcome(error, failure)
    return with_note(_conclude(task, placement, folder, end, supervisor), note)


def _places(task: TrialTask, placement: Placement) -> dict[str, Any]:
    """Return the hosts and endpoints of the first ranks, and what the chief's executor has."""
    ranks = {
        str(member): {"host": peer.host, "endpoint": peer.endpoint}
        # A gang that grows has more members than ranks at first.
        for member, peer in zip(task.plan.members, placement.peers, strict=False)
    }
    # No job has looked at the executors of a gang before: the whole list of the packages.
    return {"host": placement.peers[0].host, "ranks": ranks, "executor": describe({})}


def _run_processes(
    task: TrialTask,
    policy: RankPolicy,
    placement: Placement,
    folder: Path,
    gpus: AssignedGpus,
    supervisor: Supervisor,
    feeder: RowSender | None,
) -> tuple[ProcessExit, str | None]:
    """Return the exit of the last process of the rank, and a remark on an earlier one, if any."""
    member, plan = placement.member, task.plan
    me = {**_context(task, placement), "owns_gpus": gpus.are_own}
    gpus = replace(gpus, environ={**gpus.environ, **policy.environ(task, placement, gpus)})
    limit_s = None if member.role.runs_server else plan.trial_timeout_s
    fence_s = poll_s(placement.paths.folder, remote_s=max(FENCE_S, plan.size / 10))
    fence = attempts.Fence(placement.paths.folder, placement.attempt, fence_s)
    short_lives, driver_watch, note = 0, task.driver_watch(), None
    while True:
        begin_s = time.monotonic()
        with policy.seat(task, placement, folder) as seat:
            if "checkpoint" not in {**me, **seat.me}:
                me["checkpoint"] = _checkpoint(task, placement, folder)
            with task.start_process(
                folder,
                member.log,
                gpus,
                {**me, **seat.me},
                {**feed_sockets(feeder), **seat.sockets},
                member.role.runs_server,
                placement.work,
            ) as process:
                supervisor.began(process.pid)
                watch = functools.partial(_watch, seat, supervisor, fence, driver_watch, process)
                end = process.wait(limit_s, watch)
        if is_repeated(end, task.start, feeder, folder / METRICS):
            start, note = without_preload(end, task.start, folder / member.log)
            task = replace(task, start=start)
            continue
        short_lives = short_lives + 1 if time.monotonic() - begin_s < SHORT_LIFE_S else 0
        if short_lives == MAX_SHORT_LIVES or not policy.restarts(task, placement, end):
            return end, note


def _watch(
    seat: RingSeat,
    supervisor: Supervisor,
    fence: attempts.Fence,
    driver_watch: DriverWatch,
    process: TrainingProcess,
) -> str | None:
    if fence.look():
        return "a later attempt at the trial has started elsewhere"
    return seat.watch() or supervisor.watch(process) or driver_watch()


def _context(task: TrialTask, placement: Placement) -> dict[str, Any]:
    """Return the fields of `Context` that differ between the ranks of a gang."""
    local_rank, local_world_size = local_places(placement.peers, placement.place)
    role = placement.member.role
    return {
        "rank": placement.rank,
        "world_size": task.plan.world_size,
        "num_readers": len(task.plan.readers),
        "peer_timeout_s": task.plan.collective_timeout_s,
        "local_rank": local_rank,
        "local_world_size": local_world_size,
        "role": role.name,
        "index": placement.member.index,
        "strategy": role.strategy,
        "attempt": placement.attempt,
    }


def _checkpoint(task: TrialTask, placement: Placement, folder: Path) -> str | None:
    # All ranks begin with the checkpoint that rank 0 saw.
    number = placement.peers[0].checkpoint
    if number is None:
        return task.initial_checkpoint(folder)
    return checkpoints.fetch(placement.paths.folder, number, str(folder))


def _conclude(
    task: TrialTask,
    placement: Placement,
    folder: Path,
    end: ProcessExit,
    supervisor: Supervisor,
) -> Outcome:
    """Report the end of the rank to the other ranks, and return its outcome."""
    log = placement.member.log
    is_late = (end.stopped or "").startswith(DEADLINE)
    if end.stopped and end.outcome is None and not is_late:
        return Outcome(status=Status.STOPPED, error=end.stopped, usage=end.usage)
    outcome = task.outcome_of(end, folder, log)
    if not placement.is_member():  # The gang goes on with the process that it was to replace.
        error = outcome.error or "its function returned before it had joined the other ranks"
        return Outcome(status=Status.STOPPED, error=error, usage=end.usage)
    topic = "failed" if end.is_failure else "done"
    error = f"{placement.member}: {outcome.error or 'its function has returned'}"
    ended_s = _tell(functools.partial(supervisor.post, topic), error)
    if outcome.status is Status.FAILED:
        failure = Failure.DEADLINE if is_late else _failure(task, placement, end, outcome)
        outcome = replace(outcome, failure=failure)
    elif outcome.is_chief and not attempts.is_superseded(placement.paths.folder, placement.attempt):
        text = to_json(dict(outcome.outputs), indent=1)
        outcome = with_files(outcome, {placement.paths.outputs: text})
    if outcome.is_chief or placement.rank == 0:
        outcome = with_reported(outcome, folder)
    return replace(outcome, ended_s=ended_s)


def _tell(post: Callable[[], T], end: str) -> T:
    """Tell the other ranks that this rank has ended; a store that fails is tried for minutes.

    Raises:
        OSError: if that fails. Spark then ends the other ranks, which would wait without limit.
    """
    try:
        return retry(post, "tell the other ranks that this rank has ended")
    except OSError as exc:
        raise OSError(
            f"a rank could not tell the other ranks in the run directory that it has ended: {exc}. "
            f"Check the store or the disk of the run directory. The end of the rank was: {end}"
        ) from exc


def _failure(
    task: TrialTask, placement: Placement, end: ProcessExit, outcome: Outcome
) -> Failure | None:
    """Return the kind of a rank's failure, which decides whether the gang is started again."""
    is_server = placement.member.role.runs_server
    if is_server and end.outcome is None and outcome.failure is Failure.SIGNAL:
        return Failure.LOST  # Not the user's function, but a server of ours.
    if outcome.failure is Failure.PORT and (
        task.plan.framework in SHARES_PORT or not task.plan.repeatable
    ):
        return Failure.EXCEPTION  # The ports of the gang were held: it was one of the program's.
    return outcome.failure
