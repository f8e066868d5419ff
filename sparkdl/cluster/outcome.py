"""Runs anywhere. How a training process ended, and what that means."""

import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkdl.runs.states import Failure

__all__ = ["End", "describe_end", "failed", "failure_of", "is_follow_up", "says_failure"]

# What a rank says when another one has gone: the other's failure is the one to tell of.
_FOLLOW_UP = re.compile(
    r"UnavailableError|AbortedError|CancelledError|DeadlineExceededError|Connection reset by peer|"
    r"Connection refused|Connection closed by peer|tasks are unhealthy|DistNetworkError|"
    r"DistBackendError|Gloo|BrokenPipeError|ConnectionResetError|PeerLostError"
)
_GPU = re.compile(
    r"CUDA_ERROR|cudaError|CUDA error|CUDNN_STATUS|CUBLAS_STATUS|NCCL (error|operation)|"
    r"ncclSystemError|ncclUnhandledCudaError|Xid \d"
)
_GPU_MEMORY = re.compile(r"ResourceExhaustedError|CUDA_ERROR_OUT_OF_MEMORY|OutOfMemoryError")
_PORT_TAKEN = re.compile(r"Address already in use|EADDRINUSE|Could not start gRPC server")


@dataclass(frozen=True)
class End:
    """How a training process ended.

    Attributes:
        code: its exit code, or the negative number of the signal that ended it.
        outcome: what it said of its function before it ended, None if nothing.
        starting_s, running_s: seconds until and in its function.
        cpu_s, peak_memory_mb: from the process that reaped it, see wait4(2).
        out_of_memory: the kernel killed some process for memory meanwhile.
        timed_out: we ended it as it ran too long.
        stopped: why whoever watched it had it ended, None if nobody did.
    """

    code: int
    outcome: dict[str, Any] | None
    starting_s: float
    running_s: float
    cpu_s: float = 0.0
    peak_memory_mb: float = 0.0
    out_of_memory: bool = False
    timed_out: bool = False
    stopped: str | None = None

    @property
    def is_failure(self) -> bool:
        """Whether the function did not return, or raised."""
        return self.outcome is None or says_failure(self.outcome)


def says_failure(outcome: Mapping[str, Any]) -> bool:
    """Whether a function ended by an exception, by what its process, or its task, said of it.

    Example:
        >>> says_failure({"outputs": {}}), says_failure({"invalid": "too large"})
        (False, True)
    """
    return not outcome.keys().isdisjoint(("error", "invalid", "pruned"))


def failed(error: str, failure: Failure) -> dict[str, Any]:
    """What is said of a rank that never came to run its function."""
    said = {"error": f"{error}\n", "failure": str(failure), "ended_s": time.time()}
    return {**said, "usage": {}}


def describe_end(end: End, timeout_s: float | None) -> str:
    """Why there is no outcome, in a sentence.

    Example:
        >>> end = End(-9, None, 0.1, 2.0, peak_memory_mb=900, out_of_memory=True)
        >>> print(describe_end(end, None))  # doctest: +ELLIPSIS
        killed by SIGKILL: the host ran out of memory (this process used up to 900 MiB). Raise ...
        >>> describe_end(End(3, None, 0.1, 2.0), None)
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
    return f"killed by {name} (this process used up to {end.peak_memory_mb:.0f} MiB)"


def failure_of(end: End) -> Failure:
    """The kind of a failed end.

    Example:
        >>> failure_of(End(0, {"error": "InternalError: CUDA_ERROR_ILLEGAL_ADDRESS"}, 0.1, 2.0))
        <Failure.GPU: 'GPU fault'>
    """
    if end.outcome is not None:
        text = f"{end.outcome.get('error')}\n{end.outcome.get('traceback')}"
        if _PORT_TAKEN.search(text):
            return Failure.PORT
        if _GPU_MEMORY.search(text) or end.outcome.get("error", "").startswith("MemoryError"):
            return Failure.MEMORY
        return Failure.GPU if _GPU.search(text) else Failure.EXCEPTION
    if end.timed_out:
        return Failure.TIMEOUT
    if end.code >= 0:
        return Failure.EXIT
    killed_for_memory = -end.code == signal.SIGKILL and end.out_of_memory
    return Failure.MEMORY if killed_for_memory else Failure.SIGNAL


def is_follow_up(error: str) -> bool:
    """Whether an error only says that another rank has gone.

    Example:
        >>> is_follow_up("UnavailableError: recvmsg:Connection reset by peer")
        True
    """
    return bool(_FOLLOW_UP.search(error))
