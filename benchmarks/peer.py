"""A program of peers under an interpreter of its own, and how the two talk: a line each way.

It is imported on both sides, so it needs nothing but the standard library.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any, TextIO

__all__ = ["Peer", "own_stdout"]


class Peer:
    """A program beside this file that runs under another interpreter; a context manager.

    Args:
        python: the interpreter.
        program: the file's name.
        *arguments: its command line.
    """

    def __init__(self, python: str, program: str, *arguments: str) -> None:
        self._program = program
        # Its Python workers must be its own interpreter too.
        env = {**os.environ, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name(program)), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        self.versions: dict[str, str] = self._read()

    def _read(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._program} ended with code {self._process.wait()}; see above")
        return json.loads(line)

    def ask(self, line: object) -> Any:
        """What it answers to a line."""
        assert self._process.stdin
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._read()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # Closes its input, which ends it.


def own_stdout() -> TextIO:
    """The pipe to the caller. Whatever else is printed here goes to standard error."""
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return pipe
