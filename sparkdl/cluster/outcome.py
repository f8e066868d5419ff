"""Runs anywhere (pure). The outcome of a training process, from its end to the journal.

An `Outcome` is made in the training process, completed by the Spark task around it, carried to the
driver as JSON in the row of that task, and turned into an event of the journal there.
"""

import base64
import json
import re
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sparkdl.runs.states import Failure, TextEnum

# In place of the id of an executor: the only one of embedded Spark, which has none.
EMBEDDED = "embedded"

# Errors of a rank whose peer has gone. The failure of that peer is the one to report.
_FOLLOW_UP = re.compile(
    r"UnavailableError|AbortedError|CancelledError|DeadlineExceededError|Connection reset by peer|"
    r"Connection refused|Connection closed by peer|tasks are unhealthy|DistNetworkError|"
    r"DistBackendError|Gloo|BrokenPipeError|ConnectionResetError|PeerLostError"
)
# The first line of an error inside a function of TensorFlow; the error itself stands further below.
_IN_GRAPH = "Graph execution error"
_GPU = re.compile(
    r"CUDA_ERROR|cudaError|CUDA error|CUDNN_STATUS|CUBLAS_STATUS|NCCL (error|operation)|"
    r"ncclSystemError|ncclUnhandledCudaError|Xid \d|GPU (is )?lost|fallen off the bus"
)
_GPU_MEMORY = re.compile(r"ResourceExhaustedError|CUDA_ERROR_OUT_OF_MEMORY|OutOfMemoryError")
_PORT_TAKEN = re.compile(r"Address already in use|EADDRINUSE|Could not start gRPC server")


class Status(TextEnum):
    """The way in which a training process ended.

    RETURNED: the training function returned. FAILED: it raised, or its process died or could not
    be started. INVALID: it raised `InvalidTrial`. PRUNED: it raised `TrialPruned`. STOPPED: the
    process was ended because of the other ranks of its gang. REFUSED: the executor cannot run the
    trial. DETACHED: the process goes on after its Spark task.
    """

    RETURNED = "returned"
    FAILED = "failed"
    INVALID = "invalid"
    PRUNED = "pruned"
    STOPPED = "stopped"
    REFUSED = "refused"
    DETACHED = "detached"


@dataclass(frozen=True, kw_only=True)
class RankInfo:
    """The rank of a gang that an outcome belongs to.

    Attributes:
        rank: the number of the rank, from 0.
        role: the name of the role with the index in it, such as `worker 1`.
        host: the name of the host.
    """

    rank: int
    role: str
    host: str

    def __str__(self) -> str:
        return f"{self.role} (rank {self.rank}) on host {self.host}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one training process.

    Attributes:
        status: the way in which the process ended.
        outputs: the values that the training function returned, by name; JSON values only.
        shape: the shape of the returned value, see `Trial.result`; None if unknown.
        is_chief: the outputs are those of the chief, which are the outputs of the trial.
        error: the error message, or the reason of a STOPPED or REFUSED process.
        traceback: the traceback of the user's code, until the task has added it to `error`.
        failure: the kind of a failure.
        exception: the user's exception, pickled.
        usage: seconds, CPU seconds and MiB, by the names of the fields of `runs.Usage`.
        reported: the last value of each metric that was reported.
        attempt: the number of the attempt, from 0.
        who: the rank; None for a trial of a single process.
        host: the name of the host; None for a gang.
        ended_s: the time of the end, in seconds since 1970.
        copy_on: the id of the executor, or `EMBEDDED`, if it has a copy of the rows of the run for
            further trials; None if it has not.
        note: a remark about a result that is complete, such as files that could not be copied, or a
            returned object that was not kept.

    Example:
        >>> outcome = Outcome(status=Status.RETURNED, outputs={"accuracy": 0.9})
        >>> Outcome.from_json(outcome.to_json()) == outcome
        True
    """

    status: Status
    outputs: Mapping[str, Any] = field(default_factory=dict)
    shape: str | None = None
    is_chief: bool = False
    error: str | None = None
    traceback: str | None = None
    failure: Failure | None = None
    exception: bytes | None = field(default=None, repr=False)
    usage: Mapping[str, float] = field(default_factory=dict)
    reported: Mapping[str, float] = field(default_factory=dict)
    attempt: int = 0
    who: RankInfo | None = None
    host: str | None = None
    ended_s: float = 0.0
    copy_on: str | None = None
    note: str | None = None

    @property
    def is_failure(self) -> bool:
        """True if the training function did not return: it raised, was pruned, or died."""
        return self.status in (Status.FAILED, Status.INVALID, Status.PRUNED)

    def without_exception(self) -> "Outcome":
        """Return this outcome without the pickled exception, for files that others can write."""
        return replace(self, exception=None)

    def to_json(self) -> str:
        """Return the outcome as JSON text; the pickled exception is encoded in base64."""
        fields = asdict(self)
        if self.exception is not None:
            fields["exception"] = base64.b64encode(self.exception).decode()
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Outcome":
        """Create an outcome from the text that `to_json` returned."""
        fields: dict[str, Any] = json.loads(text)
        fields["status"] = Status(fields["status"])
        if fields["failure"] is not None:
            fields["failure"] = Failure(fields["failure"])
        if fields["exception"] is not None:
            fields["exception"] = base64.b64decode(fields["exception"])
        if fields["who"] is not None:
            fields["who"] = RankInfo(**fields["who"])
        return cls(**fields)


@dataclass(frozen=True, kw_only=True)
class ProcessExit:
    """The exit of a training process.

    Attributes:
        code: the exit code, or the negative number of the signal that killed the process.
        outcome: the outcome that the process sent before it ended; None if it sent none.
        starting_s: seconds until the training function was called.
        running_s: seconds in the training function.
        cpu_s: CPU seconds, from the process that reaped this one, see wait4(2).
        peak_memory_mb: the largest resident size in MiB, from wait4(2).
        out_of_memory: the kernel killed a process for memory in the meantime.
        importing: a fault of native code, such as SIGABRT, killed the process during an import.
        timed_out: the process was killed because it ran for too long.
        late: the process was killed because its function was not called in time.
        unkillable: the reason for which a process that was killed is still there; None if it ended.
        stopped: the reason for which the process was killed by its watcher; None if it was not.
    """

    code: int
    outcome: Outcome | None = None
    starting_s: float = 0.0
    running_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_mb: float = 0.0
    out_of_memory: bool = False
    importing: bool = False
    timed_out: bool = False
    late: bool = False
    unkillable: str | None = None
    stopped: str | None = None

    @property
    def is_failure(self) -> bool:
        """True if the training function did not return."""
        return self.outcome is None or self.outcome.is_failure

    @property
    def usage(self) -> dict[str, float]:
        """The resources that the process used, as `Outcome.usage` holds them."""
        measured = self.outcome.usage if self.outcome else {}
        used = {
            "starting_s": self.starting_s,
            # The task hears a moment late that the function runs.
            "running_s": max(self.running_s, measured.get("first_step_s", 0.0)),
            "cpu_s": self.cpu_s,
            "peak_memory_mb": self.peak_memory_mb,
        }
        return {name: round(value, 4) for name, value in {**used, **measured}.items()}


def describe_exit(end: ProcessExit, timeout_s: float | None) -> str:
    """Return a sentence that explains why a process sent no outcome.

    Args:
        end: the exit of the process.
        timeout_s: the limit of the trial, in seconds.

    Example:
        >>> end = ProcessExit(code=-9, peak_memory_mb=900, out_of_memory=True)
        >>> print(describe_exit(end, None))  # doctest: +ELLIPSIS
        killed by SIGKILL: the host ran out of memory (this process used up to 900 MiB). Raise ...
        >>> describe_exit(ProcessExit(code=3), None)
        'the process ended itself with exit code 3 (os._exit) before its function returned'
    """
    if end.timed_out:
        return f"ended after trial_timeout_s={timeout_s:g} seconds"
    if end.code >= 0:
        return (
            f"the process ended itself with exit code {end.code} (os._exit) "
            "before its function returned"
        )
    names = {number.value: number.name for number in signal.Signals}
    name = names.get(-end.code, f"signal {-end.code}")
    if -end.code == signal.SIGKILL and end.out_of_memory:
        return (
            f"killed by {name}: the host ran out of memory "
            f"(this process used up to {end.peak_memory_mb:.0f} MiB). Raise "
            "spark.executor.memoryOverhead, which a training process lives in, or use smaller "
            "batches"
        )
    when = " while it imported a module" if end.importing else ""
    return f"killed by {name}{when} (this process used up to {end.peak_memory_mb:.0f} MiB)"


def classify_failure(end: ProcessExit) -> Failure:
    """Return the kind of a failure.

    Example:
        >>> text = "InternalError: CUDA_ERROR_ILLEGAL_ADDRESS"
        >>> outcome = Outcome(status=Status.FAILED, error=text)
        >>> classify_failure(ProcessExit(code=0, outcome=outcome))
        <Failure.GPU: 'GPU fault'>
    """
    if end.outcome is not None:
        error = end.outcome.error or ""
        text = f"{error}\n{end.outcome.traceback}"
        if _PORT_TAKEN.search(text):
            return Failure.PORT
        if _GPU_MEMORY.search(text) or error.startswith("MemoryError"):
            return Failure.MEMORY
        return Failure.GPU if _GPU.search(text) else Failure.EXCEPTION
    if end.timed_out:
        return Failure.TIMEOUT
    if end.late:
        return Failure.DEADLINE
    if end.code >= 0:
        return Failure.EXIT
    killed_for_memory = -end.code == signal.SIGKILL and end.out_of_memory
    return Failure.MEMORY if killed_for_memory else Failure.SIGNAL


def is_follow_up(error: str) -> bool:
    """Return True if an error only reports that another rank has gone.

    Args:
        error: the message of the error with its traceback, as `Outcome.error` has it.

    Example:
        >>> is_follow_up("UnavailableError: recvmsg:Connection reset by peer")
        True
        >>> is_follow_up("ValueError: no")
        False
    """
    first_line = error.partition("\n")[0]
    if _IN_GRAPH in first_line:
        return bool(_FOLLOW_UP.search(error))
    # An exception that the user's program raised because of a lost peer follows from the loss too.
    return bool(_FOLLOW_UP.search(first_line)) or "errors.PeerLostError: " in error
