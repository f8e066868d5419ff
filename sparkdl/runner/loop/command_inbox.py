"""Runs on the driver. Take the commands of users to a running run, and answer each of them once.

Commands come from threads of this process, and from other processes as files in the run directory.
All are carried out in the thread of the run's loop.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue

from sparkdl.errors import ControlError, SparkDLError
from sparkdl.files import storage
from sparkdl.files.polling import Outages
from sparkdl.runs import Run, owner
from sparkdl.runs.commands import (
    Command,
    GivenCommand,
    command_names,
    command_url,
    parse_command,
)
from sparkdl.runs.events import CommandHandled
from sparkdl.runs.journal import scan_journal
from sparkdl.runs.opening import OpenRun

# A file that is damaged for so long is not being written: it is refused.
TORN_S = 10.0

# Carries out a command and records the event of it, or raises the reason why not.
Perform = Callable[[GivenCommand, CommandHandled], None]


class CommandInbox:
    """The commands to a run, from threads of this process and from files.

    Args:
        opened: the run.
        perform: carries out a command.
        wake: lets the loop call `take` soon.
    """

    def __init__(self, opened: OpenRun, perform: Perform, wake: Callable[[], None]) -> None:
        self._opened = opened
        self._perform = perform
        self._wake = wake
        self._calls: SimpleQueue[tuple[GivenCommand, Future[None]]] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread: int | None = None
        self._outages = Outages("look for commands of users")
        self._looked_s = -math.inf
        self._is_local = storage.is_local(opened.paths.folder)
        # The ids of commands that were handled, also by earlier drivers; None until it is needed.
        self._handled: set[str] | None = None
        self._torn_since: dict[str, float] = {}
        if self._is_local:  # NFS may hide for a minute that a folder appears, but not a file in it.
            with suppress(OSError):
                storage.make_directory(opened.paths.control)

    # ---- called by any thread

    def call(self, command: Command) -> None:
        """Carry out a command of this process, and return when that is done.

        Raises:
            ControlError: if the command is refused, or the run has ended.
        """
        if (
            threading.get_ident() == self._thread and not self._is_closed
        ):  # An observer of the run, called by the loop.
            self._handle(GivenCommand.here(command))
            return
        future = self.post(command)
        if future is None:
            raise self._error_of_end(command)
        future.result()

    def post(self, command: Command) -> "Future[None] | None":
        """Let the loop carry out a command soon; return None if the run has ended."""
        future: Future[None] = Future()
        with self._lock:
            if self._is_closed:
                return None
            self._calls.put((GivenCommand.here(command), future))
        self._wake()
        return future

    # ---- called by the loop

    def take(self, in_loop: bool = False) -> None:
        """Carry out all commands that were given since the last call.

        Args:
            in_loop: the loop has begun in this thread, so that commands of its observers are
                carried out at once.
        """
        if in_loop:
            self._thread = threading.get_ident()
        for user_command, future in self._queued_calls():
            try:
                self._handle(user_command)
            except ControlError as exc:
                future.set_exception(exc)
            except BaseException as exc:
                future.set_exception(exc)
                raise
            else:
                future.set_result(None)
        # A listing of a remote store is a request.
        if not self._is_local and time.monotonic() - self._looked_s < owner.BEAT_S:
            return
        self._looked_s = time.monotonic()
        new: list[GivenCommand] = []
        with self._outages.tolerated():
            new = self._read_new()
        for user_command in new:
            with suppress(ControlError):  # The journal has the reason.
                self._handle(user_command)

    def close(self) -> None:
        """Refuse all further commands, as the run ends."""
        with self._lock:
            self._is_closed = True
        for user_command, future in self._queued_calls():
            future.set_exception(self._error_of_end(user_command.command))

    def _error_of_end(self, command: Command) -> ControlError:
        run = self._opened.run
        return ended_error(run, command, f" {run.state}" if run.state.is_final else "")

    def _queued_calls(self) -> Iterator[tuple[GivenCommand, "Future[None]"]]:
        with suppress(Empty):
            while True:
                yield self._calls.get_nowait()

    def _handle(self, user_command: GivenCommand) -> None:
        event = user_command.handled_event()
        try:
            self._perform(user_command, event)
        except Exception as exc:
            # No command ends a run by accident, whatever its arguments do in here.
            why = str(exc) if isinstance(exc, SparkDLError) else f"{type(exc).__name__}: {exc}"
            self._opened.record(replace(event, refused=why))
            run = self._opened.run
            raise ControlError(f"run {run.id} refused {user_command.command}: {why}", run) from exc

    def _read_new(self) -> list[GivenCommand]:
        """Return the commands in files that no driver of the run has handled.

        Raises:
            OSError: if the store cannot be read now.
        """
        paths = self._opened.paths
        names = command_names(paths)
        if not names or not any(name not in (self._handled or ()) for name in names):
            return []
        if self._handled is None:
            self._handled = self._handled_before()
        names = [name for name in names if name not in self._handled]
        # A driver whose run was taken over leaves all commands to its successor.
        if not names or owner.newest_claim(paths).number != self._opened.owner.number:
            return []
        new = []
        for name in names:
            if user_command := self._read(name):
                self._handled.add(name)
                new.append(user_command)
        return new

    def _handled_before(self) -> set[str]:
        if self._opened.run.num_sessions == 1:
            return set()
        journal = scan_journal(self._opened.paths.journal, with_reports=False)
        events = [event for event in journal.events if isinstance(event, CommandHandled)]
        return {event.id for event in events if event.id}

    def _read(self, name: str) -> GivenCommand | None:
        """Return the command in a file; None if the file may not be complete or readable yet."""
        try:
            data = storage.read(command_url(self._opened.paths, name))
        except FileNotFoundError:  # It was withdrawn.
            return None
        except OSError:  # It keeps no other command waiting: the store has just been listed.
            data = b""
        if user_command := parse_command(name, data):
            return user_command
        now = time.monotonic()
        if now - self._torn_since.setdefault(name, now) < TORN_S:
            return None
        return GivenCommand(Command("unreadable"), "unknown", 0, 0.0, name)


def ended_error(run: Run, command: Command, how: str) -> ControlError:
    """Return the error of a command to a run that has ended.

    Args:
        run: the run.
        command: the command.
        how: the state of the run, and a remedy.
    """
    return ControlError(f"{command} was not carried out: run {run.id} has ended{how}.", run)
