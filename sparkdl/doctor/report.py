"""Runs anywhere (pure). The checks of a driver and its executors, as text and as JSON."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl.host.supported_versions import Deviation
from sparkdl.runs.states import TextEnum

WIDTH = 100
# Of many hosts with the same fault, so many are named.
MAX_NAMED = 5


class State(TextEnum):
    """The result of a check."""

    OK = "ok"
    NOTE = "note"
    FAULT = "fault"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        subject: what was checked, such as `Java`.
        state: the result. A note is worth knowing, but no fault.
        text: the facts, in a sentence.
        remedy: a sentence about how to correct a fault; empty where nothing needs to be done.
    """

    subject: str
    state: State
    text: str
    remedy: str = ""


def ok(subject: str, text: str) -> Check:
    """Return a check without a fault."""
    return Check(subject, State.OK, text)


def note(subject: str, text: str, remedy: str = "") -> Check:
    """Return a check with a remark."""
    return Check(subject, State.NOTE, text, remedy)


def fault(subject: str, text: str, remedy: str) -> Check:
    """Return a check that has found a fault."""
    return Check(subject, State.FAULT, text, remedy)


def not_checked(subject: str, why: str) -> Check:
    """Return a check that could not be made."""
    return Check(subject, State.SKIPPED, f"not checked: {why}")


def check_of(subject: str, deviation: Deviation | None) -> Check | None:
    """Return the check of a version that is not supported or not tested; None for any other."""
    if deviation is None:
        return None
    state = State.FAULT if deviation.is_refused else State.NOTE
    return Check(subject, state, deviation.text, deviation.remedy)


@dataclass(frozen=True)
class HealthReport:
    """The results of all checks, in the order in which they were made.

    Attributes:
        checks: the checks.

    Example:
        >>> checks = [ok("Java", "Java 17"), fault("Root", "/runs is full.", "Free some space.")]
        >>> report = HealthReport(checks)
        >>> print(report)
        ok       Java  Java 17
        FAULT    Root  /runs is full.
                       -> Free some space.
        1 fault.
        >>> report.is_healthy, report.faults[0].remedy
        (False, 'Free some space.')
    """

    checks: Sequence[Check]

    @property
    def faults(self) -> list[Check]:
        """The checks that have found a fault."""
        return [check for check in self.checks if check.state is State.FAULT]

    @property
    def is_healthy(self) -> bool:
        """True if no check has found a fault."""
        return not self.faults

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict for JSON."""
        checks = [{**vars(check), "state": str(check.state)} for check in self.checks]
        return {"healthy": self.is_healthy, "checks": checks}

    def __str__(self) -> str:
        width = max((len(check.subject) for check in self.checks), default=0)
        lines = []
        for check in self.checks:
            word = "FAULT" if check.state is State.FAULT else str(check.state)
            head = f"{word:<7}  {check.subject:<{width}}  "
            lines += _wrap(head, check.text)
            if check.remedy:
                lines += _wrap(" " * len(head) + "-> ", check.remedy)
        count = len(self.faults)
        lines.append("No faults." if not count else f"{count} fault{'s' if count > 1 else ''}.")
        return "\n".join(lines)


def _wrap(head: str, text: str) -> list[str]:
    indent = " " * len(head)
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=head,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def in_short(names: Iterable[str]) -> str:
    """Return names as one phrase, of which many are counted rather than named.

    Example:
        >>> in_short(["b", "a", "b"]), in_short("abcdefgh")
        ('a, b', 'a, b, c, d, e and 3 more')
    """
    unique = sorted(set(names))
    text = ", ".join(unique[:MAX_NAMED])
    rest = len(unique) - MAX_NAMED
    return f"{text} and {rest} more" if rest > 0 else text
