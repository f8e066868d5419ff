"""Runs on the driver. Values that are read again beside the requests that ask for them."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")

# A large value takes a while to read: no more than this share of the time is spent on it.
MAX_SHARE = 0.1


class Refreshed(Generic[Value]):
    """A value that a thread reads again when it is asked for and old.

    The first call of `get` waits for the value. Any other call returns what was read last.

    Args:
        read: returns the value.
        least_s: seconds for which the value is not read again.
    """

    def __init__(self, read: Callable[[], Value], least_s: float) -> None:
        self._read = read
        self._least_s = least_s
        self._lock = threading.Lock()
        self._values: list[Value] = []
        self._error: Exception | None = None
        self._next_s = 0.0

    def get(self) -> Value:
        """Return the value as it was read last.

        Raises:
            Exception: the error of the last attempt to read the value.
        """
        if not self._values:
            with self._lock:
                if not self._values:
                    self._update()
        elif time.monotonic() >= self._next_s and self._lock.acquire(blocking=False):
            threading.Thread(target=self._update_and_release, daemon=True).start()
        if self._error:
            raise self._error.with_traceback(None)
        return self._values[0]

    def read_now(self) -> None:
        """Read the value again, and wait until that is done."""
        with self._lock:
            self._update()

    def _update_and_release(self) -> None:
        try:
            self._update()
        finally:
            self._lock.release()

    def _update(self) -> None:
        begun_s = time.monotonic()
        try:
            self._values = [self._read()]
            self._error = None
        except Exception as exc:  # noqa: BLE001 `get` raises the exception.
            self._error = exc
        now_s = time.monotonic()
        self._next_s = now_s + max(self._least_s, (now_s - begun_s) / MAX_SHARE)
