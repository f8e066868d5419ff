"""Runs on the driver. Hears what running trials report and ask, through their files; answers."""

import json
import time
from collections.abc import Sequence
from typing import Any

from sparkdl import jsonl, storage
from sparkdl.runs import Trial
from sparkdl.runs.events import StopRequested
from sparkdl.runs.journal import Journal
from sparkdl.runs.layout import TrialPaths
from sparkdl.search.trial_source import RequestRefused, TrialSource

__all__ = ["Listener"]

# A trial that was told to stop gets so long until its next report; then its process is ended.
STOP_S = 10.0

# While trials ask for their parameters they wait: look often.
ASKED_S = 1.0
LOOK_ASKED_S = 0.02


class Listener:
    """Reads the new lines of all running trials at once.

    Args:
        source: what hears of them, and answers.
        journal: where an order to stop is written down.
        is_gang: a trial's processes are ended together, as none may stop alone.

    Attributes:
        newest: the trial whose report came last.
        steps: the last step that each running trial has reported, by number.
    """

    def __init__(self, source: TrialSource, journal: Journal, is_gang: bool) -> None:
        self._source, self._journal, self._is_gang = source, journal, is_gang
        self._reports = jsonl.Tail()
        self._asks = jsonl.Tail()
        self._stopped: dict[int, float] = {}
        self._asked_s, self._running = -ASKED_S, 0
        self.newest: Trial | None = None
        self.steps: dict[int, int] = {}

    def look_s(self, otherwise: float) -> float:
        """Seconds until the next look, by default `otherwise`."""
        if time.monotonic() - self._asked_s > ASKED_S:
            return otherwise
        # A look at very many takes a while itself.
        return min(LOOK_ASKED_S * max(1.0, self._running / 50), otherwise)

    def listen(self, running: Sequence[Trial], ended: bool = False) -> None:
        """Take over what these trials have said since the last time; `ended` ones for good."""
        if not ended:
            self._running = len(running)
        asks = []
        if self._source.answers_requests and not ended:
            askers = {TrialPaths(trial.path).asks: trial for trial in running}
            asks = [(askers[url], line) for url, line in self._asks.read(askers)]
        # Read the reports after the questions: a report that a trial made before its question is
        # then passed on before the question is answered.
        reporters = {TrialPaths(trial.path).metrics: trial for trial in running}
        lines = self._reports.read(reporters)
        reports = [(reporters[url], line["step"], line["metrics"]) for url, line in lines]
        for trial, step, metrics in reports:
            trial.metrics.update(metrics)
            self.newest, self.steps[trial.number] = trial, step
        for trial in self._source.observe_reports(reports, ended):
            self._stop(trial)
        for trial, asked in asks:
            if asked["attempt"] == trial.attempts - 1:  # A lost one may still live, and ask.
                self._answer(trial, asked)

    def _answer(self, trial: Trial, asked: dict[str, Any]) -> None:
        self._asked_s = time.monotonic()
        try:
            answer = {"id": asked["id"], "value": self._source.answer(trial, asked)}
        except RequestRefused as exc:
            answer = {"id": asked["id"], "error": str(exc)}
        _order(trial, answer)

    def _stop(self, trial: Trial) -> None:
        if trial.number in self._stopped or trial.state.is_final:
            return
        self._stopped[trial.number] = time.monotonic()
        self._journal.write([StopRequested(number=trial.number)])
        if not self._is_gang:
            _order(trial, {"stop": "pruned"})

    def is_stopped(self, trial: Trial) -> bool:
        """Whether it was told to stop."""
        return trial.number in self._stopped

    def overdue(self) -> set[int]:
        """The numbers of trials whose processes are to be ended."""
        wait_s, now = 0.0 if self._is_gang else STOP_S, time.monotonic()
        return {number for number, since in self._stopped.items() if now - since >= wait_s}

    def forget(self, trial: Trial) -> None:
        """Its attempt is over; the next one writes new files."""
        self._reports.forget(TrialPaths(trial.path).metrics)
        self._asks.forget(TrialPaths(trial.path).asks)

    def ended(self, trial: Trial) -> None:
        """Nothing more comes of it."""
        self.forget(trial)
        self.steps.pop(trial.number, None)
        self._stopped.pop(trial.number, None)


def _order(trial: Trial, order: dict[str, Any]) -> None:
    storage.append(TrialPaths(trial.path).orders, json.dumps(order).encode() + b"\n")
