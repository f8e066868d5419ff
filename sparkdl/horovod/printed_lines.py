"""Runs in the training process. Keep what a rank prints for the streams of `horovod.spark.run`."""

import contextlib
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sparkdl import context
from sparkdl.files.layout import PRINTED

__all__ = ["call_with_kept_lines", "keep_printed_lines"]

_STREAMS = {"stdout": 1, "stderr": 2}
_READ_BYTES = 1 << 16
# Seconds between two copies to the log.
_COPY_S = 0.1


def call_with_kept_lines(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function on a rank and return its value; keep what it prints.

    Args:
        function, *args, **kwargs: the function and its arguments.
    """
    me = context.current()
    with keep_printed_lines(Path(me.folder or "."), me.rank):
        return function(*args, **kwargs)


@contextlib.contextmanager
def keep_printed_lines(folder: Path, rank: int) -> Iterator[None]:
    """Write what the block prints to files of standard output and error, and to the log.

    The descriptors are replaced, so that the output of native code and of child processes counts.
    They lead to files and not to pipes: a process that dies has lost nothing that it has printed,
    and native code that prints without releasing Python's lock waits for no reader.

    Args:
        folder: the folder of the trial.
        rank: the rank.
    """
    printed = folder / PRINTED
    printed.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as undone:
        for name, descriptor in _STREAMS.items():
            # A process that follows after the loss of this one has a file of its own.
            file = printed / f"{name}-{rank}-{uuid.uuid4().hex}"
            undone.enter_context(_written_to(file, descriptor))
        yield


@contextlib.contextmanager
def _written_to(path: Path, descriptor: int) -> Iterator[None]:
    """Lead a descriptor to a file, which is copied to where the descriptor led before."""
    stream = sys.stdout if descriptor == 1 else sys.stderr
    stream.flush()
    before = os.dup(descriptor)
    with path.open("ab") as file:
        os.dup2(file.fileno(), descriptor)
    copier = _Copier(path, os.dup(before))
    copier.start()
    try:
        yield
    finally:
        stream.flush()
        os.dup2(before, descriptor)
        os.close(before)
        copier.copy()


class _Copier(threading.Thread):
    """Copy what is added to a file to a log, until the process ends.

    Child processes may print when the function has returned.

    Args:
        path: the file.
        log: the descriptor of the log.
    """

    def __init__(self, path: Path, log: int) -> None:
        super().__init__(daemon=True)
        self._file = path.open("rb", buffering=0)
        self._log = log
        self._lock = threading.Lock()

    def run(self) -> None:
        pause = threading.Event()
        while not pause.wait(_COPY_S):
            self.copy()

    def copy(self) -> None:
        """Copy what is new."""
        with self._lock:
            while data := self._file.read(_READ_BYTES):
                # A full disk ends no training.
                with contextlib.suppress(OSError):
                    os.write(self._log, data)
