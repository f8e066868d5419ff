"""Runs on the driver. Ctrl-C, which ends a run wherever it meets the program.

The handlers of Python and of PySpark raise `KeyboardInterrupt` in whatever the main thread does.
Python ignores what is raised in a finalizer, such as those in which py4j lets go of objects of
Java: the run would go on, though PySpark has cancelled its jobs. So the interrupt is also noted.
https://docs.python.org/3/reference/datamodel.html#object.__del__
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """Notes a SIGINT while the block runs, if the main thread runs it and handles SIGINT."""

    def __init__(self) -> None:
        self._has_come = False
        self._handler: Any = None

    def __enter__(self) -> "Interrupts":
        handler = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(handler):
            self._handler = handler
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        # A session that was created meanwhile has put its own handler in this place.
        if self._handler and signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, self._handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._has_come = True
        self._handler(number, frame)

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if a SIGINT has come, and what it raised was ignored."""
        if self._has_come:
            self._has_come = False
            raise KeyboardInterrupt
