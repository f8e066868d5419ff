"""Runs on the driver. Hears what running trials report and ask, through their files; answers."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from sparkdl import storage
from sparkdl.runs import Trial
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
        self._reports = _Lines(lambda trial: TrialPaths(trial.path).metrics)
        self._asks = _Lines(lambda trial: TrialPaths(trial.path).asks)
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
        asks = self._asks.new(running) if self._source.answers_requests and not ended else []
        # What a trial reported before it asked is read by now, and heard before the answer.
        reports = [(t, line["step"], line["metrics"]) for t, line in self._reports.new(running)]
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
        self._journal.write([{"event": "stop", "number": trial.number}])
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
        self._reports.forget(trial)
        self._asks.forget(trial)

    def ended(self, trial: Trial) -> None:
        """Nothing more comes of it."""
        self.forget(trial)
        self.steps.pop(trial.number, None)
        self._stopped.pop(trial.number, None)


def _order(trial: Trial, order: dict[str, Any]) -> None:
    storage.append(TrialPaths(trial.path).orders, json.dumps(order).encode() + b"\n")


class _Lines:
    """The new JSON lines of a file that each of many trials has."""

    def __init__(self, url_of: Callable[[Trial], str]) -> None:
        self._url_of = url_of
        self._offsets: dict[int, int] = {}

    def new(self, trials: Sequence[Trial]) -> list[tuple[Trial, Any]]:
        """The values of the whole lines that were added to the files of these trials."""
        places = {self._url_of(trial): trial for trial in trials}
        offsets = {url: self._offsets.get(t.number, 0) for url, t in places.items()}
        found = []
        for url, data in storage.read_new(offsets).items():
            whole = data[: data.rfind(b"\n") + 1]
            trial = places[url]
            try:
                lines = [json.loads(line) for line in whole.splitlines()]
            except ValueError:  # Another attempt's file took its place: begin with that.
                self._offsets[trial.number] = 0
                continue
            self._offsets[trial.number] = offsets[url] + len(whole)
            found += [(trial, line) for line in lines]
        return found

    def forget(self, trial: Trial) -> None:
        """Begin anew with the next file."""
        self._offsets.pop(trial.number, None)
