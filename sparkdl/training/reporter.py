"""Runs in the training process. Exchange messages with the driver through files.

The training process appends its reports and its requests; the driver appends its orders and
answers. All files are in the trial's folder and hold one JSON object per line. The Spark task makes
them before the process starts.
"""

import contextlib
import functools
import json
import logging
import math
import operator
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkdl.errors import TrialPruned
from sparkdl.files import jsonl, storage
from sparkdl.files.layout import ASKS, METRICS, ORDERS

# An answer takes a second, or several on a remote store; later than this, it is a failure.
ANSWER_TIMEOUT_S = 600.0
POLL_S = 0.005
# A look for messages costs as much as the rest of a report. A trial that reports after each batch
# looks at most this often, but for the first looks.
LOOK_S = 0.1
FREE_LOOKS = 100

_logger = logging.getLogger("sparkdl.training")


def as_metrics(value: float | Mapping[str, float | None]) -> dict[str, float]:
    """Return the numbers of a report by name, without those that are None.

    Raises:
        TypeError: if a value is not a number.
    """
    if not isinstance(value, Mapping):
        return {"value": _as_number("value", value)}
    return {
        str(name): _as_number(name, number) for name, number in value.items() if number is not None
    }


def _as_number(name: str, value: Any) -> float:
    try:
        # A loss of PyTorch still has its gradient: float() would warn.
        value = value.detach() if hasattr(value, "detach") else value
        if getattr(value, "shape", ()) and math.prod(value.shape) == 1:
            # A tensor or an array with one number. Those of TensorFlow have no `item`.
            value = (value if hasattr(value, "item") else value.__array__()).item()
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"context.report got {name}={value!r} of type {type(value).__name__}; expected a "
            "number, or a dict of numbers by name."
        ) from None


def as_step(step: Any) -> int:
    """Return a step as a whole number, also where it has another type, such as an array's.

    Raises:
        ValueError: if it is not a whole number.
    """
    if type(step) is int:
        return step
    with contextlib.suppress(TypeError):
        return operator.index(step)
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if float(step).is_integer():
            return int(step)
    raise ValueError(
        f"context.report got {step=}; expected a whole number, such as the number of the epoch or "
        "of the batch. Parts of an epoch: report the number of the batch."
    )


def report_line(step: int, metrics: Mapping[str, float]) -> str:
    """Return the line of a report, which `jsonl.to_json` writes too, in a fraction of its time.

    Example:
        >>> report_line(3, {"loss": 0.5}), report_line(3, {"loss": float("nan")})
        ('{"step": 3, "metrics": {"loss": 0.5}}', \
'{"step": 3, "metrics": {"loss": {"$float": "nan"}}}')
    """
    if not all(map(math.isfinite, metrics.values())):
        return jsonl.to_json({"step": step, "metrics": metrics})
    numbers = ", ".join([f"{_quoted(name)}: {float(number)!r}" for name, number in metrics.items()])
    return f'{{"step": {step}, "metrics": {{{numbers}}}}}'


_quoted = functools.lru_cache(maxsize=1024)(json.dumps)


class LineFile:
    """A file of lines with one writer, on a disk that may be full for a while.

    Each line is one unbuffered write, so that a kill loses no line. Lines that the disk does not
    take are written with the next line, so that no line is lost or torn and training goes on.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._unwritten = b""

    def write(self, line: str) -> None:
        """Add a line, after the lines that could not be written before."""
        had_failed = bool(self._unwritten)
        self._unwritten += line.encode() + b"\n"
        try:
            self.flush()
        except OSError as exc:
            if not had_failed:
                _logger.warning(
                    "failed to write to %s: %s. Free space on that disk: the line is written with "
                    "the next one.",
                    self._path,
                    exc,
                )

    def flush(self) -> None:
        """Write the lines that could not be written before.

        Raises:
            OSError: if the disk does not take them.
        """
        if self._unwritten and self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            # A notebook, which calls functions in its own process, would collect open files.
            weakref.finalize(self, os.close, self._file).atexit = False
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                # A process of this attempt was killed while the disk was full.
                self._unwritten = b"\n" + self._unwritten
        while self._unwritten and self._file is not None:
            self._unwritten = self._unwritten[os.write(self._file, self._unwritten) :]


def make_files(trial: str) -> None:
    """Make the files of reports, requests and orders of a trial, empty, on a mounted disk.

    An NFS client that has looked for a missing file may not see the file for a minute: the driver
    looks for these files once the trial has started.

    Args:
        trial: the folder of the trial. Stores need no empty files.
    """
    for name in (METRICS, ASKS, ORDERS) if storage.is_local(trial) else ():
        storage.append(storage.join(trial, name), b"")


class Rungs:
    """The reports after which a trial asks the driver whether it goes on.

    A step that was reported before does not count again, as in `search.pruners.ReportNumbers`. If
    Spark repeats a task by itself, the reports of the lost process are not counted here: the trial
    asks later, and the driver, which has counted them, decides by the values at the rungs.

    Args:
        rungs: the numbers of the reports.
        reported: the number of the reports of earlier attempts, and the step of the last one.
        metrics: the names of the metrics; reports count once a step has a value of each. A number
            without a name is a value of the first one.

    Example:
        >>> rungs = Rungs([2], (0, -1), ["loss"])
        >>> [rungs.is_due({"loss": 0.5}, step, has_checkpoint=True) for step in (0, 1, 2)]
        [False, True, False]
    """

    def __init__(
        self, rungs: Sequence[int], last_report: Sequence[int], metrics: Sequence[str | None]
    ) -> None:
        self._rungs = frozenset(rungs)
        self._count, self._step = last_report
        self._metrics = [name or "value" for name in metrics]
        # The metrics that were reported at the newest step, and this step.
        self._names: set[str] = set()
        self._newest_step = -1
        self._step_of_rung: int | None = None

    def is_due(self, metrics: Mapping[str, float], step: int, has_checkpoint: bool) -> bool:
        """Count a report, and return True if it is time to ask.

        A trial that pauses goes on from its checkpoint. Where one call reports and a later call
        commits, as two callbacks of Keras do, the trial asks after the later one.
        """
        is_later = self._step_of_rung is not None and step > self._step_of_rung
        self._names = {*metrics, *(self._names if step == self._newest_step else ())}
        self._newest_step = step
        if "value" in self._names:
            self._names.add(self._metrics[0])
        if step > self._step and self._names.issuperset(self._metrics):
            self._step = step
            self._count += 1
            if self._count in self._rungs:
                self._step_of_rung = step
        is_due = is_later or (self._step_of_rung is not None and has_checkpoint)
        if is_due:
            self._step_of_rung = None
        return is_due


class Reporter:
    """Writes the reports and requests of this process, and reads the driver's messages.

    Args:
        folder: local folder of the trial; None outside a run.
        name: name of the file of reports.
        can_be_stopped: the driver can stop this process, as in a search.
        attempt: number of the attempt at the trial; answers to other attempts are ignored.
        prints: print the reports, also if there is a folder.
        rungs: the reports after which the process asks whether the trial goes on.

    Attributes:
        spent_s: seconds spent in `write`.
        first_s: time of the first call of `write`, on the monotonic clock; 0 before.
        step: the last step; -1 before the first report.
        metrics: the last number of each metric.
    """

    def __init__(
        self,
        folder: Path | None,
        name: str,
        can_be_stopped: bool,
        attempt: int = 0,
        prints: bool = False,
        rungs: Rungs | None = None,
    ) -> None:
        self._attempt = attempt
        self._prints = prints or folder is None
        self._rungs = rungs
        # Opened by the first report or request, because many trials have none.
        self._reports = LineFile(folder / name) if folder else None
        self._asks = LineFile(folder / ASKS) if folder else None
        self._messages = jsonl.Tail()
        self._message_files = [str(folder / ORDERS)] if folder and can_be_stopped else []
        self._looked_s = 0.0
        self._num_soon = 0
        self._answers: dict[str, dict[str, Any]] = {}
        self._num_requests = 0
        self._num_reports = 0
        self._is_stopped = False
        self._is_leaving = False
        self.step = -1
        self.metrics: dict[str, float] = {}
        self.spent_s = 0.0
        self.first_s = 0.0

    def continue_after(self, step: int) -> None:
        """Count steps from `step` on, unless a later step was reported."""
        self.step = max(self.step, step)

    def write(self, metrics: dict[str, float], step: int | None) -> None:
        """Report metrics.

        Args:
            metrics: numbers by name.
            step: number of the step; None for the step after the last one.
        """
        begin_s = time.monotonic()
        self.first_s = self.first_s or begin_s
        self.step = self.step + 1 if step is None else int(step)
        self.metrics |= metrics
        if self._prints and metrics:
            text = ", ".join(f"{name}={number:g}" for name, number in metrics.items())
            print(f"step {step}: {text}" if step is not None else text)
        if self._reports is not None:
            self._reports.write(report_line(self.step, metrics))
            self._num_reports += 1
        self.spent_s += time.monotonic() - begin_s

    def report(self, metrics: dict[str, float], step: int) -> None:
        """Report metrics, and raise an exception if the trial does not go on.

        Raises:
            TrialPruned: if the trial is stopped or paused.
        """
        self.write(metrics, step)
        self.raise_if_paused(metrics, has_checkpoint=False)
        self.raise_if_stopped()

    def raise_if_stopped(self) -> None:
        """Raise an exception if the driver has stopped this trial.

        Raises:
            TrialPruned: if the trial is stopped.
        """
        if self.is_stopped():
            raise TrialPruned(f"the search stopped this trial at step {self.step}")

    def raise_if_paused(self, metrics: dict[str, float], has_checkpoint: bool) -> None:
        """Ask the driver at a rung whether the trial goes on.

        Args:
            metrics: the numbers of the last report.
            has_checkpoint: a checkpoint was committed with this report.

        Raises:
            TrialPruned: if the trial is paused.
        """
        is_due = self._rungs and self._rungs.is_due(metrics, self.step, has_checkpoint)
        if is_due and not self.ask(rung=self.step):
            raise TrialPruned(f"the search paused this trial at step {self.step}")

    def is_stopped(self) -> bool:
        """Return True if the driver has stopped this trial."""
        self._look()
        return self._is_stopped

    def is_leaving(self) -> bool:
        """Return True if the executor of this process is about to end."""
        self._look()
        return self._is_leaving

    def _look(self) -> None:
        if self._is_time_to_look():
            self._read_messages()

    def _read_messages(self) -> None:
        for _, message in self._messages.read(self._message_files):
            self._is_stopped = self._is_stopped or "stop" in message
            self._is_leaving = self._is_leaving or "notice" in message
            if "id" in message:
                self._answers[message["id"]] = message

    def _is_time_to_look(self) -> bool:
        """Return True unless this process looks for messages in very short intervals."""
        now_s = time.monotonic()
        is_soon = now_s - self._looked_s < LOOK_S
        self._num_soon += is_soon
        if is_soon and self._num_soon > FREE_LOOKS:
            return False
        self._looked_s = now_s
        return True

    def ask(self, **question: Any) -> Any:
        """Send a request to the driver, and return its answer.

        Args:
            **question: content of the request, as JSON can hold it.

        Raises:
            RuntimeError: if this process is not in a run.
            ValueError: if the driver rejects the request.
            TimeoutError: if no answer arrives in time.
        """
        if self._asks is None:
            raise RuntimeError("there is no driver to ask: this process is not in a search")
        self._num_requests += 1
        request_id = f"{self._attempt}-{self._num_requests}"
        # The driver answers when it has read all reports; in a store they may arrive later.
        line = {"id": request_id, "attempt": self._attempt, "reports": self._num_reports}
        self._asks.write(jsonl.to_json({**line, **question}))
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while request_id not in self._answers:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"timed out after {ANSWER_TIMEOUT_S:g} s waiting for the driver to answer "
                    f"{question}"
                )
            time.sleep(POLL_S)
            with contextlib.suppress(OSError):
                self._asks.flush()
            self._read_messages()
        answer = self._answers.pop(request_id)
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["value"]
