"""Runs on the driver. Handles of runs: of one in the background, and of one that was loaded."""

import atexit
import dataclasses
import math
import os
import sys
import threading
import time

from sparkdl.errors import ConfigError, RunExistsError
from sparkdl.polling import poll_s, retry
from sparkdl.runner.trial_loop import TrialLoop
from sparkdl.runs import Run, RunState
from sparkdl.runs.history import load
from sparkdl.runs.layout import RunPaths
from sparkdl.runs.owner import describe_owner, living_owner

__all__ = ["LoadedRunHandle", "RunHandle"]

# Seconds between two looks at a run that another process runs.
LOOK_S = 1.0


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

    def start(self) -> None:
        """Start the loop in the background. Python does not exit before the loop has ended."""
        self._thread = threading.Thread(target=self._run, name="sparkdl-run", daemon=False)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.execute()
        except BaseException as exc:  # noqa: BLE001 `wait` raises the exception again.
            self._raised = exc
            exc.run = self._loop.run  # type: ignore[attr-defined]
            # The program can look at a run that has ended before it, but not at any other.
            if self._loop.outlives_program and not self._is_expected:
                atexit.register(self._exit_with_failure)

    def _exit_with_failure(self) -> None:
        """Exit with code 1, after all other exit functions, as the program has not seen the error.

        The last exit function that was registered is called first; it cannot change the exit code
        in another way.
        """
        print(f"{type(self._raised).__name__}: {self._raised}", file=sys.stderr)
        atexit.unregister(self._exit_with_failure)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

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


class LoadedRunHandle:
    """The `Handle` of a run that was read from its directory.

    Args:
        run: the run, which `wait` updates.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def wait(self) -> None:
        """Return when the run has ended; raise the error of a run that is not COMPLETE."""
        while self._run.state == RunState.RUNNING:
            time.sleep(poll_s(self._run.path, LOOK_S))
            # The run may go on, whatever this process cannot read for now.
            now = retry(lambda: load(self._run.path), f"look at run {self._run.id}", math.inf)
            for field in dataclasses.fields(Run):
                if not field.name.startswith("_"):
                    setattr(self._run, field.name, getattr(now, field.name))
        self._run.raise_unless_complete()

    def cancel(self, number: int | None) -> None:
        """Raise an error if the run goes on, as only its own driver can cancel it."""
        run = self._run
        _check_number(run, number)
        owner = living_owner(RunPaths(run.path)) if run.state == RunState.RUNNING else None
        if owner:
            raise RunExistsError(
                f"run {run.id} is being run by {describe_owner(owner)}, and only that process can "
                "cancel it. Call cancel() of the run there, or end that process."
            )


def _check_number(run: Run, number: int | None) -> None:
    if number is not None and not 0 <= number < len(run.trials):
        raise ConfigError(
            f"run {run.id} has no trial {number!r}; it has the trials 0 to {len(run.trials) - 1}."
        )
