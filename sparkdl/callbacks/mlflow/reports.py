"""Runs on the driver. Read the reports of a trial that are not in MLflow yet."""

from dataclasses import dataclass
from typing import Any

from sparkdl.files import storage
from sparkdl.files.jsonl import from_json
from sparkdl.files.layout import TrialPaths
from sparkdl.runs import Trial
from sparkdl.runs.attempts import merge_attempts


@dataclass(frozen=True, order=True)
class Cursor:
    """A place in the reports of a trial: what is before it, is in MLflow.

    Attributes:
        attempt: the number of an attempt.
        line: the number of a line in the reports of this attempt.
        step: the last step before the cursor.
    """

    attempt: int = 0
    line: int = 0
    step: int = 0

    def __str__(self) -> str:
        return f"{self.attempt}:{self.line}:{self.step}"

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """Return the cursor of a text; the beginning of all reports if the text is none.

        Example:
            >>> Cursor.parse("1:7:20") == Cursor(1, 7, 20), Cursor.parse("") == Cursor()
            (True, True)
        """
        try:
            return cls(*map(int, text.split(":")))
        except (ValueError, TypeError):
            return cls()


@dataclass(frozen=True)
class Report:
    """A report of a trial.

    Attributes:
        metrics: the numbers by name.
        step: the step.
        time: seconds since 1970, estimated from the start and the end of the attempt, as reports
            have no time.
        after: the cursor behind the report; None for metrics that are no report of a trial.
    """

    metrics: dict[str, float]
    step: int
    time: float
    after: Cursor | None = None


def new_reports(trial: Trial, cursor: Cursor, now: float) -> list[Report]:
    """Return the reports of a trial behind a cursor, in their order.

    A report of a lost attempt counts up to the step from which the next attempt has continued,
    unless it was returned before the next attempt began.

    Args:
        trial: the trial as it is now.
        cursor: the place to read from.
        now: seconds since 1970.
    """
    paths = TrialPaths(trial.path)
    attempts = []
    for number in range(cursor.attempt, max(trial.attempts, 1)):
        is_last = number >= trial.attempts - 1
        folder = paths if is_last else TrialPaths(paths.superseded(number))
        first = cursor.line if number == cursor.attempt else 0
        lines = _whole_lines(folder.metrics)
        begin, end = _span(trial, number, now)
        attempts.append(
            [
                {**row, "at": (number, i), "time": begin + (end - begin) * (i + 1) / len(lines)}
                for i, line in enumerate(lines)
                if i >= first and (row := _row(line))
            ]
        )
    return [
        Report(row["metrics"], row["step"], row["time"], Cursor(number, i + 1, row["step"]))
        for row in merge_attempts(attempts)
        for number, i in (row["at"],)
    ]


def _whole_lines(url: str) -> list[bytes]:
    try:
        return storage.read(url).split(b"\n")[:-1]
    except FileNotFoundError:
        return []


def _row(line: bytes) -> dict[str, Any] | None:
    """Return a report; None for a line that is torn."""
    try:
        row = from_json(line)
        metrics = {str(name): float(value) for name, value in row["metrics"].items()}
        return {"step": int(row["step"]), "metrics": metrics}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _span(trial: Trial, attempt: int, now: float) -> tuple[float, float]:
    """Return the start and the end of an attempt."""
    if not trial.spans:
        return now, now
    begin, end = trial.spans[min(attempt, len(trial.spans) - 1)]
    return begin, now if end is None else end
