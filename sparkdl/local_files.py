"""Runs anywhere. Files on local disks, NFS and FUSE mounts: complete writes, or an error.

`sparkdl.storage` builds upon this module.
"""

import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["append", "below", "create", "fsync", "read_beyond", "write", "write_fully"]


def read_beyond(path: Path, offset: int) -> bytes | OSError | None:
    """Return the content of a file beyond an offset, None if it is missing, or the error."""
    try:
        # Not `stat`: only `open` asks an NFS server for the file's present size.
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size <= offset:
                return b""
            file.seek(offset)
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        return exc


def write(path: Path, data: bytes) -> None:
    """Write a whole file: a reader sees the old or the new content, never a part."""
    aside = _write_aside(path, data)
    try:
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _write_aside(path: Path, data: bytes) -> Path:
    """Write data into a new file beside `path`, and return its path."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        try:
            aside.write_bytes(data)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            aside.write_bytes(data)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    return aside


def create(path: Path, data: bytes) -> None:
    """Write a whole file that does not exist yet.

    Raises:
        FileExistsError: if the file exists.
    """
    aside = _write_aside(path, data)
    try:
        os.link(aside, path)
    except FileExistsError:
        # On NFS the answer to a request that was repeated: the link was made by the first one.
        if os.stat(aside).st_nlink < 2:
            raise
    except OSError:  # Some mounts have no links.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            write_fully(descriptor, data)
        except BaseException:
            path.unlink()
            raise
        finally:
            os.close(descriptor)
    finally:
        aside.unlink(missing_ok=True)


def append(path: Path, data: bytes) -> None:
    """Add data to the end of a file that has a single writer; after an error it is as before."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    try:
        descriptor = os.open(path, flags, 0o644)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, flags, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        try:
            write_fully(descriptor, data)
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def write_fully(descriptor: int, data: bytes) -> None:
    """Write all of `data` to an open file; the system may take less of it at a time.

    Raises:
        OSError: if not all was written, for example because the disk is full.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def fsync(paths: Iterable[Path]) -> None:
    """Flush local files and folders to disk, so that they survive a loss of power."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError:
            if not path.is_dir():  # Some mounts cannot flush folders.
                raise
        finally:
            os.close(descriptor)


def below(folder: Path, name: str) -> Path:
    """Return the path of the local copy of a file.

    Args:
        folder: the local folder of the copies.
        name: the path of the file, relative to the folder in the store.

    Raises:
        OSError: if the path leads out of the folder: in object stores `..` is a name like others.
    """
    if ".." in name.split("/"):
        raise OSError(f"the store has a file {name!r}, which cannot be copied to {folder}.")
    return folder / name.lstrip("/")
