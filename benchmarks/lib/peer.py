"""Run a program under another interpreter, and exchange lines of text with it.

`peers/environment.sh` makes the environments. The module is imported on both sides, so it needs
only the standard library.
"""

import argparse
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

__all__ = ["Peer", "add_option", "own_stdout", "python_of", "started"]

_BENCHMARKS = Path(__file__).parents[1]
_ENVIRONMENTS = Path.home() / ".cache/sparkdl-peers"
ANSWER_S = 240  # A peer that gives no answer for so long is left out.


class Peer:
    """A program of this folder that runs under another interpreter; a context manager.

    Args:
        python: the path of the interpreter.
        program: the program's path below `benchmarks/`.
        *arguments: the command line of the program.
        answer_s: maximum seconds until an answer; None waits without limit.

    Attributes:
        versions: the versions of the packages that the program uses.
    """

    def __init__(
        self, python: str, program: str, *arguments: str, answer_s: float | None = None
    ) -> None:
        self._program = program
        self._answer_s = answer_s
        # The program imports `lib`. Its Python workers must use the same interpreter.
        paths = [str(_BENCHMARKS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        # As in an activated environment, Ray finds its console program on the path.
        path = os.pathsep.join((str(Path(python).parent), os.environ["PATH"]))
        env = {
            **os.environ,
            "PATH": path,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
        }
        self._process = subprocess.Popen(
            [python, str(_BENCHMARKS / program), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        self.versions: dict[str, str] = self._read()

    @property
    def is_running(self) -> bool:
        """False if the program has ended."""
        return self._process.poll() is None

    def _read(self) -> Any:
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], self._answer_s)[0]:
            self._process.kill()
            self._process.wait()
            raise RuntimeError(f"{self._program} gave no answer for {self._answer_s} s")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._program} ended with code {self._process.wait()}; see above")
        return json.loads(line)

    def ask(self, line: object) -> Any:
        """Send a line to the program; return its answer, read from JSON.

        Raises:
            RuntimeError: if the program ends, or gives no answer in time.
        """
        assert self._process.stdin
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._read()

    def ask_while_running(self, line: object) -> Any:
        """Return the answer to a line, or None if the program fails now or has failed before."""
        if not self.is_running:
            return None
        try:
            return self.ask(line)
        except (RuntimeError, BrokenPipeError) as exc:
            print(f"left out: {exc}", file=sys.stderr)
            return None

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_running:
            self._process.communicate()  # Closes the program's input, at which the program ends.


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--peers`, the folder of the environments."""
    text = "folder with environments that peers/environment.sh made; peers without one are left out"
    parser.add_argument("--peers", type=Path, default=_ENVIRONMENTS, metavar="FOLDER", help=text)


def python_of(environments: Path, name: str) -> str | None:
    """Return the interpreter of an environment, or None if there is no such environment."""
    python = environments.absolute() / name / "bin/python"
    return str(python) if python.exists() else None


def started(
    stack: ExitStack, environments: Path, programs: Mapping[str, str], *arguments: str
) -> dict[str, Peer]:
    """Start peers; those without an environment, and those that fail, are left out.

    Args:
        stack: ends the programs.
        environments: the folder of the environments.
        programs: the program of each environment, by the environment's name.
        *arguments: the command line of the programs.
    """
    running = {}
    for name, program in programs.items():
        if python := python_of(environments, name):
            try:
                peer = Peer(python, program, *arguments, answer_s=ANSWER_S)
            except RuntimeError as exc:
                print(f"left out: {exc}", file=sys.stderr)
                continue
            running[name] = stack.enter_context(peer)
    return running


def own_stdout() -> TextIO:
    """Return the pipe to the caller. All other output of this process goes to standard error."""
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return pipe
