"""Runs on the driver. Write the report of a run and the events for TensorBoard's HParams tab."""

from collections.abc import Callable

from sparkdl.files import storage
from sparkdl.files.layout import REPORT, TrialPaths
from sparkdl.host.optional_packages import is_installed
from sparkdl.runner.display.store_calls import StoreCalls
from sparkdl.runs import Run, Trial


class ResultFiles:
    """The files that show the results of a run. One that cannot be written never harms the run.

    On a remote store, the events of trials are written by threads, while the run goes on.

    Args:
        run: the run.
        say: shows the user a line.
    """

    def __init__(self, run: Run, say: Callable[[str], None]) -> None:
        self._run = run
        self._say = say
        self._writes_events = True
        self._calls = StoreCalls(run.path)

    def trial_started(self, trial: Trial, attempt: int) -> None:
        """Do nothing; there are no results yet."""

    def trial_ended(self, trial: Trial) -> None:
        """Write a trial for TensorBoard's HParams tab, of a search or of a trial with events."""
        if not is_installed("tensorboard"):
            return
        if self._run.is_distributed or not trial.params or not trial.attempts:
            return
        self._calls.call(lambda: self._add_event(trial))

    def _add_event(self, trial: Trial) -> None:
        if self._writes_events:
            self._writes_events = self._try("TensorBoard's HParams", lambda: self._add(trial))

    def _add(self, trial: Trial) -> None:
        if self._run.is_search or storage.exists(TrialPaths(trial.path).tensorboard):
            from sparkdl.board.hparams import write_hparams

            write_hparams(self._run, trial)

    def run_ended(self) -> None:
        """Write the report, also of a run that failed or was cancelled."""
        self._calls.wait()
        self._try(REPORT, lambda: self._say(f"Look at {self._run.report()}"))

    def _try(self, name: str, write: Callable[[], object]) -> bool:
        """Return True if a file could be written."""
        try:
            write()
        except Exception as exc:  # noqa: BLE001 The results are safe without the report.
            self._say(f"Note: {name} could not be written: {type(exc).__name__}: {exc}")
            return False
        return True
