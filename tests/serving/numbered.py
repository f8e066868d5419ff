"""Models without TensorFlow, which load quickly and whose versions answer with their numbers."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["GATE", "NAME", "WAITS", "add_version", "load"]

NAME = "numbered"
# A row with this number waits until the file that the environment variable names exists.
WAITS = -1.0
GATE = "SPARKDL_TEST_GATE"


def load(folder: Path) -> Callable[[Any], Any]:
    text = (folder / "number.txt").read_text()
    if text == "kill":
        # As a fault of a library in the process of the server that loads the model.
        os.kill(os.getppid(), signal.SIGKILL)
    if text.startswith("wait "):
        _wait("loads")
    number = float(text.removeprefix("wait "))

    def compute(x: Any) -> Any:
        if (x == WAITS).any():
            _wait("waits")
        return np.full((len(x), 2), number)

    return compute


def _wait(word: str) -> None:
    gate = Path(os.environ[GATE])
    gate.with_name(f"{word}-{os.getpid()}").touch()
    while not gate.exists():
        time.sleep(0.01)


def add_version(root: str, number: int, folder: Path, text: str = "") -> None:
    """Export a version that answers with its number, or whose file has another text."""
    from sparkdl import models

    files = folder / f"weights-{number}"
    files.mkdir()
    (files / "number.txt").write_text(str(number))
    version = models.export(str(files), NAME, loader=load, signature=np.ones((2, 2)), root=root)
    if text:
        (path,) = Path(version.path).rglob("number.txt")
        path.write_text(text)
