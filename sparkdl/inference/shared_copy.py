"""Runs in a Spark task. Fetch and check a model once for all Python workers of a host.

The copies are in Spark's local directory, which Spark or YARN removes with the application. A lock
file per model makes the other workers wait for the one that fetches; the kernel releases a lock
with its process, also if Spark kills the process.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

# Copies that are kept for workers that start later; the least recently used ones are removed.
MAX_COPIES = 3


@contextlib.contextmanager
def fetch_once(folder: Path, key: str, fetch: Callable[[Path], None]) -> Iterator[Path]:
    """Yield the folder with the copy of a model, which is not removed meanwhile.

    Args:
        folder: see `executor_folder`.
        key: the identity of the model's contents, which is the name of the copy.
        fetch: fills an empty folder with the model and checks it; called by one worker of the host.
    """
    copy = folder / key
    with _open_lock(folder, key) as lock:
        while True:
            fcntl.flock(lock, fcntl.LOCK_SH)
            if copy.exists():
                break
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not copy.exists():
                _fill(copy, fetch)
                _remove_old_copies(folder, copy)
        os.utime(copy)
        yield copy


def _fill(copy: Path, fetch: Callable[[Path], None]) -> None:
    partial = _empty_place(copy)
    partial.mkdir()
    try:
        fetch(partial)
        partial.rename(copy)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _empty_place(copy: Path) -> Path:
    """Return the path of an incomplete copy, without the one of a worker that was killed."""
    partial = copy.with_name(f"{copy.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    return partial


def _remove_old_copies(folder: Path, newest: Path) -> None:
    """Remove copies that no worker is reading, except the most recently used ones."""
    copies = [path for path in folder.iterdir() if path.is_dir() and path.suffix != ".partial"]
    others = sorted((p for p in copies if p != newest), key=lambda p: p.stat().st_mtime)
    for path in others[: max(0, len(others) + 1 - MAX_COPIES)]:
        with _open_lock(folder, path.name) as lock, contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.rename(_empty_place(path))
            _empty_place(path)


def check_once(folder: Path, path: Path, key: str, check: Callable[[], None]) -> None:
    """Check a model that the workers read where it is, unless one of them has checked it.

    Args:
        folder: see `executor_folder`.
        path: the model's file or folder.
        key: the identity of the model's contents.
        check: raises an error if the model has other contents.
    """
    checked = folder / f"{key}-{_state_of(path)}.checked"
    if checked.exists():
        return
    with _open_lock(folder, key) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not checked.exists():
            check()
            checked.touch()


def _state_of(path: Path) -> str:
    """Return a digest that changes when a file of a model is written again."""
    state = hashlib.sha256(os.fsencode(path))
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        status = file.stat()
        values = (str(file), status.st_size, status.st_mtime_ns, status.st_ino)
        state.update(repr(values).encode(errors="backslashreplace"))
    return state.hexdigest()[:16]


@contextlib.contextmanager
def _open_lock(folder: Path, key: str) -> Iterator[int]:
    descriptor = os.open(folder / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
