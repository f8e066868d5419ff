"""Runs anywhere. The attempts at a trial: each takes the next number, and the newest one writes.

Spark may start a trial again while the processes of an earlier attempt still live: an executor that
was stalled is taken for lost, or a task is repeated as a precaution. The task of an attempt creates
the file of its number, which no other task can create again. Whoever finds the file of the next
number stops writing.

```
<trial>/attempts/<n>.claim  created exclusively, before the attempt writes anything
                /<n>.json   the start of the attempt, for the driver
                /<n>.use.jsonl  the use of CPU, memory and GPUs over time, for the report
                /<n>/       the files of an attempt that was lost
```

Arguments called `trial` are the path or URL of the folder of a trial.
"""

import contextlib
import functools
import json
import math
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sparkdl.files import storage
from sparkdl.files.polling import create_once, retry

FOLDER = "attempts"

_ACTIVITY = "begin an attempt at a trial"


class SupersededError(RuntimeError):
    """A later attempt at the trial has started, so that this one may not write any more."""


@dataclass(frozen=True)
class _Claim:
    """The order of the claims of one Spark application: a later task has larger numbers."""

    application: str
    submission: int
    task: int

    def precedes(self, other: "_Claim") -> bool:
        numbers = self.submission, self.task
        return self.application == other.application and numbers < (other.submission, other.task)


def claim(trial: str, application: str, submission: int, task: int) -> int:
    """Take the number of the next attempt, and return it.

    Args:
        trial: the folder of the trial.
        application: the id of the Spark application.
        submission: the number of attempts that the driver had seen when it submitted this one; the
            number of the attempt is not less.
        task: the id of Spark's task, which is larger for a later task of the application.

    Raises:
        SupersededError: if a later task has taken a number already.
        OSError: if the store fails for minutes.
    """
    mine = _Claim(application, submission, task)
    number = max(submission, retry(lambda: newest(trial), _ACTIVITY) + 1)
    while True:
        if number and (last := _read(trial, number - 1)) and mine.precedes(last):
            raise SupersededError(_message(number - 1))
        if _create(trial, number, asdict(mine)):
            _begin_lost(trial, range(submission, number))
            return number
        number += 1  # Another task was faster, or the list of files was out of date.


def _begin_lost(trial: str, numbers: Iterable[int]) -> None:
    """Write the starts of attempts that were lost before they had begun.

    The driver waits for the start of one attempt after the other.
    """
    for number in numbers:
        url = storage.join(trial, FOLDER, f"{number}.json")
        with contextlib.suppress(FileExistsError):
            retry(
                functools.partial(storage.create, url, json.dumps({"attempt": number})), _ACTIVITY
            )


def take(trial: str, number: int) -> bool:
    """Take a number that the driver has given to the ranks of a gang.

    Args:
        trial: the folder of the trial.
        number: the number of the attempt.

    Returns:
        False if it was taken already: an attempt that was lost before the driver saw its start is
        repeated under its number, by the driver or by Spark.

    Raises:
        OSError: if the store fails for minutes.
    """
    return _create(trial, number, {"submission": number})


def _create(trial: str, number: int, fields: Mapping[str, Any]) -> bool:
    """Create the file of a number; return False if it exists."""
    text = json.dumps({**fields, "id": uuid.uuid4().hex})
    return create_once(_file(trial, number), text, _ACTIVITY)


def newest(trial: str) -> int:
    """Return the newest number in use, -1 if there is none; a list of files may be out of date."""
    names = storage.list_names(storage.join(trial, FOLDER))
    numbers = [int(name.partition(".")[0]) for name in names if name.partition(".")[0].isdigit()]
    return max(numbers, default=-1)


def is_superseded(trial: str, number: int) -> bool:
    """Return True if a later attempt than `number` has started."""
    url = _file(trial, number + 1)
    return url in storage.read_new({url: 0})


def check(trial: str, number: int) -> None:
    """Raise an exception if a later attempt than `number` has started.

    Raises:
        SupersededError: if so.
    """
    if is_superseded(trial, number):
        raise SupersededError(_message(number + 1))


class Fence:
    """Look now and then whether a later attempt has started.

    Args:
        trial: the folder of the trial.
        number: the number of this attempt.
        interval_s: seconds between two looks at the run directory.
    """

    def __init__(self, trial: str, number: int, interval_s: float) -> None:
        self._trial = trial
        self._number = number
        self._interval_s = interval_s
        self._looked_s = -math.inf
        self.is_closed = False  # As of the last look.

    def look(self) -> bool:
        """Return True if a later attempt has started, as of a look in the last seconds."""
        now = time.monotonic()
        if not self.is_closed and now - self._looked_s >= self._interval_s:
            self._looked_s = now
            self.is_closed = is_superseded(self._trial, self._number)
        return self.is_closed

    def check(self) -> None:
        """Raise an exception if a later attempt has started.

        Raises:
            SupersededError: if so.
        """
        if self.look():
            raise SupersededError(_message(self._number + 1))


def use_of(attempt: int, role: str, index: int | None) -> str:
    """Return the name of the file with the use of CPU, memory and GPUs by a process.

    Args:
        attempt: the number of the attempt.
        role: the role of the process in a gang; empty for the only process of a trial.
        index: the index of the process among those of its role.

    Example:
        >>> use_of(0, "", None), use_of(1, "worker", 2)
        ('attempts/0.use.jsonl', 'attempts/1.use-worker-2.jsonl')
    """
    process = f"-{role}-{index}" if role else ""
    return f"{FOLDER}/{attempt}.use{process}.jsonl"


def process_of_use(name: str) -> tuple[int, str] | None:
    """Return the attempt and the process of a file in `attempts/`; None for another file.

    Example:
        >>> process_of_use("1.use-worker-2.jsonl"), process_of_use("0.use.jsonl")
        ((1, 'worker 2'), (0, ''))
    """
    match = re.fullmatch(r"(\d+)\.use(?:-(.+))?\.jsonl", name)
    return (int(match[1]), (match[2] or "").replace("-", " ")) if match else None


def _read(trial: str, number: int) -> _Claim | None:
    url = _file(trial, number)
    data = storage.read_new({url: 0}).get(url)
    fields: Mapping[str, Any] = json.loads(data) if data else {}
    try:
        return _Claim(fields["application"], fields["submission"], fields["task"])
    except KeyError:
        return None


def _file(trial: str, number: int) -> str:
    return storage.join(trial, FOLDER, f"{number}.claim")


def _message(number: int) -> str:
    return (
        f"Spark has started this trial elsewhere, as attempt {number}; this attempt ends and "
        "writes nothing more"
    )
