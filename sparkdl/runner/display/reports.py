"""Runs on the driver. What is left to be looked at: the report, and TensorBoard's HParams."""

from collections.abc import Callable

from sparkdl import storage
from sparkdl.runs import Run, Trial
from sparkdl.runs.layout import TrialPaths

__all__ = ["Pages"]

# The page takes a second to make: a short run does without, and `run.report()` makes it.
REPORT_S = 30.0


class Pages:
    """Writes pages about a run. That one cannot be written never harms the run.

    Args:
        run: the run.
        say: shows the person a line.
    """

    def __init__(self, run: Run, say: Callable[[str], None]) -> None:
        self._run, self._say = run, say
        self._works = True

    def ended(self, trial: Trial) -> None:
        """Let TensorBoard's HParams tab show a trial of a search, or of one that writes events."""
        if self._run.is_distributed or not trial.params or not trial.attempts:
            return
        if self._run.is_search or storage.exists(TrialPaths(trial.path).tensorboard):
            from sparkdl.runs.hparams import write_hparams

            self._try("TensorBoard's HParams", lambda: write_hparams(self._run, trial))

    def finished(self) -> None:
        """Write the report of a search, and of any run of many trials that took a while."""
        if self._run.is_search or (len(self._run.trials) > 1 and self._run.duration_s > REPORT_S):
            self._try("report.html", lambda: self._say(f"Look at {self._run.report()}"))

    def _try(self, what: str, write: Callable[[], object]) -> None:
        try:
            if self._works:
                write()
        except Exception as exc:  # noqa: BLE001 Whatever it is, the results are safe without it.
            self._works = False
            self._say(f"Note: {what} could not be written: {type(exc).__name__}: {exc}")
