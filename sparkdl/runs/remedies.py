"""Runs on the driver (pure). Name the calls that go on with a run, in the language of the user.

The user of a program writes Python, and the user of the command `sparkdl` types commands.
"""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_IN_SHELL: ContextVar[bool] = ContextVar("sparkdl_in_shell", default=False)


@contextmanager
def in_shell() -> Iterator[None]:
    """Let messages name commands of the command line in the block, in place of calls of Python."""
    token = _IN_SHELL.set(True)
    try:
        yield
    finally:
        _IN_SHELL.reset(token)


def is_in_shell() -> bool:
    """Return True where the user has typed a command."""
    return _IN_SHELL.get()


def argument(name: str, value: object) -> str:
    """Return an argument of `resume` as the user passes it.

    Example:
        >>> argument("retry", "failed")
        "retry='failed'"
        >>> with in_shell():
        ...     argument("retry", "failed")
        '--retry failed'
    """
    if is_in_shell():
        return f"--{name.replace('_', '-')} {shlex.quote(str(value))}"
    return f"{name}={value!r}"


def call(verb: str, path: str, **arguments: object) -> str:
    """Return the call of a verb for a run.

    Args:
        verb: the name of the function of `experiment` and of the command.
        path: the directory of the run.
        **arguments: further arguments.

    Example:
        >>> call("resume", "/r/a b", retry="failed")
        "experiment.resume('/r/a b', retry='failed')"
        >>> with in_shell():
        ...     call("resume", "/r/a b", retry="failed")
        "sparkdl resume '/r/a b' --retry failed"
    """
    given = [argument(name, value) for name, value in arguments.items()]
    if is_in_shell():
        return " ".join(["sparkdl", verb, shlex.quote(path), *given])
    return f"experiment.{verb}({', '.join([repr(path), *given])})"
