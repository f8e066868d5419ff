"""Runs anywhere. The only filesystem code: read and write files on local disks and remote stores.

A file or folder is named by a URL that fsspec understands (`s3://bucket/runs`, `hdfs://...`,
`memory://...`) or by a plain local path. Local paths go directly to the operating system, as they
are common and must be fast.
"""

import os
import re
import shutil
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = [
    "absolute",
    "append",
    "copy",
    "create",
    "download",
    "exists",
    "filesystem",
    "fsync",
    "is_local",
    "join",
    "list_names",
    "local_path",
    "make_directory",
    "put",
    "read",
    "read_new",
    "remove",
    "rename",
    "size",
    "write",
]

# Stores in which a rename is atomic. In all others (object stores) a single put is atomic.
_RENAMING = {"hdfs", "webhdfs", "viewfs", "sftp", "ssh", "smb", "ftp", "abfs", "abfss"}
_PROTOCOL = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+)://")


def _protocol(url: str) -> str:
    match = _PROTOCOL.match(url)
    return match.group(1) if match else "file"


def is_local(url: str) -> bool:
    """Return True if `url` is on a filesystem of this host, NFS and FUSE mounts included."""
    return _protocol(url) in ("file", "local")


def local_path(url: str) -> Path:
    """Return the path of a local URL, such as `file:///data/runs` or `/data/runs`."""
    return Path(_PROTOCOL.sub("", url))


def absolute(url: str | os.PathLike[str]) -> str:
    """Return `url` with a relative path made absolute, as executors work in other folders."""
    url = os.fspath(url)
    return str(local_path(url).expanduser().absolute()) if is_local(url) else url.rstrip("/")


def join(url: str, *parts: str | int) -> str:
    """Return the URL of a file or folder below `url`."""
    return "/".join([url.rstrip("/"), *(str(part) for part in parts)])


def _remote(url: str) -> tuple[Any, str]:
    import fsspec  # Imported late: a process that uses only local paths starts faster without it.

    # Listings must not be cached, as other hosts write the files that are listed.
    url = re.sub(r"^s3[an]://", "s3://", url)
    filesystem, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    return filesystem, path


def filesystem(url: str) -> tuple[Any, str]:
    """Return the fsspec filesystem of a URL and the path in it, for libraries that open files."""
    return (_remote("/")[0], str(local_path(url).absolute())) if is_local(url) else _remote(url)


def read(url: str, offset: int = 0, size: int | None = None) -> bytes:
    """Return the content of a file, or a part of it.

    Args:
        url: the file.
        offset: number of bytes to skip.
        size: number of bytes to read, fewer at the end of the file; None reads to the end.

    Raises:
        FileNotFoundError: if there is no such file.
    """
    if is_local(url):
        with local_path(url).open("rb") as file:
            file.seek(offset)
            return file.read(size)
    filesystem, path = _remote(url)
    if offset >= filesystem.size(path):
        return b""  # Some stores refuse a range beyond the end.
    end = None if size is None else offset + size
    data: bytes = filesystem.cat_file(path, start=offset or None, end=end)
    return data


def read_new(offsets: Mapping[str, int]) -> dict[str, bytes]:
    """Return the content of many files beyond an offset. Files without new content are left out.

    A remote store is asked for all files at once.

    Args:
        offsets: number of bytes to skip, by the URL of the file. All remote files are in one store.
    """
    local = {url: _read_beyond(url, offset) for url, offset in offsets.items() if is_local(url)}
    new: dict[str, bytes] = {url: data for url, data in local.items() if data}
    remote = [url for url in offsets if url not in local]
    if remote:
        filesystem, _ = _remote(remote[0])
        paths = [_remote(url)[1] for url in remote]
        starts = [offsets[url] for url in remote]
        # Some stores refuse a range beyond the end of a file; that error means "nothing new".
        results = filesystem.cat_ranges(paths, starts, [None] * len(paths), on_error="return")
        pairs = zip(remote, results, strict=True)
        new |= {url: data for url, data in pairs if isinstance(data, bytes) and data}
    return new


def _read_beyond(url: str, offset: int) -> bytes:
    path = _PROTOCOL.sub("", url)
    try:
        if os.stat(path).st_size <= offset:
            return b""
        return read(url, offset)
    except FileNotFoundError:
        return b""


def write(url: str, data: bytes | str) -> None:
    """Write a whole file atomically: a reader sees the old or the new content, never a part.

    Args:
        url: the file; missing folders above it are created.
        data: bytes, or text that is encoded as UTF-8.
    """
    data = data.encode(errors="backslashreplace") if isinstance(data, str) else data
    if is_local(url):
        path = local_path(url)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            aside.write_bytes(data)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        return
    filesystem, target = _remote(url)
    filesystem.makedirs(os.path.dirname(target), exist_ok=True)
    if _protocol(url) in _RENAMING:
        remote_aside = f"{target}.{uuid.uuid4().hex}"
        filesystem.pipe_file(remote_aside, data)
        filesystem.mv(remote_aside, target)
    else:
        filesystem.pipe_file(target, data)


def create(url: str, data: bytes | str) -> None:
    """Write a whole file that does not exist yet. Of several callers at once, one succeeds.

    Raises:
        FileExistsError: if the file exists.
    """
    data = data.encode() if isinstance(data, str) else data
    if is_local(url):
        path = local_path(url)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            aside.write_bytes(data)
            os.link(aside, path)
        finally:
            aside.unlink(missing_ok=True)
        return
    filesystem, target = _remote(url)
    filesystem.makedirs(os.path.dirname(target), exist_ok=True)
    filesystem.pipe_file(target, data, mode="create")


def append(url: str, data: bytes) -> None:
    """Add `data` to the end of a file. The file must have a single writer."""
    if is_local(url):
        descriptor = os.open(local_path(url), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
        return
    # Most object stores cannot append, so the file, which is small, is written again as a whole.
    try:
        content = read(url)
    except FileNotFoundError:
        content = b""
    write(url, content + data)


def size(url: str) -> int:
    """Return the size of a file in bytes.

    Raises:
        FileNotFoundError: if there is no such file.
    """
    if is_local(url):
        return local_path(url).stat().st_size
    filesystem, path = _remote(url)
    return int(filesystem.size(path))


def exists(url: str) -> bool:
    """Return True if there is a file or folder at `url`."""
    if is_local(url):
        return local_path(url).exists()
    filesystem, path = _remote(url)
    return bool(filesystem.exists(path))


def list_names(url: str) -> list[str]:
    """Return the names of the files and folders in a folder, sorted; empty if it is missing."""
    try:
        if is_local(url):
            return sorted(os.listdir(local_path(url)))
        filesystem, path = _remote(url)
        entries = filesystem.ls(path, detail=False)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in entries)


def make_directory(url: str) -> None:
    """Create a folder and the folders above it. Object stores have no folders and need none."""
    if is_local(url):
        local_path(url).mkdir(parents=True, exist_ok=True)
    else:
        filesystem, path = _remote(url)
        filesystem.makedirs(path, exist_ok=True)


def rename(url: str, new: str) -> None:
    """Move a file or folder within its store; without `url`, do nothing."""
    if not exists(url):
        return
    if is_local(url):
        local_path(new).parent.mkdir(parents=True, exist_ok=True)
        local_path(url).rename(local_path(new))
    else:
        filesystem, path = _remote(url)
        filesystem.mv(path, _remote(new)[1], recursive=True)


def remove(url: str) -> None:
    """Remove a file, or a folder with its content; without `url`, do nothing."""
    if is_local(url):
        path = local_path(url)
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    elif exists(url):
        filesystem, target = _remote(url)
        filesystem.rm(target, recursive=True)


def copy(source: Path, url: str) -> None:
    """Copy a local file or folder to `url`."""
    for path in sorted(source.rglob("*")) if source.is_dir() else [source]:
        if path.is_file():
            parts = path.relative_to(source).parts
            write(join(url, *parts), path.read_bytes())


def put(folder: Path, name: str, url: str) -> None:
    """Copy a file of a local folder in pieces, so that it may be larger than memory.

    Args:
        folder: the local folder.
        name: the path of the file relative to `folder`, and of the copy relative to `url`.
        url: the folder of the copy.
    """
    if is_local(url):
        path = local_path(url) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, path)
        return
    filesystem, target = _remote(url)
    target = join(target, name)
    filesystem.makedirs(os.path.dirname(target), exist_ok=True)
    filesystem.put_file(str(folder / name), target)


def download(url: str, folder: Path) -> None:
    """Copy the content of a remote folder to a local folder; without `url`, do nothing."""
    filesystem, path = _remote(url)
    for source in filesystem.find(path):
        target = folder / source[len(path) :].lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        filesystem.get_file(source, str(target))


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
