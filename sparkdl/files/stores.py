"""Runs anywhere. The kinds of stores: recognise their URLs, connect, and use what each one can do.

`sparkdl.files.storage` builds upon this module. The abilities of a store decide how a file is
written there: a store with folders needs them to be created, one whose rename replaces a file can
write aside first, and one that appends need not write a growing file again as a whole.
"""

import errno
import inspect
import logging
import re
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from glob import has_magic
from pathlib import Path
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.files.store_errors import (
    is_beyond_end,
    is_no_end_of_file,
    status_of,
    store_errors,
)
from sparkdl.host.optional_packages import install_command

# Object stores, in which a path is just a name: creating a "folder" there asks for the bucket, and
# may even try to create it.
_OBJECT_STORES = {"s3", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "tos", "memory"}
_CHAINED = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*(://[^:]*)?::(?=[A-Za-z][A-Za-z0-9+.-]*:)")
_PROTOCOL = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+)://")
# As Spark prints local paths: `file:/data`.
_FILE = re.compile(r"^(?:(?:file|local)://|file:(?=/))")
_DBFS_MOUNT = Path("/dbfs")
_AZURE_ACCOUNT = (
    "it names no storage account. Write abfss://<container>@<account>.dfs.core.windows.net/<path>, "
    "or set AZURE_STORAGE_ACCOUNT_NAME or AZURE_STORAGE_CONNECTION_STRING for the driver and the "
    "executors."
)
# In a store that cannot refuse to write a file that exists, a claim is read back after this time.
CLAIM_S = 2.0
# A store that copies files after it has answered has so long to do it.
COPY_S = 600.0

# The servers of these remove a whole folder themselves, by its exact name.
_OWN_REMOVE = {"hdfs", "viewfs", "webhdfs"}

_EXTRAS = {
    "s3": "s3",
    **dict.fromkeys(("gs", "gcs"), "gs"),
    **dict.fromkeys(("az", "abfs", "abfss"), "azure"),
    **dict.fromkeys(("hdfs", "viewfs"), "hdfs"),
}


def protocol_of(url: str) -> str:
    """Return the protocol of a URL, such as `s3`; `file` for a local path.

    Example:
        >>> protocol_of("file:/data"), protocol_of("s3a://bucket"), protocol_of("/a/b:c")
        ('file', 's3', 'file')
        >>> protocol_of("simplecache::s3://bucket/data")
        'simplecache::'
    """
    if chained := _CHAINED.match(url):
        return chained[0]
    if _FILE.match(url):
        return "file"
    if re.match("^dbfs:/(?!/)", url):
        return "file" if _DBFS_MOUNT.is_dir() else "dbfs"
    match = _PROTOCOL.match(url)
    protocol = match[1].lower() if match else "file"
    return "s3" if protocol in ("s3a", "s3n") else protocol


def is_local(url: str) -> bool:
    """Return True if `url` is on a filesystem of this host, NFS and FUSE mounts included."""
    return protocol_of(url) == "file"


def local_path(url: str) -> Path:
    """Return the path of a local URL.

    Example:
        >>> [str(local_path(url)) for url in ("file:///data/runs", "file:/data/runs", "data/runs")]
        ['/data/runs', '/data/runs', 'data/runs']
    """
    if url.startswith("dbfs:/"):  # Databricks mounts its store on all hosts.
        return _DBFS_MOUNT / url.removeprefix("dbfs:/")
    return Path(_FILE.sub("", url))


def connect(url: str) -> tuple[Any, str]:
    """Return the fsspec filesystem of a remote URL, and the path in it.

    Raises:
        ConfigError: if no installed package knows the protocol.
        OSError: if the store cannot be reached.
    """
    import fsspec  # Imported late: a process that uses only local paths starts faster without it.

    protocol = protocol_of(url)
    if protocol == "dbfs" and not url.startswith("dbfs://"):
        raise ConfigError(
            f"{url} is a path of Databricks, which mounts it as /dbfs, but this host has no folder "
            "/dbfs. Name a folder or an fsspec URL that the driver and the executors share."
        )
    if protocol == "s3":
        url = re.sub(r"^\w+://", "s3://", url)
    # Listings must not be cached, as other hosts write the files that are listed. HDFS caches none,
    # and takes every option for one of Hadoop.
    options = {} if protocol in ("hdfs", "viewfs") else {"use_listings_cache": False}
    if protocol in ("gs", "gcs"):
        logging.getLogger("gcsfs").addFilter(is_no_end_of_file)
    try:
        filesystem, path = fsspec.core.url_to_fs(url, **options)
    except (ValueError, ImportError) as exc:
        if _EXTRAS.get(protocol) == "azure" and "connection_string" in str(exc):
            raise ConfigError(f"{url} cannot be used: {_AZURE_ACCOUNT}") from exc
        raise ConfigError(f"{url} cannot be used: {exc}.{_hint(protocol)}") from exc
    except OSError as exc:
        if protocol == "hdfs":  # Without hdfs-native, pyarrow looks for Hadoop's own libraries.
            raise ConfigError(f"{url} cannot be reached: {exc}.{_hint(protocol)}") from exc
        raise
    return filesystem, path


def _hint(protocol: str) -> str:
    extra = _EXTRAS.get(protocol)
    return f" Install the package: {install_command(extra)}" if extra else ""


def has_folders(url: str) -> bool:
    """Return True if the folder of a new file must be created first."""
    return protocol_of(url) not in _OBJECT_STORES


def make_directory(url: str, permissions: int | None) -> None:
    """Create a folder, see `storage.make_directory`."""
    filesystem, path = connect(url)
    is_new = permissions is not None and not filesystem.exists(path)
    filesystem.makedirs(path, exist_ok=True)
    if is_new and is_hdfs_native(filesystem):
        with suppress(Exception):  # Its own errors; a cluster may give permissions by other rules.
            filesystem.client.set_permission(filesystem._strip_protocol(path), permissions)


def remove_all(url: str, filesystem: Any, path: str) -> None:
    """Remove a file, or a folder with its content.

    fsspec takes a path with `*`, `?` or `[` for a pattern, and would remove what matches.
    """
    if protocol_of(url) in _OWN_REMOVE or not has_magic(path):
        filesystem.rm(path, recursive=True)
        return
    entries = _find(filesystem, path, withdirs=True)
    for name in sorted(entries, reverse=True):  # The content of a folder comes before the folder.
        if entries[name]["type"] != "directory":
            filesystem.rm_file(name)
        elif has_folders(url):
            filesystem.rmdir(name)


def remove_files(url: str, filesystem: Any, paths: Sequence[str]) -> None:
    """Remove files, with as few requests as the store allows; see `remove_all`."""
    if not (has_folders(url) or has_magic("".join(paths))):
        filesystem.rm(paths)
        return
    for path in paths:
        filesystem.rm_file(path)


def copy_all(url: str, filesystem: Any, path: str, target: str) -> None:
    """Copy a file, or a folder with its content, within an object store.

    Files that other processes remove meanwhile are left out.

    Raises:
        TimeoutError: if the store has begun to copy a file, and does not end.
    """
    if not has_magic(path):
        filesystem.copy(path, target, recursive=True, on_error="ignore")
    else:
        for name in filesystem.find(path):
            with suppress(FileNotFoundError):
                filesystem.cp_file(name, target + name[len(path) :])
    # Azure may answer before a file is copied, and would give up if the original were removed.
    deadline_s = time.monotonic() + COPY_S
    while _EXTRAS.get(protocol_of(url)) == "azure" and (
        late := _differing_sizes(filesystem, path, target)
    ):
        if time.monotonic() > deadline_s:
            raise TimeoutError(errno.ETIMEDOUT, f"not copied within {COPY_S:g} s: {late}", url)
        time.sleep(0.1)


def _find(filesystem: Any, path: str, **options: Any) -> dict[str, dict[str, Any]]:
    """Return what is known of the files at and below a path, by their names."""
    entries = filesystem.find(path, detail=True, **options)
    if isinstance(entries, dict):
        return entries
    return {
        name: filesystem.info(name) for name in entries
    }  # adlfs, if the path is that of a file.


def _differing_sizes(filesystem: Any, path: str, target: str) -> list[str]:
    """Return the copies that have another size than their originals."""
    copies, originals = _find(filesystem, target), _find(filesystem, path)
    pairs = ((entry, copies.get(target + name[len(path) :])) for name, entry in originals.items())
    return [copy["name"] for entry, copy in pairs if copy and copy["size"] != entry["size"]]


def file_sizes(url: str, max_depth: int | None = None) -> dict[str, int]:
    """Return the bytes of the files below a remote folder, by their paths relative to it.

    The store tells them with the listing, so that no file is asked for its size.

    Args:
        url: the folder.
        max_depth: 1 for the files in the folder itself; None for all.
    """
    filesystem, path = connect(url)
    try:
        with store_errors(url):
            infos = _find(filesystem, path, maxdepth=max_depth)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    sizes = {name[len(path) :].lstrip("/"): int(entry["size"]) for name, entry in infos.items()}
    # adlfs lists what is deeper, too.
    return {n: size for n, size in sizes.items() if max_depth is None or n.count("/") < max_depth}


def appends(url: str) -> bool:
    """Return True if the store adds to the end of a file, rather than writing it again."""
    return protocol_of(url) in {"file", "hdfs", "viewfs", "sftp", "ssh"}


def grows(url: str) -> bool:
    """Return True if a file can be read while its writer adds to it, and if the writer is killed.

    HDFS hides the last block of a file while a process appends to it, and until an hour after that
    process was killed. Of a small file that is the whole content.
    """
    return appends(url) and protocol_of(url) not in ("hdfs", "viewfs")


def replaces(url: str, filesystem: Any) -> bool:
    """Return True if a rename in this store is known to replace a file in one step.

    pyarrow's HDFS removes the old file first, WebHDFS refuses without an error, and SMB fails.
    """
    return protocol_of(url) in ("sftp", "ssh") or is_hdfs_native(filesystem)


def is_hdfs_native(filesystem: Any) -> bool:
    """Return True for HDFS through `hdfs-native`, whose rename takes `overwrite`."""
    return type(filesystem).__module__.startswith("hdfs_native")


def _create_options(filesystem: Any) -> dict[str, Any] | None:
    """Return what lets the store itself refuse to write a file that exists; None for nothing."""
    for cls in type(filesystem).__mro__:
        if cls.__module__ in ("fsspec.spec", "fsspec.asyn"):  # Only these look first, then write.
            return None
        method = vars(cls).get("_pipe_file", vars(cls).get("pipe_file"))
        if method is not None:
            parameters = inspect.signature(method).parameters
            # adlfs, for Azure, has an argument of its own.
            options = {"mode": "create"} if "mode" in parameters else {"overwrite": False}
            return options if options.keys() <= parameters.keys() else None
    return None


def create(url: str, filesystem: Any, path: str, data: bytes) -> None:
    """Write a file that does not exist yet, see `sparkdl.files.storage.create`."""
    options = _create_options(filesystem)
    if is_hdfs_native(filesystem):
        _create_by_rename(url, filesystem, path, data)
    elif options is None:
        if filesystem.exists(path):
            raise FileExistsError(f"{url} exists")
        filesystem.pipe_file(path, data)
        _check_claim(url, filesystem, path, data)
    elif not _is_created(filesystem, path, data, options):
        if filesystem.cat_file(path) != data:  # Else the answer to a first try was lost.
            raise FileExistsError(f"{url} exists")
    elif _is_created(filesystem, path, data, options):
        _check_claim(url, filesystem, path, data)  # The store ignores the condition.


def _create_by_rename(url: str, filesystem: Any, path: str, data: bytes) -> None:
    # Of a create, readers would see the file before its content; a rename refuses as well.
    aside = f"{path}.{uuid.uuid4().hex}"
    filesystem.pipe_file(aside, data)
    try:
        filesystem.mv(aside, path)
    except Exception as exc:
        filesystem.rm(aside)
        if filesystem.exists(path):
            raise FileExistsError(f"{url} exists") from exc
        raise


def _is_created(filesystem: Any, path: str, data: bytes, options: dict[str, Any]) -> bool:
    """Return True if a conditional request has written the file."""
    for pause_s in (0.2, 1.0, None):
        try:
            filesystem.pipe_file(path, data, **options)
            return True
        except Exception as exc:
            if _already_exists(exc):
                return False
            # S3 refuses both of two requests that meet, and asks to repeat them.
            if status_of(exc) != 409 or pause_s is None:
                raise
            time.sleep(pause_s)
    return False


def _check_claim(url: str, filesystem: Any, path: str, data: bytes) -> None:
    time.sleep(CLAIM_S)
    if filesystem.cat_file(path) != data:
        raise FileExistsError(f"{url} was created by another process")


def content_of(result: Any, url: str, filesystem: Any, offset: int) -> bytes | OSError | None:
    """Return what `cat_ranges` has returned for one file, with its errors unified."""
    if not isinstance(result, BaseException):
        return bytes(result)
    try:
        with store_errors(url):
            if is_beyond_end(result):
                return b""
            raise result
    except FileNotFoundError:
        return None
    except OSError as exc:
        with suppress(Exception):
            if offset and offset >= filesystem.size(connect(url)[1]):
                return b""
        return exc


def _already_exists(exc: BaseException) -> bool:
    """Return True if a store has refused to create a file because the file exists."""
    is_refused = status_of(exc) == 412 or "AlreadyExists" in f"{type(exc).__name__} {exc}"
    return isinstance(exc, FileExistsError) or is_refused
