"""Runs on the driver and in Spark tasks. Write, read and delete files in the root of the runs."""

import queue
import secrets
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkdl.files import storage

# Each operation is timed so many times, and the median counts.
ROUNDS = 3
# A store or a mount that does not answer for so long counts as broken.
LIMIT_S = 30.0

_CONTENT_BYTES = 1024


@dataclass(frozen=True, kw_only=True)
class RootProbe:
    """The access of one process to the root.

    Attributes:
        seconds: the seconds of an operation, by its name: `write`, `read` and `delete`.
        error: the error of the operation that failed; empty if none did.
        sees_driver: the process sees a file that the driver has written; None if there is none.
        name: the name of the file that the process has left for the driver; empty for none.
        mark: the content of that file.
    """

    seconds: Mapping[str, float]
    error: str = ""
    sees_driver: bool | None = None
    name: str = ""
    mark: str = ""


def probe_folder(root: str) -> str:
    """Return a new folder for the files of all processes; lists of runs leave it out."""
    return storage.join(root, f".doctor-{secrets.token_hex(4)}")


def probe_root(folder: str, name: str, driver_mark: str | None = None) -> RootProbe:
    """Write, read and delete files, look for the file of the driver, and leave a file for it.

    A process that does not see the file of the driver writes nothing: its folder is another one.

    Args:
        folder: the folder of the files, see `probe_folder`.
        name: a name that no other process uses.
        driver_mark: what the file of the driver contains; None without such a file.
    """
    seconds: dict[str, list[float]] = {"write": [], "read": [], "delete": []}
    sees_driver: bool | None = None
    mark = ""
    operation = "read the file of the driver in"
    try:
        if driver_mark is not None:
            sees_driver = within(LIMIT_S, lambda: has_mark(folder, "driver", driver_mark))
        for _ in range(ROUNDS if sees_driver is not False else 0):
            url = storage.join(folder, f"{name}-{secrets.token_hex(4)}")
            content = secrets.token_bytes(_CONTENT_BYTES)
            operation = "write to"
            seconds["write"].append(_seconds_of(lambda: storage.write(url, content)))  # noqa: B023
            operation = "read a file again that was written to"
            seconds["read"].append(_seconds_of(lambda: _check_content(url, content)))  # noqa: B023
            operation = "delete a file in"
            seconds["delete"].append(_seconds_of(lambda: storage.remove(url)))  # noqa: B023
        if sees_driver:
            operation = "write to"
            mark = leave_mark(folder, name)
    except Exception as exc:  # noqa: BLE001 Each store's library raises its own.
        advice = storage.advice(exc) if isinstance(exc, OSError) else ""
        text = f"cannot {operation} {folder} ({type(exc).__name__}: {exc}). {advice}"
        return RootProbe(seconds={}, error=text.strip(), sees_driver=sees_driver)
    medians = {name: statistics.median(times) for name, times in seconds.items() if times}
    return RootProbe(seconds=medians, sees_driver=sees_driver, name=mark and name, mark=mark)


def leave_mark(folder: str, name: str) -> str:
    """Write a file for other processes to look for, and return its content."""
    content = secrets.token_hex(8)
    within(LIMIT_S, lambda: storage.write(storage.join(folder, name), content))
    return content


def has_mark(folder: str, name: str, content: str) -> bool:
    """Return True if there is a file with the content that `leave_mark` returned.

    Raises:
        OSError: if the store fails.
    """
    try:
        return storage.read(storage.join(folder, name)) == content.encode()
    except FileNotFoundError:
        return False


def within(limit_s: float, action: Callable[[], Any]) -> Any:
    """Return what a function returns, or give up: a dead network file system blocks indefinitely.

    Raises:
        TimeoutError: if the function has not returned in time.
    """
    results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((action(), None))
        except BaseException as exc:  # noqa: BLE001 Raised again by the caller.
            results.put((None, exc))

    threading.Thread(target=run, name="sparkdl-probe", daemon=True).start()
    try:
        result, error = results.get(timeout=limit_s)
    except queue.Empty:
        raise TimeoutError(f"no answer within {limit_s:g} s") from None
    if error is not None:
        raise error
    return result


def _seconds_of(action: Callable[[], None]) -> float:
    begun_s = time.perf_counter()
    within(LIMIT_S, action)
    return time.perf_counter() - begun_s


def _check_content(url: str, content: bytes) -> None:
    if storage.read(url) != content:
        raise OSError("it has another content")
