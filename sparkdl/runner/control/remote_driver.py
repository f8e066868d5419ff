"""Runs anywhere. Give a command to the driver of a run in another process; await its answer."""

import time
from contextlib import suppress
from dataclasses import dataclass

from sparkdl.errors import ControlError
from sparkdl.files import storage
from sparkdl.files.layout import RunPaths
from sparkdl.files.polling import poll_s, retry
from sparkdl.host.os_processes import process_start
from sparkdl.runner.loop.command_inbox import ended_error
from sparkdl.runs import Run, RunState
from sparkdl.runs.commands import Command, GivenCommand, command_url, write_command
from sparkdl.runs.events import CommandHandled, Event, RunEnded
from sparkdl.runs.history import read_run
from sparkdl.runs.journal_tail import JournalTail
from sparkdl.runs.owner import Claim, describe_owner, is_here, newest_claim, read_beat

# Seconds between two looks for the answer, and seconds after which the driver is taken for dead
# that has written no heartbeat either: on a shared disk, and on a remote store.
LOOK_S = (0.05, 2.0)
ANSWER_S = (15.0, 30.0)


def ask_driver(run: Run, command: Command) -> CommandHandled:
    """Give a command to the driver of a run, and return its answer.

    Args:
        run: the run, as it was read at any time.
        command: the command, in the form in which its file stores it.

    Raises:
        ControlError: if the driver refuses the command, or no driver answers.
        OSError: if the run directory cannot be read or written.
    """
    paths = RunPaths(run.path)
    claim = newest_claim(paths)
    _check_alive(run, command, claim)
    beat = read_beat(paths, claim.number)
    tail = JournalTail(paths.journal)
    question = _Question(run, paths, command, write_command(paths, GivenCommand.here(command)))
    try:
        return _await_answer(question, claim, beat, tail)
    except KeyboardInterrupt:
        question.withdraw()
        raise


def _await_answer(
    question: "_Question", claim: Claim, beat: bytes | None, tail: JournalTail
) -> CommandHandled:
    """Return the answer to a command whose file was written, see `ask_driver`."""
    run, command, paths = question.run, question.command, question.paths
    deadline = time.monotonic() + poll_s(run.path, *ANSWER_S)
    while time.monotonic() < deadline:
        time.sleep(poll_s(run.path, *LOOK_S))
        events = retry(tail.read, f"look for the answer of the driver of run {run.id}")
        if answer := question.answer_in(events):
            return answer
        if any(isinstance(event, RunEnded) for event in events):
            question.withdraw()
            raise _error_of_end(run, command)
        if _is_gone(claim) and newest_claim(paths).number == claim.number:
            break
    # The driver may have answered in the last moment.
    if answer := question.answer_in(tail.read()):
        return answer
    raise question.unanswered(claim, beat)


@dataclass(frozen=True)
class _Question:
    """A command whose file was written.

    Attributes:
        run: the run.
        paths: the files of the run.
        command: the command.
        id: the name of the file.
    """

    run: Run
    paths: RunPaths
    command: Command
    id: str

    def answer_in(self, events: list[Event]) -> CommandHandled | None:
        """Return the answer of a driver, if it is among the events.

        Raises:
            ControlError: if the driver has refused the command.
        """
        for event in events:
            if isinstance(event, CommandHandled) and event.id == self.id:
                if event.refused is not None:
                    raise ControlError(
                        f"run {self.run.id} refused {self.command}: {event.refused}", self.run
                    )
                return event
        return None

    def withdraw(self) -> None:
        """Remove the file, so that no later driver carries out the command."""
        with suppress(OSError):
            storage.remove(command_url(self.paths, self.id))

    def unanswered(self, claim: Claim, beat: bytes | None) -> ControlError:
        """Return the error of a command that no driver has answered in time.

        Args:
            claim: the owner of the run when the command was given.
            beat: the heartbeat of that owner then.
        """
        now = newest_claim(self.paths)
        if now.process is None:
            self.withdraw()
            return _error_of_end(self.run, self.command)
        is_silent = _is_gone(now) or (
            now.number == claim.number and read_beat(self.paths, now.number) == beat
        )
        if is_silent:
            self.withdraw()
            return _dead(self.run, self.command, now)
        return ControlError(
            f"{describe_owner(now.process)}, which runs {self.run.id}, is alive but has not "
            f"answered yet. {self.command} stays in {self.paths.control}, and is carried out as "
            "soon as the driver reads it.",
            self.run,
        )


def _check_alive(run: Run, command: Command, claim: Claim) -> None:
    """Validate that a driver may answer, as far as that is known at once.

    Raises:
        ControlError: if the run has ended, or its driver is dead.
    """
    if claim.process is None:
        raise _error_of_end(run, command)
    if _is_gone(claim):
        raise _dead(run, command, claim)


def _is_gone(claim: Claim) -> bool:
    """Return True if the owner was a process of this host and has ended."""
    owner = claim.process
    if owner is None or not is_here(owner):
        return False
    return bool(process_start(owner["pid"]) != owner["started"])


def _error_of_end(run: Run, command: Command) -> ControlError:
    now = read_run(run.path)
    if now.state == RunState.RUNNING:
        how = f", as its driver has left it. {now.how_to_finish()}".rstrip(" .")
    else:
        reason = f" ({now.reason})" if now.reason else ""
        how = f" {now.state}{reason}. {now.how_to_finish()}".rstrip(" .")
    return ended_error(run, command, how)


def _dead(run: Run, command: Command, claim: Claim) -> ControlError:
    owner = describe_owner(claim.process) if claim.process else "its driver"
    return ControlError(
        f"no driver answers for run {run.id}: {owner} has ended before the run was finished. "
        f"{command} was not carried out. {read_run(run.path).how_to_finish()}".strip(),
        run,
    )
