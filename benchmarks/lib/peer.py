"""Run a program under another interpreter, and exchange lines of text with it.

`peers/environment.sh` makes the environments. The module is imported on both sides, so it needs
only the standard library.
"""

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any, TextIO

__all__ = ["Peer", "add_option", "own_stdout", "python_of"]

_BENCHMARKS = Path(__file__).parents[1]
_ENVIRONMENTS = Path.home() / ".cache/sparkdl-peers"


class Peer:
    """A program of this folder that runs under another interpreter; a context manager.

    Args:
        python: the path of the interpreter.
        program: the program's path below `benchmarks/`.
        *arguments: the command line of the program.

    Attributes:
        versions: the versions of the packages that the program uses.
    """

    def __init__(self, python: str, program: str, *arguments: str) -> None:
        self._program = program
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

    def _read(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._program} ended with code {self._process.wait()}; see above")
        return json.loads(line)

    def ask(self, line: object) -> Any:
        """Send a line to the program; return its answer, read from JSON."""
        assert self._process.stdin
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._read()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # Closes the program's input, at which the program ends.


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--peers`, the folder of the environments."""
    text = "folder with environments that peers/environment.sh made; peers without one are left out"
    parser.add_argument("--peers", type=Path, default=_ENVIRONMENTS, metavar="FOLDER", help=text)


def python_of(environments: Path, name: str) -> str | None:
    """Return the interpreter of an environment, or None if there is no such environment."""
    python = environments.absolute() / name / "bin/python"
    return str(python) if python.exists() else None


def own_stdout() -> TextIO:
    """Return the pipe to the caller. All other output of this process goes to standard error."""
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return pipe
