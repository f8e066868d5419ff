"""Runs in the training process.

The files by which a training process and the driver tell each other things.

It appends what it reports, and what it asks the driver; the driver appends its orders and answers.
All are lines of JSON in the trial's folder.
"""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from sparkdl import jsonl
from sparkdl.errors import TrialPruned

__all__ = ["ASKS", "ORDERS", "TIMELINE", "Reporter"]

ASKS = "asks.jsonl"
ORDERS = "orders.jsonl"
# A folder: each rank writes a file of its own.
TIMELINE = "timeline"

# An answer comes within a second, or several through a store; one that never comes is a fault.
ANSWER_S = 600.0
POLL_S = 0.005


class Reporter:
    """What this process reports and asks. One unbuffered write per line: a kill loses none.

    Args:
        folder: the trial's local folder; None outside a run.
        name: the file of what it reports.
        obeys: whether an order of the driver ends it, as in a search.
        attempt: of the trial; another one's questions are not ours.

    Attributes:
        spent_s: seconds in `write`.
        first_s: when that was first called, on the monotonic clock.
        step, metrics: the last step, and the last number of each name.
    """

    def __init__(self, folder: Path | None, name: str, obeys: bool, attempt: int = 0) -> None:
        self._folder, self._name = folder, name
        self._file: int | None = None  # Opened by the first report: many trials make none.
        self._orders = jsonl.Tail()
        self._order_files = [str(folder / ORDERS)] if folder and obeys else []
        self._answers: dict[str, dict[str, Any]] = {}
        self._attempt, self._asked = attempt, 0
        self._is_stopped = False
        self.step = -1
        self.metrics: dict[str, float] = {}
        self.spent_s, self.first_s = 0.0, 0.0
        self.lock = threading.Lock()
        self.committed: str | None = None

    def continue_after(self, step: int) -> None:
        """The next step without a number comes after this one."""
        self.step = max(self.step, step)

    def write(self, metrics: dict[str, float], step: int | None) -> None:
        """Report numbers."""
        begun = time.monotonic()
        self.first_s = self.first_s or begun
        self.step = self.step + 1 if step is None else int(step)
        self.metrics |= metrics
        if self._folder is None:
            shown = ", ".join(f"{name}={number:g}" for name, number in metrics.items())
            print(f"step {step}: {shown}" if step is not None else shown)
        else:
            if self._file is None:
                self._file = _appending(self._folder / self._name)
            line = json.dumps({"step": self.step, "metrics": metrics})
            os.write(self._file, line.encode() + b"\n")
        self.spent_s += time.monotonic() - begun

    def obey(self) -> None:
        """Do as the driver ordered.

        Raises:
            TrialPruned: it is to end.
        """
        if self.is_stopped():
            raise TrialPruned(f"the search stopped this trial at step {self.step}")

    def is_stopped(self) -> bool:
        """Whether the driver ordered this trial to end."""
        self._hear()
        return self._is_stopped

    def _hear(self) -> None:
        for _, order in self._orders.read(self._order_files):
            self._is_stopped = self._is_stopped or "stop" in order
            if "id" in order:
                self._answers[order["id"]] = order

    def ask(self, **question: Any) -> Any:
        """Ask the driver, and wait for its answer.

        Raises:
            ValueError: what was asked cannot be.
            TimeoutError: there was no answer.
        """
        if self._folder is None:
            raise RuntimeError("there is no driver to ask: this is not a search")
        self._asked += 1
        number = f"{self._attempt}-{self._asked}"
        line = json.dumps({"id": number, "attempt": self._attempt, **question})
        file = _appending(self._folder / ASKS)
        os.write(file, line.encode() + b"\n")
        os.close(file)
        deadline = time.monotonic() + ANSWER_S
        while number not in self._answers:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the driver has not answered {question} for {ANSWER_S:g} s")
            time.sleep(POLL_S)
            self._hear()
        answer = self._answers.pop(number)
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["value"]


def _appending(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
