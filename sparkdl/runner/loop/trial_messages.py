"""Runs on the driver. Read what running trials report and ask for, and send answers and orders.

Messages travel through files in the folder of each trial.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from sparkdl.files import jsonl, storage
from sparkdl.files.layout import TrialPaths
from sparkdl.files.polling import Outages, shared_s
from sparkdl.files.rank_files import RankFiles
from sparkdl.runs import Trial
from sparkdl.runs.events import StopRequested
from sparkdl.runs.journal import Journal
from sparkdl.search.trial_source import RequestRefused, TrialSource
from sparkdl.training.joint_stop import ASKS, STOP

# A trial that the pruner stops raises at its next report; after this many seconds without a report
# its process is ended.
STOP_GRACE_S = 10.0

# Seconds between two readings from a remote store, where few trials run at once.
REMOTE_READ_S = 3.0

# A trial that asks for a parameter waits for the answer: for ASKING_S seconds after a question the
# files are read every ASKING_POLL_S seconds.
ASKING_S = 1.0
ASKING_POLL_S = 0.02


class TrialMessages:
    """The messages between the driver and all running trials.

    Args:
        source: receives the reports, and answers the questions.
        journal: where orders to stop are recorded.
        is_gang: the processes of a trial end together, as no rank may stop alone.

    Attributes:
        newest: the trial whose report arrived last.
        steps: the last step that each running trial has reported, by the number of the trial.
    """

    def __init__(self, source: TrialSource, journal: Journal, is_gang: bool) -> None:
        self._source = source
        self._journal = journal
        self._is_gang = is_gang
        self._reports = jsonl.Tail()
        self._asks = jsonl.Tail()
        self._unanswered: list[tuple[Trial, dict[str, Any]]] = []
        # The number of reports that were read from each trial's running attempt.
        self._num_reports: Counter[int] = Counter()
        self._outages = Outages("exchange messages with trials")
        since_s = -math.inf if is_gang else time.monotonic()
        self._stop_times = dict.fromkeys(source.stopped, since_s)
        self._asked_s = -ASKING_S
        self._read_s = -math.inf
        # Seconds that a report or an order may take to arrive in a remote store.
        self._delay_s = 0.0
        self._num_running = 0
        self.newest: Trial | None = None
        self.steps: dict[int, int] = {}

    def poll_s(self, default_s: float) -> float:
        """Return the seconds until the next reading: less than the default while trials ask."""
        if time.monotonic() - self._asked_s > ASKING_S:
            return default_s
        # Reading the files of many trials takes a while itself.
        return min(ASKING_POLL_S * max(1.0, self._num_running / 50), default_s)

    def read(self, trials: Sequence[Trial], are_over: bool = False) -> None:
        """Process the messages that the trials have written since the last call.

        Args:
            trials: the trials whose files are read.
            are_over: the attempts of the trials are over; none is stopped or answered any more.
        """
        if not are_over:
            self._num_running = len(trials)
            if not self._is_due(trials):
                return
        reports, is_read = [], False
        # What cannot be read or sent now, as the store fails, is read and sent by a later call.
        with self._outages.tolerated():
            if self._source.answers_requests and not are_over:
                askers = {TrialPaths(trial.path).asks: trial for trial in trials}
                self._unanswered += [(askers[url], line) for url, line in self._asks.read(askers)]
            reporters = {TrialPaths(trial.path).metrics: trial for trial in trials}
            lines = self._reports.read(reporters)
            reports = [(reporters[url], line["step"], line["metrics"]) for url, line in lines]
            is_read = True
        for trial, step, metrics in reports:
            self._num_reports[trial.number] += 1
            # Another thread may be showing the present dict.
            trial.metrics = {**trial.metrics, **metrics}
            self.newest = trial
            self.steps[trial.number] = step
        for trial in self._source.observe_reports(reports, are_over):
            self._stop(trial)
        if is_read and not are_over:
            self._unanswered = [ask for ask in self._unanswered if not self._answer(*ask)]

    def read_last(self, trials: Sequence[Trial]) -> None:
        """Process what trials have written until their attempts ended.

        A remote store is asked once for all of them.
        """
        self.read([trial for trial in trials if not trial.state.is_final], are_over=True)

    def _is_due(self, trials: Sequence[Trial]) -> bool:
        """Return True if it is time to read: on a remote store, each file costs a request."""
        if not trials or storage.is_local(trials[0].path):
            return True
        self._delay_s = shared_s(REMOTE_READ_S, len(trials))
        now = time.monotonic()
        # A trial that asks waits for the answer.
        if not self._source.answers_requests and now - self._read_s < self._delay_s:
            return False
        self._read_s = now
        return True

    def _answer(self, trial: Trial, ask: dict[str, Any]) -> bool:
        """Answer a question; return False if that must wait, or the answer could not be sent."""
        if ask["attempt"] != trial.attempts - 1:
            return True  # A lost attempt may still run, and ask.
        self._asked_s = time.monotonic()
        if self._num_reports[trial.number] < ask["reports"]:
            return False  # The answer is based on all that the trial has reported before it asked.
        try:
            answer = {"id": ask["id"], "value": self._source.answer(trial, ask)}
        except RequestRefused as exc:
            answer = {"id": ask["id"], "error": str(exc)}
        return self._send(trial, answer)

    def _stop(self, trial: Trial) -> None:
        if trial.number in self._stop_times or trial.state.is_final:
            return
        self._stop_times[trial.number] = time.monotonic()
        self._journal.write([StopRequested(number=trial.number)])
        # A trial that does not get the order is ended after STOP_GRACE_S.
        if not self._is_gang:
            self._send(trial, {"stop": "pruned"})
        elif not self._tell_ranks(trial):
            self._stop_times[trial.number] = -math.inf  # It is ended at once.

    def notify(self, trial: Trial) -> bool:
        """Tell a trial that its executor is about to end; return False if the store failed."""
        return self._send(trial, {"notice": "decommissioning"})

    def _tell_ranks(self, trial: Trial) -> bool:
        """Order the ranks to agree on a stop; return False if they do not ask, or the store failed.

        No rank may stop alone.
        """
        has_told = False
        with self._outages.tolerated():
            files = RankFiles(TrialPaths(trial.path).ranks(trial.attempts - 1))
            if files.has_posted(0, ASKS):
                files.order(STOP)
                has_told = True
        return has_told

    def _send(self, trial: Trial, order: dict[str, Any]) -> bool:
        is_sent = False
        with self._outages.tolerated():
            storage.append(TrialPaths(trial.path).orders, json.dumps(order).encode() + b"\n")
            is_sent = True
        return is_sent

    def is_stopped(self, trial: Trial) -> bool:
        """Return True if the trial was ordered to stop."""
        return trial.number in self._stop_times

    def overdue(self) -> set[int]:
        """Return the numbers of stopped trials whose processes must now be ended."""
        # The ranks of a gang exchange some messages first.
        grace_s = STOP_GRACE_S + self._delay_s * (4 if self._is_gang else 1)
        now = time.monotonic()
        return {number for number, since in self._stop_times.items() if now - since >= grace_s}

    def attempt_ended(self, trial: Trial) -> None:
        """Read from the beginning from now on: the next attempt writes new files."""
        self._reports.forget(TrialPaths(trial.path).metrics)
        self._asks.forget(TrialPaths(trial.path).asks)
        self._unanswered = [ask for ask in self._unanswered if ask[0] is not trial]
        self._num_reports.pop(trial.number, None)

    def trial_ended(self, trial: Trial) -> None:
        """Drop what is known of a trial."""
        self.attempt_ended(trial)
        self.steps.pop(trial.number, None)
        self._stop_times.pop(trial.number, None)
