"""Runs anywhere. Whole folders on local disks and stores: their files, copies, and removal."""

import glob
import hashlib
import os
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

from sparkdl.files import storage
from sparkdl.files.store_errors import store_errors
from sparkdl.files.stores import connect, has_folders, local_path

# A file is copied in pieces of this size, and a copy that was interrupted goes on after the last.
PIECE_BYTES = 8 << 20

MAX_COPIES = 8

_PART = ".part"

# Larger times than this one are in milliseconds.
MAX_SECONDS = 1e11

# The properties of a file in a store that are the time of its last change.
_TIMES = ("LastModified", "last_modified", "mtime", "modificationTime", "updated", "created")


def files_in(url: str) -> dict[str, int]:
    """Return the size in bytes of each file in a folder and the folders below it.

    Args:
        url: the folder; a folder that does not exist has no files.

    Returns:
        The sizes by the path of the file, relative to `url`, sorted.
    """
    return {name: size for name, (size, _) in _entries(url).items()}


def _entries(url: str) -> dict[str, tuple[int, float | None]]:
    """Return the size and the time of the last change of each file below a folder.

    The time, in seconds since 1970, is None in stores that do not tell.
    """
    with store_errors(url):
        if storage.is_local(url):
            return dict(sorted(_local_files(local_path(url))))
        filesystem, path = connect(url)
        path = path.rstrip("/")
        try:
            infos = filesystem.find(path, detail=True)
        except FileNotFoundError:
            return {}
    start = len(filesystem._strip_protocol(path).rstrip("/")) + 1
    entries = {name[start:]: info for name, info in infos.items() if name[start:]}
    return {
        name: (int(info["size"] or 0), _changed_s(info)) for name, info in sorted(entries.items())
    }


def _changed_s(info: Mapping[str, Any]) -> float | None:
    """Return the time of the last change of a file in a store; None if the store does not tell."""
    for key in _TIMES:
        value = info.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float) and value:
            return value / 1000 if value > MAX_SECONDS else float(value)
    return None


def _local_files(folder: Path) -> Iterator[tuple[str, tuple[int, float]]]:
    # Other processes may remove files meanwhile.
    pending = [str(folder)]
    while pending:
        try:
            entries = list(os.scandir(pending.pop()))
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    status = entry.stat(follow_symlinks=False)
                    size_and_time = status.st_size, status.st_mtime
                    yield os.path.relpath(entry.path, folder), size_and_time
            except FileNotFoundError:
                continue


def sha256(url: str) -> str:
    """Return the SHA-256 of a file in hexadecimal; the file is read in pieces.

    Args:
        url: path or URL of the file.
    """
    digest, offset, is_whole = hashlib.sha256(), 0, False
    while not is_whole:
        piece = storage.read(url, offset, PIECE_BYTES)
        digest.update(piece)
        offset += len(piece)
        is_whole = len(piece) < PIECE_BYTES
    return digest.hexdigest()


def remove_folder(url: str, last: str) -> None:
    """Remove a folder with its content.

    A local folder is renamed first, so that no reader finds a part of it.

    Args:
        url: the folder.
        last: the name of the file that is removed after all others where folders cannot be
            renamed: a removal that was interrupted can then be repeated.

    Raises:
        OSError: if something is left.
    """
    if storage.is_local(url):
        path = local_path(url)
        aside = path.with_name(f".{path.name}.deleted")
        storage.remove(str(aside))
        with store_errors(url):
            path.rename(aside)
        storage.remove(str(aside))
        if aside.exists():
            raise OSError(f"{aside} could not be removed. Check its permissions, and remove it.")
        return
    if has_folders(url):
        for name in storage.list_names(url):
            if name != last:
                storage.remove(storage.join(url, name))
    elif others := [storage.join(url, name) for name in files_in(url) if name != last]:
        storage.remove_files(others)
    storage.remove(storage.join(url, last))
    storage.remove(url)
    if files := files_in(url):
        raise OSError(f"{len(files)} files are left in {url}, such as {next(iter(files))}.")


def pull(
    url: str, folder: Path, changing: Collection[str] = (), last: Collection[str] = ()
) -> tuple[int, int]:
    """Copy a folder to a local folder; files that were copied before are not copied again.

    A file that was copied in part goes on where it ended. A file whose size and time are the same
    as before is taken for the same file. Copies get the times of the originals.

    Args:
        url: the folder.
        folder: the local folder, which is created.
        changing: names of files, or of folders with a slash at their end, that are replaced by
            other files of the same size, and so are always copied. Copies of files that are gone
            are removed.
        last: names of files that are copied after all others.

    Returns:
        The number of files that were copied now, and their size in bytes.
    """
    entries = _entries(url)
    missing = {
        name: entry
        for name, entry in entries.items()
        if name.startswith(tuple(changing)) or not _is_copied(storage.below(folder, name), *entry)
    }
    first = [name for name in missing if name not in last]
    with ThreadPoolExecutor(max_workers=MAX_COPIES) as pool:
        list(pool.map(lambda name: _pull_file(url, folder, name, *missing[name]), first))
    for name in missing.keys() & set(last):
        _pull_file(url, folder, name, *missing[name])
    for name in changing:
        if name not in entries and not name.endswith("/"):
            (folder / name).unlink(missing_ok=True)
    return len(missing), sum(size for size, _ in missing.values())


def _is_copied(path: Path, size: int, changed_s: float | None) -> bool:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    is_same_time = changed_s is None or abs(status.st_mtime - changed_s) < 1e-3
    return status.st_size == size and is_same_time


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _pull_file(url: str, folder: Path, name: str, size: int, changed_s: float | None) -> None:
    target = storage.below(folder, name)
    target.parent.mkdir(parents=True, exist_ok=True)
    # With size and time in the name, a part of another version of the file is not continued.
    part = target.with_name(f".{target.name}.{size}-{int(1000 * (changed_s or 0))}{_PART}")
    continue_copy(storage.join(url, name), part, size)
    if changed_s is not None:
        os.utime(part, (changed_s, changed_s))
    part.replace(target)
    for stale in target.parent.glob(f".{glob.escape(target.name)}.*{_PART}"):
        stale.unlink(missing_ok=True)


def continue_copy(url: str, target: Path, size: int) -> None:
    """Add to a local copy of a file what the copy lacks; a reader of the copy sees it grow.

    Args:
        url: the file, which is as it was when the copy was made, or has grown.
        target: the copy, which is created if it is missing.
        size: the size of the file in bytes.
    """
    offset = _size_of(target) or 0
    with open(target, "ab") as file:
        while offset < size:
            data = storage.read(url, offset, min(PIECE_BYTES, size - offset))
            if not data:
                break  # The file has become shorter; the next call copies it again.
            file.write(data)
            offset += len(data)
