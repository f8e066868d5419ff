"""Runs on the driver. The handle of a run that was read from its directory."""

import dataclasses
import math
import time

from sparkdl.errors import ConfigError
from sparkdl.files.layout import RunPaths
from sparkdl.files.polling import poll_s, retry
from sparkdl.runner.control.remote_driver import ask_driver
from sparkdl.runner.plain_commands import plain_command
from sparkdl.runs import Run, RunState
from sparkdl.runs.commands import Command
from sparkdl.runs.events import ReportsReceived
from sparkdl.runs.history import load, read_run
from sparkdl.runs.journal_tail import JournalTail

# Seconds between two looks at a run that another process runs.
LOOK_S = 1.0

# A run whose journal does not grow is looked at again after so many looks: its driver may be dead.
LOOKS = 10


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
            check_number(read_run(self._run.path), number)  # A search adds trials.
        self._run.apply(ask_driver(self._run, plain_command(command)))


def check_number(run: Run, number: int | None) -> None:
    """Raise a ConfigError if a run has no trial with a number; None stands for all trials."""
    if number is not None and not 0 <= number < len(run.trials):
        raise ConfigError(
            f"run {run.id} has no trial {number!r}; it has the trials 0 to {len(run.trials) - 1}."
        )
