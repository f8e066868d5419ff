"""Runs in a Spark task. Run one rank of a gang.

The ranks meet, then each task runs its training process with the variables by which it finds the
others. An exception in the function of one rank is an outcome, as in a trial; the other tasks see
it in the run directory and end their processes.
"""

import contextlib
import functools
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext

from sparkdl import checkpoints, storage
from sparkdl.cluster.gang.placement import Placement, RingSeat
from sparkdl.cluster.gang.policies import SHARES_PORT, RankPolicy
from sparkdl.cluster.gang.rendezvous import deadline, local_places
from sparkdl.cluster.gang.supervisor import DEADLINE, Supervisor
from sparkdl.cluster.gpus.locks import DevicesTakenError
from sparkdl.cluster.outcome import Outcome, ProcessExit, RankInfo, Status
from sparkdl.cluster.plan import Member
from sparkdl.cluster.preflight import spare_collector
from sparkdl.cluster.process.training_process import TrainingProcess
from sparkdl.cluster.process.trial_folder import again, last_reported, local_folder
from sparkdl.cluster.trial_task import (
    TrialTask,
    exhaust,
    feed_sockets,
    outcome_row,
    with_feed_error,
)
from sparkdl.data.dataframe.sender import RowSender
from sparkdl.jsonl import to_json
from sparkdl.rank_files import RankFiles
from sparkdl.runs.layout import TrialPaths
from sparkdl.runs.states import Failure

__all__ = ["RankTask", "failed_outcome", "identified", "run_rank", "supervise_rank"]

# A server is started again each time it is killed, unless it dies at once this many times.
SHORT_LIFE_S = 5.0
MAX_SHORT_LIVES = 3

T = TypeVar("T")


@dataclass(frozen=True)
class RankTask:
    """Run one rank; Spark calls the task in a Python worker with the batches of its partition.

    Attributes:
        task: the trial.
        policy: the decisions that differ between kinds of ranks.
    """

    task: TrialTask
    policy: RankPolicy

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the rank and yield its outcome as one row of `OUTCOME_SCHEMA`."""
        if self.task.feed is None:
            exhaust(batches)
        spare_collector()
        member = self.task.plan.members[TaskContext.get().partitionId()]
        yield outcome_row(run_rank(self.task, self.policy, member, batches))


def run_rank(
    task: TrialTask,
    policy: RankPolicy,
    member: Member,
    batches: Iterable[pa.RecordBatch] = (),
) -> Outcome:
    """Meet the other ranks, run the training process of a rank, return its outcome.

    Args:
        task: the trial.
        policy: the decisions that differ between kinds of ranks.
        member: the rank and its role.
        batches: the rows of the rank's partition.
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
    task: TrialTask, policy: RankPolicy, placement: Placement, batches: Iterable[pa.RecordBatch]
) -> Outcome:
    with (
        local_folder(placement.paths) as folder,
        task.feeding(batches, placement.rank) as feeder,
    ):
        outcome = supervise_rank(task, policy, placement, folder, feeder)
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
    local.mkdir(parents=True, exist_ok=True)
    supervisor = Supervisor(task.plan, placement.rank, placement.files, local)
    try:
        if placement.rank == 0:
            task.begin(placement.attempt, _places(task, placement))
        with policy.gpus(task, placement, supervisor) as visible:
            end = _run_processes(task, policy, placement, folder, visible, supervisor, feeder)
            end = with_feed_error(end, feeder)
    except (DevicesTakenError, ValueError, OSError) as exc:
        error = f"{type(exc).__name__}: {exc}"
        _tell(functools.partial(supervisor.post, "failed"), f"{placement.member}: {error}")
        # A fault of the host's devices stays; a server or a store may come back.
        failure = Failure.LOST if isinstance(exc, OSError) else Failure.GPU
        failure = Failure.DEADLINE if isinstance(exc, TimeoutError) else failure
        return failed_outcome(error, failure)
    return _conclude(task, placement, folder, end, supervisor)


def _places(task: TrialTask, placement: Placement) -> dict[str, Any]:
    """Return the hosts and endpoints of all ranks, for the file of the attempt."""
    ranks = {
        str(member): {"host": peer.host, "endpoint": peer.endpoint}
        for member, peer in zip(task.plan.members, placement.peers, strict=True)
    }
    return {"host": placement.peers[0].host, "ranks": ranks}


def _run_processes(
    task: TrialTask,
    policy: RankPolicy,
    placement: Placement,
    folder: Path,
    visible: Mapping[str, str],
    supervisor: Supervisor,
    feeder: RowSender | None,
) -> ProcessExit:
    member, plan = placement.member, task.plan
    me = _context(task, placement)
    environ = {**visible, **policy.environ(task, placement)}
    limit_s = None if member.role.runs_server else plan.trial_timeout_s
    short_lives = 0
    while True:
        begun = time.monotonic()
        with policy.seat(task, placement, folder) as seat:
            if "checkpoint" not in {**me, **seat.me}:
                me["checkpoint"] = _checkpoint(task, placement, folder)
            with task.start_process(
                folder,
                member.log,
                environ,
                {**me, **seat.me},
                {**feed_sockets(feeder), **seat.sockets},
                member.role.runs_server,
            ) as process:
                supervisor.began(process.pid)
                end = process.wait(limit_s, functools.partial(_watch, seat, supervisor, process))
        short_lives = short_lives + 1 if time.monotonic() - begun < SHORT_LIFE_S else 0
        if short_lives == MAX_SHORT_LIVES or not policy.restarts(task, placement, end):
            return end


def _watch(seat: RingSeat, supervisor: Supervisor, process: TrainingProcess) -> str | None:
    return seat.watch() or supervisor.watch(process)


def _context(task: TrialTask, placement: Placement) -> dict[str, Any]:
    """Return the fields of `Context` that differ between the ranks of a gang."""
    local_rank, local_world_size = local_places(placement.peers, placement.rank)
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
    topic = "failed" if end.is_failure else "done"
    error = f"{placement.member}: {outcome.error or 'its function has returned'}"
    ended_s = _tell(functools.partial(supervisor.post, topic), error)
    if outcome.status is Status.FAILED:
        failure = Failure.DEADLINE if is_late else _failure(task, placement, end, outcome)
        outcome = replace(outcome, failure=failure)
    elif outcome.is_chief and placement.attempt == placement.paths.num_attempts() - 1:
        storage.write(placement.paths.outputs, to_json(dict(outcome.outputs), indent=1))
    if outcome.is_chief or placement.rank == 0:
        reported = last_reported(storage.join(str(folder), "metrics.jsonl"))
        outcome = replace(outcome, reported=reported)
    return replace(outcome, ended_s=ended_s)


def _tell(post: Callable[[], T], end: str) -> T:
    """Tell the other ranks that this rank has ended, again and again for a while.

    Raises:
        OSError: if that fails. Spark then ends the other ranks, which would wait without limit.
    """
    try:
        return again(post)
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
