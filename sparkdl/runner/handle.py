"""Runs on the driver. A run that goes on while the person does something else."""

import threading

from sparkdl.runner.trial_loop import Execution

__all__ = ["Live"]


class Live:
    """Runs an `Execution` in a thread. The `Handle` of its `Run`."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._thread: threading.Thread | None = None
        self._raised: BaseException | None = None

    def start(self) -> None:
        """Run in the background until `wait` is called."""
        self._thread = threading.Thread(target=self._run, name="sparkdl-run")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._execution.execute()
        except BaseException as exc:  # noqa: BLE001 Raised again in whoever waits.
            self._raised = exc

    def wait(self) -> None:
        """Return when the run has ended; raise what `Execution.execute` raised."""
        try:
            if self._thread:
                self._thread.join()
        except KeyboardInterrupt:
            self.cancel(None)
            raise
        if self._raised:
            raise self._raised

    def cancel(self, number: int | None) -> None:
        """End one trial, or with None all that have not finished."""
        self._execution.cancel(number)
