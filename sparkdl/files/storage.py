"""Runs anywhere. The only filesystem code: read and write files on local disks and remote stores.

A file or folder is named by a URL that fsspec understands (`s3://bucket/runs`, `hdfs://...`,
`memory://...`) or by a plain local path. Local paths go directly to the operating system, as they
are common and must be fast.

Whatever goes wrong in a store is raised as an OSError: a missing file as FileNotFoundError, a
refused access as PermissionError. A function that writes has written everything when it returns.
"""

import os
import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sparkdl.files import local_files, stores
from sparkdl.files.local_files import below, fsync, write_fully
from sparkdl.files.store_errors import advice, is_beyond_end, store_errors
from sparkdl.files.stores import appends, file_sizes, grows, is_local, local_path

# None for a file that is missing.
_Content = bytes | OSError | None

__all__ = [
    "absolute",
    "advice",
    "append",
    "appends",
    "below",
    "copy",
    "create",
    "download",
    "exists",
    "file_sizes",
    "filesystem",
    "fsync",
    "grows",
    "is_local",
    "join",
    "list_names",
    "local_path",
    "make_directory",
    "put",
    "read",
    "read_many",
    "read_new",
    "remove",
    "remove_files",
    "rename",
    "size",
    "write",
    "write_fully",
]


def absolute(url: str | os.PathLike[str]) -> str:
    """Return `url` with a relative path made absolute, as executors work in other folders."""
    url = os.fspath(url)
    return str(local_path(url).expanduser().absolute()) if is_local(url) else url.rstrip("/")


def join(url: str, *parts: str | int) -> str:
    """Return the URL of a file or folder below `url`."""
    return "/".join([url.rstrip("/"), *(str(part) for part in parts)])


def filesystem(url: str) -> tuple[Any, str]:
    """Return the fsspec filesystem of a URL and the path in it, for libraries that open files."""
    if is_local(url):
        import fsspec  # See `stores.connect`.

        return fsspec.filesystem("file"), str(local_path(url).absolute())
    with store_errors(url):
        return stores.connect(url)


# ---- reading


def read(url: str, offset: int = 0, size: int | None = None) -> bytes:
    """Return the content of a file, or a part of it. A remote store gets one request.

    Args:
        url: the file.
        offset: number of bytes to skip.
        size: number of bytes to read, fewer at the end of the file; None reads to the end.
    """
    with store_errors(url):
        if is_local(url):
            with local_files.open_file(local_path(url)) as file:
                file.seek(offset)
                return file.read(size)
        filesystem, path = stores.connect(url)
        end = None if size is None else offset + size
        try:
            data: bytes = filesystem.cat_file(path, start=offset, end=end)
        except FileNotFoundError:
            raise
        except Exception as exc:
            # Some stores refuse a range behind the end, which an empty file has at its start.
            if is_beyond_end(exc) or offset >= filesystem.size(path):
                return b""
            raise
        return data


def read_many(urls: Iterable[str], most: int | None = None) -> dict[str, bytes]:
    """Return the content of many files, all in one store, without those that do not exist.

    Args:
        urls: the files.
        most: a local file with more bytes cannot be read.

    Raises:
        OSError: if a file exists and cannot be read.
    """
    contents = _read_beyond(dict.fromkeys(urls, 0), most)
    for content in contents.values():
        if isinstance(content, OSError):
            raise content
    return {url: data for url, data in contents.items() if isinstance(data, bytes)}


def read_new(offsets: Mapping[str, int], most: int | None = None) -> dict[str, bytes]:
    """Return the new content of files, by URL; a file without new content has no entry.

    A file that cannot be read now has no entry either, because callers poll the files again.

    Args:
        offsets: number of bytes to skip, by the URL of the file. All remote files are in one store.
        most: a local file with more new bytes cannot be read.
    """
    contents = _read_beyond(offsets, most)
    return {url: data for url, data in contents.items() if isinstance(data, bytes) and data}


def _read_beyond(offsets: Mapping[str, int], most: int | None) -> dict[str, _Content]:
    """Return the content of each file beyond its offset, None if it is missing, or the error."""
    remote = [url for url in offsets if not is_local(url)]
    contents: dict[str, _Content] = {
        url: local_files.read_beyond(local_path(url), offset, most)
        for url, offset in offsets.items()
        if is_local(url)
    }
    if not remote:
        return contents
    try:
        with store_errors(remote[0]):
            filesystem, _ = stores.connect(remote[0])
            paths = [stores.connect(url)[1] for url in remote]
            starts = [offsets[url] for url in remote]
            ends = [None] * len(paths)
            results = filesystem.cat_ranges(paths, starts, ends, on_error="return")
    except OSError as exc:
        return contents | dict.fromkeys(remote, exc)
    for url, result in zip(remote, results, strict=True):
        contents[url] = stores.content_of(result, url, filesystem, offsets[url])
    return contents


def size(url: str) -> int:
    """Return the size of a file in bytes.

    Raises:
        FileNotFoundError: if there is no such file.
    """
    with store_errors(url):
        if is_local(url):
            with local_files.open_file(local_path(url)) as file:
                return os.fstat(file.fileno()).st_size
        filesystem, path = stores.connect(url)
        return int(filesystem.size(path))


def exists(url: str) -> bool:
    """Return True if there is a file or folder at `url`."""
    with store_errors(url):
        if is_local(url):
            return local_path(url).exists()
        filesystem, path = stores.connect(url)
        return bool(filesystem.exists(path))


def list_names(url: str) -> list[str]:
    """Return the names of the files and folders in a folder, sorted; empty if it is missing."""
    try:
        with store_errors(url):
            if is_local(url):
                return sorted(os.listdir(local_path(url)))
            filesystem, path = stores.connect(url)
            entries = filesystem.ls(path, detail=False)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in entries)


# ---- writing


def write(url: str, data: bytes | str) -> None:
    """Write a whole file. Missing folders above it are created.

    A reader sees the old or the new content, never a part. Only in a store with folders whose
    rename does not replace files, such as WebHDFS, a reader may see a part for a moment.

    Args:
        url: the file.
        data: bytes, or text that is encoded as UTF-8.
    """
    if isinstance(data, str):
        data = data.encode(errors="backslashreplace")
    memoryview(data)  # Anything but bytes is a TypeError, rather than an error of the store.
    with store_errors(url):
        if is_local(url):
            local_files.write(local_path(url), data)
            return
        filesystem, target = stores.connect(url)
        _make_parent(url, filesystem, target)
        if not stores.replaces(url, filesystem):
            filesystem.pipe_file(target, data)
            return
        remote_aside = f"{target}.{uuid.uuid4().hex}"
        filesystem.pipe_file(remote_aside, data)
        if stores.is_hdfs_native(filesystem):
            filesystem.mv(remote_aside, target, overwrite=True)
        else:
            filesystem.mv(remote_aside, target)


def _make_parent(url: str, filesystem: Any, path: str) -> None:
    if stores.has_folders(url):
        filesystem.makedirs(os.path.dirname(path), exist_ok=True)


def create(url: str, data: bytes | str) -> None:
    """Write a whole file that does not exist yet. Of several callers at once, one succeeds.

    Local disks, HDFS through `hdfs-native`, S3, Google's and Azure's stores decide this themselves.
    In stores that cannot, all callers write, wait for `stores.CLAIM_S` seconds, and read back whose
    content is there: two callers of which one is slower than that may both succeed. The content
    should be unique, as the caller whose content is there has succeeded.

    Raises:
        FileExistsError: if the file exists.
    """
    data = data.encode() if isinstance(data, str) else data
    with store_errors(url):
        if is_local(url):
            local_files.create(local_path(url), data)
            return
        filesystem, target = stores.connect(url)
        _make_parent(url, filesystem, target)
        stores.create(url, filesystem, target, data)


def append(url: str, data: bytes) -> None:
    """Add `data` to the end of a file, which has a single writer; create the file if needed.

    After an error, a local file is as it was before. A store that cannot append, see `appends`,
    writes the whole file again.
    """
    with store_errors(url):
        if is_local(url):
            local_files.append(local_path(url), data)
        elif appends(url):
            filesystem, path = stores.connect(url)
            try:
                with filesystem.open(path, "ab") as file:
                    file.write(data)
            except FileNotFoundError:
                _make_parent(url, filesystem, path)
                filesystem.pipe_file(path, data)
        else:
            try:
                content = read(url)
            except FileNotFoundError:
                content = b""
            write(url, content + data)


def make_directory(url: str, permissions: int | None = None) -> None:
    """Create a folder and the folders above it. Object stores have no folders and need none.

    Args:
        url: the folder.
        permissions: those of a new folder on local disks and HDFS; None for the usual ones.
    """
    with store_errors(url):
        if is_local(url):
            local_files.make_directory(local_path(url), permissions)
        elif stores.has_folders(url):
            stores.make_directory(url, permissions)


def rename(url: str, new: str) -> None:
    """Move a file or folder to a new name within its store; without `url`, do nothing.

    Raises:
        OSError: if the store has refused, which some stores do without an error.
    """
    if not exists(url):
        return
    with store_errors(url):
        if is_local(url):
            local_files.rename(local_path(url), local_path(new))
            return
        filesystem, path = stores.connect(url)
        target = stores.connect(new)[1]
        _make_parent(new, filesystem, target)
        if stores.protocol_of(url) in ("sftp", "ssh"):
            filesystem.mv(path, target)
        elif stores.has_folders(url):
            filesystem.mv(path, target, recursive=True)
        else:
            # Other processes may remove files of a folder while it is copied.
            with suppress(FileNotFoundError):
                stores.copy_all(url, filesystem, path, target)
                stores.remove_all(url, filesystem, path)
        if stores.has_folders(url) and (filesystem.exists(path) or not filesystem.exists(target)):
            raise OSError(f"the store has not renamed {url} to {new}")


def remove(url: str) -> None:
    """Remove a file, or a folder with its content; without `url`, do nothing."""
    with suppress(FileNotFoundError), store_errors(url):
        if is_local(url):
            path = local_path(url)
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        else:
            filesystem, target = stores.connect(url)
            stores.remove_all(url, filesystem, target)


def remove_files(urls: Sequence[str]) -> None:
    """Remove remote files of one store, with as few requests as the store allows."""
    with suppress(FileNotFoundError), store_errors(urls[0]):
        filesystem, _ = stores.connect(urls[0])
        paths = [stores.connect(url)[1] for url in urls]
        stores.remove_files(urls[0], filesystem, paths)


# ---- copies


def copy(source: Path, url: str) -> None:
    """Copy a local file or folder to `url`, in pieces, so that a file may be larger than memory."""
    for path in sorted(source.rglob("*")) if source.is_dir() else [source]:
        if path.is_file():
            _put(path, join(url, *path.relative_to(source).parts))


def put(folder: Path, name: str, url: str) -> None:
    """Copy a file of a local folder in pieces, so that it may be larger than memory.

    Args:
        folder: the local folder.
        name: the path of the file relative to `folder`, and of the copy relative to `url`.
        url: the folder of the copy.
    """
    _put(folder / name, join(url, name))


def _put(source: Path, url: str) -> None:
    with store_errors(url):
        if is_local(url):
            local_files.copy(source, local_path(url))
            return
        filesystem, target = stores.connect(url)
        _make_parent(url, filesystem, target)
        filesystem.put_file(str(source), target)


def download(url: str, folder: Path) -> None:
    """Copy a file to a local path, or the content of a folder to a local folder.

    Without `url`, do nothing.

    Raises:
        OSError: if a file cannot be read or written, or its name leads out of the folder.
    """
    with store_errors(url):
        if is_local(url):
            if (source := local_path(url)).is_dir():
                shutil.copytree(source, folder, dirs_exist_ok=True)
            elif source.exists():
                folder.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, folder)
            return
        filesystem, path = stores.connect(url)
        for name in filesystem.find(path):
            target = below(folder, name[len(path) :])
            target.parent.mkdir(parents=True, exist_ok=True)
            filesystem.get_file(name, str(target))
