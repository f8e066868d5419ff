"""Runs anywhere. Files on local disks, NFS and FUSE mounts: complete writes, or an error.

`sparkdl.files.storage` builds upon this module.
"""

import errno
import io
import os
import shutil
import stat
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def open_file(path: Path) -> io.BufferedReader:
    """Open a file to read it.

    Raises:
        OSError: if the path is that of a pipe or a device, of which a reader may never see the end.
    """
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 The caller closes it.
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "a pipe or a device, where a file was expected", str(path))


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # Else a pipe waits here for one who writes.


def read_beyond(path: Path, offset: int, most: int | None = None) -> bytes | OSError | None:
    """Return the content of a file beyond an offset, None if it is missing, or the error.

    Args:
        path: the file.
        offset: number of bytes to skip.
        most: more bytes are an error, as of a file with holes, which takes no room on the disk.
    """
    try:
        # Not `stat`: only `open` asks an NFS server for the file's present size.
        with open_file(path) as file:
            num_bytes = os.fstat(file.fileno()).st_size - offset
            if num_bytes <= 0:
                return b""
            if most is not None and num_bytes > most:
                return OSError(
                    errno.EFBIG, f"{num_bytes} bytes; expected at most {most}", str(path)
                )
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
            make_directory(path.parent)
            aside.write_bytes(data)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    _share(aside)
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
        _share(path)
    finally:
        aside.unlink(missing_ok=True)


def copy(source: Path, path: Path) -> None:
    """Copy the content of a file; the copy has the rights of its folder, not of the file."""
    make_directory(path.parent)
    shutil.copyfile(source, path)
    _share(path)


def make_directory(path: Path, permissions: int | None = None) -> None:
    """Create a folder and the folders above it.

    Args:
        path: the folder.
        permissions: the permissions of a folder that does not exist yet, whatever the umask says.
            Mounts that refuse to change them are tolerated. None for those that the umask leaves,
            with all rights that the group and others have on the folder above it: a run directory
            that several users may write to stays so in its folders.
    """
    if permissions is None:
        _make_like_the_one_above(path)
        return
    with suppress(FileExistsError):
        try:
            path.mkdir(mode=0o700)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700)
        with suppress(OSError):
            path.chmod(permissions)


def rename(path: Path, new: Path) -> None:
    """Move a file or folder to a new name; also a folder of this user that is read-only.

    A program makes its own folder read-only by copying a read-only folder into it, for example.
    """
    make_directory(new.parent)
    try:
        path.rename(new)
    except PermissionError:
        mode = path.lstat().st_mode
        if not stat.S_ISDIR(mode) or mode & stat.S_IWUSR:
            raise
        path.chmod(stat.S_IMODE(mode) | stat.S_IRWXU)
        moved = path
        try:
            moved = path.rename(new)
        finally:
            moved.chmod(stat.S_IMODE(mode))


def _make_like_the_one_above(path: Path) -> None:
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise
    except FileNotFoundError:
        _make_like_the_one_above(path.parent)
        _make_like_the_one_above(path)
    else:
        _share(path)


def _share(path: Path) -> None:
    """Give group and others the rights on a new file or folder that they have on its folder.

    A folder like `/tmp`, in which users cannot remove the files of others, says nothing.
    """
    with suppress(OSError):
        above = path.parent.stat().st_mode
        if above & stat.S_ISVTX or not above & 0o077:
            return
        mode = path.stat().st_mode
        rights = above & (0o077 if stat.S_ISDIR(mode) else 0o066)
        if rights & ~mode:
            path.chmod(stat.S_IMODE(mode | rights))


def append(path: Path, data: bytes) -> None:
    """Add data to the end of a file that has a single writer; after an error it is as before."""
    flags = os.O_WRONLY | os.O_APPEND
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        make_directory(path.parent)
        descriptor = os.open(path, flags | os.O_CREAT, 0o644)
        _share(path)
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
