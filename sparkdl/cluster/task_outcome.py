"""Runs in a Spark task. Complete the outcome of a training process, or make one for the task."""

import contextlib
import functools
import os
import socket
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdl.cluster.arrow_row import arrow_row
from sparkdl.cluster.gpus.locks import DevicesTakenError
from sparkdl.cluster.outcome import Outcome, ProcessExit, Status
from sparkdl.cluster.process.training_process import StartTimeoutError
from sparkdl.cluster.process.trial_folder import WRITE_S, last_reported
from sparkdl.data.dataframe.sender import RowSender
from sparkdl.files import storage
from sparkdl.files.layout import METRICS
from sparkdl.files.polling import retry
from sparkdl.runs.states import Failure
from sparkdl.secrets.masks import mask_text

if TYPE_CHECKING:
    import pyarrow as pa

# What a failure shows of the log of a process.
TAIL_LINES = 20
TAIL_BYTES = 1 << 16


def failure_of_task(exc: Exception) -> Outcome:
    """Return the outcome of a trial whose task raised an exception, told as what it was.

    Example:
        >>> failure_of_task(ConnectionError("the daemon has died")).failure
        <Failure.LOST: 'lost executor'>
        >>> failure_of_task(DevicesTakenError("2 GPUs were asked for")).error.splitlines()[0]
        '2 GPUs were asked for'
    """
    if isinstance(exc, DevicesTakenError):
        error = f"{exc}\n"
        failure = Failure.GPU
    else:
        trace = "".join(traceback.format_exception(exc))
        error = f"{type(exc).__name__}: {exc} (on host {socket.gethostname()})\n\n{trace}"
        # A fault of a host or of a store may be gone in another attempt.
        failure = Failure.LOST if isinstance(exc, OSError) else Failure.EXCEPTION
        failure = Failure.DEADLINE if isinstance(exc, StartTimeoutError) else failure
    usage = ProcessExit(code=0).usage
    return Outcome(status=Status.FAILED, error=error, failure=failure, usage=usage)


def with_reported(outcome: Outcome, folder: Path) -> Outcome:
    """Return the outcome with the last value of each metric that the trial has reported."""
    last_values: dict[str, float] = {}
    with contextlib.suppress(OSError):  # The process has sent what it reported itself.
        last_values = last_reported(storage.join(str(folder), METRICS))
    return replace(outcome, reported={**last_values, **outcome.reported})


def with_files(outcome: Outcome, files: Mapping[str, str]) -> Outcome:
    """Write results of a trial into the run directory; return the outcome, with a note if it fails.

    The outcome is also a row of the Spark job: training is not repeated for a file.
    """
    for url, text in files.items():
        write = functools.partial(storage.write, url, text)
        try:
            # A store that did not take other files for minutes is not waited for again.
            retry(write, "write the results of a trial", 0.0 if outcome.note else WRITE_S)
        except OSError as exc:
            note = f"{url} could not be written ({type(exc).__name__}: {exc})"
            outcome = with_note(outcome, note)
    return outcome


def with_note(outcome: Outcome, note: str | None) -> Outcome:
    """Return the outcome with one more remark, if there is one."""
    return replace(outcome, note="; ".join(filter(None, (outcome.note, note))) or None)


def with_feed_error(end: ProcessExit, feeder: RowSender | None) -> ProcessExit:
    """Return the exit, as a failure if the process did not receive all rows sent to it."""
    if end.is_failure or not feeder or not feeder.problem:
        return end
    return replace(end, outcome=Outcome(status=Status.FAILED, error=feeder.problem))


def outcome_row(outcome: Outcome) -> "pa.RecordBatch":
    """Return an outcome as the one row that a task yields to Spark."""
    return arrow_row({"outcome": outcome.to_json()})


def files_in(folder: Path, outputs: Mapping[str, Any]) -> set[str]:
    """Return the outputs that are paths of files in the folder of the trial."""
    texts = {value for value in outputs.values() if isinstance(value, str) and value}
    return {text for text in texts if os.path.exists(folder / text)}


def log_tail(log: str) -> str:
    """Return the last lines of the local log of a training process."""
    path = storage.local_path(log)
    data = storage.read(log, max(0, path.stat().st_size - TAIL_BYTES))
    lines = data.decode(errors="replace").splitlines()
    return "\n".join(lines[-TAIL_LINES:]) or "(nothing was printed)"


def without_secrets(exception: bytes | None, secrets: tuple[str, ...]) -> bytes | None:
    """Return a pickled exception; None if it contains a secret, as a pickle cannot be masked."""
    text = (exception or b"").decode(errors="ignore")
    return exception if mask_text(text, secrets) == text else None
