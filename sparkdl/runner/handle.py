"""Runs on the driver. Handles of runs: of one in the background, and of one that was loaded."""

import atexit
import dataclasses
import math
import sys
import threading
import time
from collections.abc import Callable

from sparkdl.errors import ConfigError
from sparkdl.polling import poll_s, retry
from sparkdl.runner import sigterm
from sparkdl.runner.asking import ask_driver
from sparkdl.runner.commands import plain_command
from sparkdl.runner.sigterm import exit_at_exit
from sparkdl.runner.trial_loop import TrialLoop
from sparkdl.runs import Run, RunState
from sparkdl.runs.control import Command
from sparkdl.runs.events import ReportsReceived
from sparkdl.runs.history import load, read_run
from sparkdl.runs.journal_tail import JournalTail
from sparkdl.runs.layout import RunPaths

__all__ = ["LoadedRunHandle", "RunHandle"]

# Seconds between two looks at a run that another process runs.
LOOK_S = 1.0

# A run whose journal does not grow is looked at again after so many looks: its driver may be dead.
LOOKS = 10


class RunHandle:
    """A `TrialLoop` in a thread, as the `Handle` of its `Run`.

    Args:
        loop: the loop of the run.
    """

    def __init__(self, loop: TrialLoop) -> None:
        self._loop = loop
        self._thread: threading.Thread | None = None
        self._raised: BaseException | None = None
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
            self._raised = exc
            exc.run = self._loop.run  # type: ignore[attr-defined]
            # The program can look at a run that has ended before it, but not at any other.
            if self._loop.outlives_program and not self._is_expected:
                atexit.register(self._exit_with_failure)
        finally:
            at_end()

    def _exit_with_failure(self) -> None:
        """Exit with code 1, as the program has not seen the error."""
        print(f"{type(self._raised).__name__}: {self._raised}", file=sys.stderr)
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
        if self._raised:
            raise self._raised
        self._loop.run.raise_unless_complete()

    def cancel(self, number: int | None) -> None:
        """Cancel one trial, or with None all trials that have not finished."""
        _check_number(self._loop.run, number)
        self._is_expected = self._is_expected or number is None
        self._loop.cancel(number)

    def control(self, command: Command) -> None:
        """Carry out a command; all but `cancel` wait until that is done."""
        if command.action == "cancel":
            self.cancel(command.arguments.get("trial"))
        else:
            self._loop.control(plain_command(command))


class LoadedRunHandle:
    """The `Handle` of a run that was read from its directory.

    Args:
        run: the run, which `wait` updates.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def wait(self) -> None:
        """Return when the run has ended; raise the error of a run that is not COMPLETE."""
        run, num_looks = self._run, 0
        tail = JournalTail(RunPaths(run.path).journal)
        while run.state == RunState.RUNNING:
            # The run may go on, whatever this process cannot read for now.
            events = retry(tail.read, f"look at run {run.id}", math.inf)
            is_news = any(not isinstance(event, ReportsReceived) for event in events)
            if is_news or num_looks % LOOKS == 0:
                retry(self._reload, f"look at run {run.id}", math.inf)
            num_looks += 1
            if run.state == RunState.RUNNING:
                self._pause()
        run.raise_unless_complete()

    def _reload(self) -> None:
        now = load(self._run.path)
        for field in dataclasses.fields(Run):
            if not field.name.startswith("_"):
                setattr(self._run, field.name, getattr(now, field.name))

    def _pause(self) -> None:
        time.sleep(poll_s(self._run.path, LOOK_S))

    def control(self, command: Command) -> None:
        """Give a command to the driver, wherever it runs, and wait for its answer."""
        number = command.arguments.get("trial")
        if number is not None and not 0 <= number < len(self._run.trials):
            _check_number(read_run(self._run.path), number)  # A search adds trials.
        self._run.apply(ask_driver(self._run, plain_command(command)))


def _check_number(run: Run, number: int | None) -> None:
    if number is not None and not 0 <= number < len(run.trials):
        raise ConfigError(
            f"run {run.id} has no trial {number!r}; it has the trials 0 to {len(run.trials) - 1}."
        )
