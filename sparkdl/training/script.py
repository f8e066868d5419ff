"""Runs anywhere. A script that a verb takes in the place of a function."""

import contextlib
import linecache
import os
import sys
import tokenize
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkdl.errors import ConfigError


@dataclass(frozen=True)
class Script:
    """A script, which each call runs as `python script.py` does.

    Attributes:
        path: the path of the script on the driver.
        source: its text.
        arguments: the words after the script on the command line.
        folder: the working directory of the script; where a host does not have it, the script runs
            in that of the trial.

    Example:
        >>> Script("hello.py", "import sys; print(__name__, sys.argv[1:])", ("-e", "3"), ".")()
        __main__ ['-e', '3']
    """

    path: str
    source: str
    arguments: tuple[str, ...]
    folder: str

    @classmethod
    def read(cls, path: str | os.PathLike[str], arguments: Sequence[str]) -> "Script":
        """Read a script that is to run in the working directory of this process.

        Raises:
            ConfigError: if there is no such file, or the arguments are no list of words.
        """
        if isinstance(arguments, str) or not all(isinstance(word, str) for word in arguments):
            raise ConfigError(
                f"args is {arguments!r}; expected the words after the script, such as "
                '["--epochs", "3"].'
            )
        absolute = Path(path).resolve()
        try:
            with tokenize.open(absolute) as file:  # In the encoding that it declares.
                source = file.read()
        except (OSError, SyntaxError, UnicodeDecodeError) as exc:
            raise ConfigError(
                f"the script {os.fspath(path)!r} cannot be read: {exc}. Pass a function, or the "
                "path of a Python program on this machine."
            ) from exc
        return cls(str(absolute), source, tuple(arguments), str(Path.cwd()))

    @property
    def __name__(self) -> str:
        return Path(self.path).stem

    def __call__(self) -> None:
        """Run the script as the main module of this process.

        Raises:
            SystemExit: if the script exits with another code than 0.
        """
        main = types.ModuleType("__main__")
        vars(main).update(__file__=self.path, __cached__=None)
        # AutoGraph and tracebacks read the source, which may not be on this host, or an older one.
        lines = self.source.splitlines(keepends=True)
        linecache.cache[self.path] = len(self.source), None, lines, self.path
        before = (sys.modules["__main__"], sys.argv, sys.path)
        folder_before = Path.cwd()
        sys.modules["__main__"] = main
        sys.argv = [self.path, *self.arguments]
        sys.path = [str(Path(self.path).parent), *sys.path]
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        try:
            exec(compile(self.source, self.path, "exec"), vars(main))  # noqa: S102 The user's own.
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        finally:
            sys.modules["__main__"], sys.argv, sys.path = before
            with contextlib.suppress(FileNotFoundError):  # Its own error counts.
                os.chdir(folder_before)


def function_of(train: Any, args: Sequence[str]) -> Callable[[], Any]:
    """Return what a verb calls: its function, or the script of a path.

    Args:
        train: a function, or the path of a script.
        args: the words after the script on the command line.

    Raises:
        ConfigError: if a function has words, and see `Script.read`.
    """
    if isinstance(train, str | os.PathLike):
        return Script.read(train, args)
    if args:
        raise ConfigError(
            f"args is {args!r}, and train is a function. args= is for a script; "
            "functools.partial(train, ...) gives a function its arguments."
        )
    return train  # type: ignore[no-any-return]
