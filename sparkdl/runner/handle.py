"""Runs on the driver. A run in the background, which can be awaited and cancelled."""

import threading

from sparkdl.runner.trial_loop import TrialLoop

__all__ = ["RunHandle"]


class RunHandle:
    """A `TrialLoop` in a thread, as the `Handle` of its `Run`.

    Args:
        loop: the loop of the run.
    """

    def __init__(self, loop: TrialLoop) -> None:
        self._loop = loop
        self._thread: threading.Thread | None = None
        self._raised: BaseException | None = None

    def start(self) -> None:
        """Start the loop in the background."""
        self._thread = threading.Thread(target=self._run, name="sparkdl-run")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.execute()
        except BaseException as exc:  # noqa: BLE001 `wait` raises the exception again.
            self._raised = exc

    def wait(self) -> None:
        """Return when the run has ended; raise what `TrialLoop.execute` raised."""
        try:
            if self._thread:
                self._thread.join()
        except KeyboardInterrupt:
            self.cancel(None)
            raise
        if self._raised:
            raise self._raised

    def cancel(self, number: int | None) -> None:
        """Cancel one trial, or with None all trials that have not finished."""
        self._loop.cancel(number)
