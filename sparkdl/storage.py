"""Runs anywhere. The only filesystem code: every place that a run is kept in.

A place is a URL that fsspec understands (`s3://bucket/runs`, `hdfs://...`, `memory://...`) or a
plain local path. Local paths go straight to the operating system: they are the fast, common case.
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
    "download",
    "exists",
    "filesystem",
    "is_local",
    "join",
    "local_path",
    "make_directory",
    "names",
    "put",
    "read",
    "read_new",
    "remove",
    "rename",
    "settle",
    "size",
    "write",
]

# Stores where a rename is one atomic step. Elsewhere (object stores) a single put is atomic.
_RENAMING = {"hdfs", "webhdfs", "viewfs", "sftp", "ssh", "smb", "ftp", "abfs", "abfss"}
_PROTOCOL = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+)://")


def _protocol(url: str) -> str:
    found = _PROTOCOL.match(url)
    return found.group(1) if found else "file"


def is_local(url: str) -> bool:
    """Whether `url` is a path on this machine's filesystem (NFS and FUSE mounts included)."""
    return _protocol(url) in ("file", "local")


def local_path(url: str) -> Path:
    """The path behind a local URL, which may be written `file:///data/runs` or `/data/runs`."""
    return Path(_PROTOCOL.sub("", url))


def absolute(url: str | os.PathLike[str]) -> str:
    """`url` with a local relative path made absolute, since executors work in other folders."""
    url = os.fspath(url)
    return str(local_path(url).expanduser().absolute()) if is_local(url) else url.rstrip("/")


def join(url: str, *parts: str | int) -> str:
    """`url` with `parts` below it."""
    return "/".join([url.rstrip("/"), *(str(part) for part in parts)])


def _remote(url: str) -> tuple[Any, str]:
    import fsspec  # A training process on local paths starts without it.

    # Listings are never cached: other machines write what we look for.
    url = re.sub(r"^s3[an]://", "s3://", url)
    filesystem, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    return filesystem, path


def filesystem(url: str) -> tuple[Any, str]:
    """The fsspec filesystem of a place and its path there, for libraries that open files."""
    return (_remote("/")[0], str(local_path(url).absolute())) if is_local(url) else _remote(url)


def read(url: str, offset: int = 0, size: int | None = None) -> bytes:
    """`size` bytes from `offset` on, fewer at the end of the file.

    Raises:
        FileNotFoundError: there is no such file.
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
    """What each of many files has beyond an offset; those without anything new are left out.

    A store is asked for all of them at once.
    """
    local = {url: _tail(url, offset) for url, offset in offsets.items() if is_local(url)}
    found: dict[str, bytes] = {url: data for url, data in local.items() if data}
    remote = [url for url in offsets if url not in local]
    if remote:
        filesystem, _ = _remote(remote[0])
        paths = [_remote(url)[1] for url in remote]
        starts = [offsets[url] for url in remote]
        # Some stores refuse a range beyond the end, and that is an answer too.
        got = filesystem.cat_ranges(paths, starts, [None] * len(paths), on_error="return")
        answers = zip(remote, got, strict=True)
        found |= {url: data for url, data in answers if isinstance(data, bytes) and data}
    return found


def _tail(url: str, offset: int) -> bytes:
    path = _PROTOCOL.sub("", url)
    try:
        if os.stat(path).st_size <= offset:
            return b""
        return read(url, offset)
    except FileNotFoundError:
        return b""


def write(url: str, data: bytes | str) -> None:
    """Write a whole file so that nobody ever reads half of it."""
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
        beside = f"{target}.{uuid.uuid4().hex}"
        filesystem.pipe_file(beside, data)
        filesystem.mv(beside, target)
    else:
        filesystem.pipe_file(target, data)


def append(url: str, data: bytes) -> None:
    """Add `data` to the end of a file that has one writer."""
    if is_local(url):
        descriptor = os.open(local_path(url), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
        return
    # Most object stores cannot append: the file is written anew. It has one writer and is small.
    try:
        before = read(url)
    except FileNotFoundError:
        before = b""
    write(url, before + data)


def size(url: str) -> int:
    """How many bytes a file has.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if is_local(url):
        return local_path(url).stat().st_size
    filesystem, path = _remote(url)
    return int(filesystem.size(path))


def exists(url: str) -> bool:
    """Whether there is a file or folder at `url`."""
    if is_local(url):
        return local_path(url).exists()
    filesystem, path = _remote(url)
    return bool(filesystem.exists(path))


def names(url: str) -> list[str]:
    """The names in a folder, sorted; none where there is no such folder."""
    try:
        if is_local(url):
            return sorted(os.listdir(local_path(url)))
        filesystem, path = _remote(url)
        found = filesystem.ls(path, detail=False)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in found)


def make_directory(url: str) -> None:
    """Make a folder and those above it. Object stores have none, and need none."""
    if is_local(url):
        local_path(url).mkdir(parents=True, exist_ok=True)
    else:
        filesystem, path = _remote(url)
        filesystem.makedirs(path, exist_ok=True)


def rename(url: str, new: str) -> None:
    """Move a file or folder within its store; nothing happens where it is absent."""
    if not exists(url):
        return
    if is_local(url):
        local_path(new).parent.mkdir(parents=True, exist_ok=True)
        local_path(url).rename(local_path(new))
    else:
        filesystem, path = _remote(url)
        filesystem.mv(path, _remote(new)[1], recursive=True)


def remove(url: str) -> None:
    """Remove a file or folder with all that is in it; nothing happens where it is absent."""
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
            below = path.relative_to(source).parts
            write(join(url, *below), path.read_bytes())


def put(folder: Path, name: str, url: str) -> None:
    """Copy the file `name` of a local folder below `url`, in pieces: it may be larger than memory.

    Args:
        folder: the local folder.
        name: the file's path relative to `folder`, and the copy's relative to `url`.
        url: the folder that the copy is below.
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
    """Copy all that is in a store's folder to a local one; nothing where it is absent."""
    filesystem, path = _remote(url)
    for found in filesystem.find(path):
        target = folder / found[len(path) :].lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        filesystem.get_file(found, str(target))


def settle(paths: Iterable[Path]) -> None:
    """Return when these local files and folders would survive a loss of power."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError:
            if not path.is_dir():  # Some mounts cannot do it for folders.
                raise
        finally:
            os.close(descriptor)
