"""Runs in a Spark task. The outcome of a task that failed around its training process."""

import socket
import traceback

from sparkdl.cluster.gpus.locks import DevicesTakenError
from sparkdl.cluster.outcome import Outcome, ProcessExit, Status
from sparkdl.cluster.process.training_process import StartTimeoutError
from sparkdl.runs.states import Failure

__all__ = ["failure_of_task"]


def failure_of_task(exc: Exception) -> Outcome:
    """Return the outcome of a trial whose task raised an exception, told as what it was.

    Example:
        >>> failure_of_task(ConnectionError("the daemon has died")).failure
        <Failure.LOST: 'lost executor'>
        >>> failure_of_task(DevicesTakenError("2 GPUs were asked for")).error.splitlines()[0]
        '2 GPUs were asked for'
    """
    if isinstance(exc, DevicesTakenError):
        error, failure = f"{exc}\n", Failure.GPU
    else:
        trace = "".join(traceback.format_exception(exc))
        error = f"{type(exc).__name__}: {exc} (on host {socket.gethostname()})\n\n{trace}"
        # A fault of a host or of a store may be gone in another attempt.
        failure = Failure.LOST if isinstance(exc, OSError) else Failure.EXCEPTION
        failure = Failure.DEADLINE if isinstance(exc, StartTimeoutError) else failure
    usage = ProcessExit(code=0).usage
    return Outcome(status=Status.FAILED, error=error, failure=failure, usage=usage)
