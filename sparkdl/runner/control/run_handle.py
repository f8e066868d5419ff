"""Runs on the driver. The handle of a run that this process runs."""

import atexit
import sys
import threading
from collections.abc import Callable

from sparkdl.runner import sigterm
from sparkdl.runner.control.loaded_run import check_number
from sparkdl.runner.loop.trial_loop import TrialLoop
from sparkdl.runner.plain_commands import plain_command
from sparkdl.runner.sigterm import exit_at_exit
from sparkdl.runs.commands import Command


class RunHandle:
    """A `TrialLoop`, in a thread of its own with `wait=False`, as the `Handle` of its `Run`.

    Args:
        loop: the loop of the run.
    """

    def __init__(self, loop: TrialLoop) -> None:
        self._loop = loop
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._is_expected = False

    def start(self, at_end: Callable[[], None] = lambda: None) -> None:
        """Start the loop in the background. Python does not exit before the loop has ended.

        Args:
            at_end: called by the thread of the loop when the loop has ended.
        """
        self._thread = threading.Thread(
            target=self._run, args=(at_end,), name="sparkdl-run", daemon=False
        )
        self._thread.start()

    def _run(self, at_end: Callable[[], None]) -> None:
        try:
            self._loop.execute()
        except BaseException as exc:  # noqa: BLE001 `wait` raises the exception again.
            self._error = exc
            exc.run = self._loop.run  # type: ignore[attr-defined]
            # The program can look at a run that has ended before it, but not at any other.
            if self._loop.outlives_program and not self._is_expected:
                atexit.register(self._exit_with_failure)
        finally:
            at_end()

    def _exit_with_failure(self) -> None:
        """Exit with code 1, as the program has not seen the error."""
        print(f"{type(self._error).__name__}: {self._error}", file=sys.stderr)
        atexit.unregister(self._exit_with_failure)
        exit_at_exit(sigterm.EXIT_CODE if sigterm.has_terminated() else 1)

    def wait(self) -> None:
        """Return when the run has ended; raise what `TrialLoop.execute` raised."""
        self._is_expected = True
        try:
            if self._thread:
                self._thread.join()
        except KeyboardInterrupt as exc:
            self.cancel(None)
            exc.run = self._loop.run  # type: ignore[attr-defined]
            raise exc.with_traceback(None) from None
        if self._error:
            raise self._error
        self._loop.run.raise_unless_complete()

    def cancel(self, number: int | None) -> None:
        """Cancel one trial, or with None all trials that have not finished."""
        check_number(self._loop.run, number)
        self._is_expected = self._is_expected or number is None
        self._loop.cancel(number)

    def control(self, command: Command) -> None:
        """Carry out a command; all but `cancel` wait until that is done."""
        if command.action == "cancel":
            self.cancel(command.arguments.get("trial"))
        else:
            self._loop.control(plain_command(command))
