"""Runs on the driver. The values that trials report, as curves for TensorBoard."""

import time
from collections import defaultdict
from collections.abc import Sequence

from sparkdl.board.event_files import records, scalar
from sparkdl.files.jsonl import Line, Tail
from sparkdl.files.layout import TrialPaths
from sparkdl.runs.trial import Trial


class ReportedCurves:
    """The reported values of all trials of a run, each of which is read once."""

    def __init__(self) -> None:
        self._tail = Tail()
        self._attempts: dict[int, int] = {}

    def new_events(self, trials: Sequence[Trial]) -> dict[int, bytes]:
        """Return the events of the values that were reported since the last call.

        The curves are named `Reported/<metric>`, apart from those that a training function writes.

        Args:
            trials: the trials whose reports are read. A remote store is asked for all at once.

        Returns:
            A part of an event file by the number of the trial.
        """
        trial_of: dict[str, Trial] = {}
        for trial in trials:
            paths = TrialPaths(trial.path)
            if self._attempts.get(trial.number) != trial.attempts:
                self._tail.forget(paths.metrics)  # The next attempt begins another file.
                self._attempts[trial.number] = trial.attempts
            earlier = (TrialPaths(paths.superseded(n)) for n in range(trial.attempts - 1))
            trial_of |= {attempt.metrics: trial for attempt in (*earlier, paths)}
        lines: dict[int, list[Line]] = defaultdict(list)
        for url, line in self._tail.read(trial_of):
            lines[trial_of[url].number].append(line)
        return {number: _events(reports) for number, reports in lines.items()}


def _events(reports: Sequence[Line]) -> bytes:
    now = time.time()  # A report has no time of its own.
    return records(
        *(
            scalar(f"Reported/{name}", value, now, report["step"])
            for report in reports
            for name, value in report["metrics"].items()
        )
    )
